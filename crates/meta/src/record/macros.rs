//! How are keys, names and codecs declared? One macro each, so that key text exists in one file per service.

/// Declares every key of a service: its type, its path, the record that it leads to, the prefixes that list it, and
/// the catalogue from which the documentation is printed.
///
/// The build fails if placeholders and fields differ, if a prefix does not end in a slash or a path has an empty
/// segment. See [`record`](crate::record) for an example. `secrecy: Secret,` may follow `lifetime:`.
#[macro_export]
macro_rules! keys {
    (
        $(#[$about:meta])*
        $catalogue_vis:vis const $catalogue:ident;
        $(
            $(#[doc = $doc:literal])*
            $vis:vis struct $key:ident { $($field:ident : $ty:ty),* $(,)? } at $pattern:literal => $record:ty {
                writer: $writer:literal,
                lifetime: $lifetime:ident,
                $(secrecy: $secrecy:ident,)?
                $(prefixes: [
                    $(
                        $(#[doc = $prefix_doc:literal])*
                        $prefix_vis:vis struct $prefix:ident {
                            $($prefix_field:ident : $prefix_ty:ty),* $(,)?
                        } at $prefix_pattern:literal
                    ),* $(,)?
                ],)?
            }
        )*
    ) => {
        $(#[$about])*
        $catalogue_vis const $catalogue: &[$crate::record::KeyDoc] =
            &[$(<$key as $crate::record::Key>::DOC),*];

        $(
            $(#[doc = $doc])*
            #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
            $vis struct $key {
                $(
                    #[doc = concat!("Stands for `{", stringify!($field), "}` in the path.")]
                    pub $field: $ty,
                )*
            }

            const _: () = $crate::record::path::check_key($pattern, &[$(stringify!($field)),*]);

            impl ::std::fmt::Display for $key {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    $crate::record::path::fill($pattern, &[$(&self.$field),*], f)
                }
            }

            impl $crate::record::Key for $key {
                type Record = $record;

                const DOC: $crate::record::KeyDoc = $crate::record::KeyDoc {
                    pattern: $pattern,
                    key: stringify!($key),
                    record: stringify!($record),
                    format: <$record as $crate::record::Record>::FORMAT,
                    doc: concat!($($doc, "\n"),*),
                    writer: $writer,
                    lifetime: $crate::record::Lifetime::$lifetime,
                    secrecy: $crate::keys!(@secrecy $($secrecy)?),
                };

                #[allow(unused_mut, unused_variables, reason = "a key without placeholders captures nothing")]
                fn parse(path: &str) -> Option<$key> {
                    let mut texts = $crate::record::path::captures($pattern, path)?.into_iter();
                    Some($key { $($field: $crate::record::path::segment::<$ty>(texts.next()?)?),* })
                }
            }

            $($(
                $(#[doc = $prefix_doc])*
                #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
                $prefix_vis struct $prefix {
                    $(
                        #[doc = concat!("Stands for `{", stringify!($prefix_field), "}` in the path.")]
                        pub $prefix_field: $prefix_ty,
                    )*
                }

                const _: () = $crate::record::path::check_prefix(
                    $prefix_pattern,
                    &[$(stringify!($prefix_field)),*],
                );

                impl ::std::fmt::Display for $prefix {
                    fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                        $crate::record::path::fill($prefix_pattern, &[$(&self.$prefix_field),*], f)
                    }
                }

                impl $crate::record::Prefix for $prefix {
                    type Key = $key;
                }
            )*)?
        )*
    };
    (@secrecy) => { $crate::record::Secrecy::Public };
    (@secrecy $secrecy:ident) => { $crate::record::Secrecy::$secrecy };
}

/// Declares names: text newtypes that may stand in a path. Their constructor refuses what could leave its place there.
#[macro_export]
macro_rules! names {
    ($($(#[$about:meta])* $vis:vis struct $name:ident;)*) => {$(
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $name(::std::sync::Arc<str>);

        impl $name {
            /// The name, if the text can be one.
            pub fn new(text: impl AsRef<str>) -> Result<$name, $crate::record::InvalidName> {
                let text = text.as_ref();
                $crate::record::path::check_name(stringify!($name), text)?;
                Ok($name(text.into()))
            }

            /// The name's text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::record::InvalidName;

            fn from_str(text: &str) -> Result<$name, $crate::record::InvalidName> {
                $name::new(text)
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl $crate::record::Segment for $name {}

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = <::std::borrow::Cow<'de, str> as ::serde::Deserialize<'de>>::deserialize(deserializer)?;
                $name::new(text).map_err(::serde::de::Error::custom)
            }
        }
    )*};
}

/// Writes these types as JSON documents.
#[macro_export]
macro_rules! json_records {
    ($($record:ty),* $(,)?) => {$(
        impl $crate::record::Record for $record {
            const FORMAT: $crate::record::RecordFormat = $crate::record::RecordFormat::Json;

            fn decode(value: &[u8]) -> Result<Self, String> {
                $crate::record::from_json(value)
            }

            fn encode(&self) -> Result<$crate::record::Value, String> {
                $crate::record::to_json(self)
            }
        }
    )*};
}

/// Writes these types as plain text, by their `FromStr` and `Display`.
#[macro_export]
macro_rules! text_records {
    ($($record:ty),* $(,)?) => {$(
        impl $crate::record::Record for $record {
            const FORMAT: $crate::record::RecordFormat = $crate::record::RecordFormat::Text;

            fn decode(value: &[u8]) -> Result<Self, String> {
                $crate::record::from_text(value)
            }

            fn encode(&self) -> Result<$crate::record::Value, String> {
                $crate::record::to_text(self)
            }
        }
    )*};
}
