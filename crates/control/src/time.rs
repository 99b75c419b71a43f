//! How are times formatted? RFC 3339 in UTC, everywhere.

use jiff::Timestamp;

/// Seconds since 1970 as RFC 3339; `-` if out of range.
#[must_use]
pub fn rfc3339(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.to_string())
}

fn parse(text: &str) -> Result<u64, String> {
    let time: Timestamp = text.parse().map_err(|error: jiff::Error| error.to_string())?;
    u64::try_from(time.as_second()).map_err(|_| "a time before 1970".to_owned())
}

/// The elapsed time in the largest useful unit: `42s`, `7m`, `3h`, `12d`.
#[must_use]
pub fn ago(seconds: u64, now: u64) -> String {
    match now.saturating_sub(seconds) {
        age @ 0..=119 => format!("{age}s"),
        age @ 120..=7199 => format!("{}m", age / 60),
        age @ 7200..=172_799 => format!("{}h", age / 3600),
        age => format!("{}d", age / 86_400),
    }
}

/// For `#[serde(with = ...)]` on seconds since 1970.
pub mod rfc3339_seconds {
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes the time.
    pub fn serialize<S: Serializer>(seconds: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::rfc3339(*seconds))
    }

    /// Reads the time.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        super::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// For `#[serde(with = ...)]` on seconds since 1970 that may be unknown.
pub mod rfc3339_option {
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// Writes the time, or null.
    pub fn serialize<S: Serializer>(seconds: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match seconds {
            Some(seconds) => serializer.serialize_str(&super::rfc3339(*seconds)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads the time, or null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text)).transpose().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read_again() {
        assert_eq!(rfc3339(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(parse("2023-11-14T22:13:20Z"), Ok(1_700_000_000));
        assert!(parse("yesterday").is_err());
        assert_eq!(rfc3339(u64::MAX), "-");
    }

    #[test]
    fn an_age_has_one_unit() {
        let ages = [0, 119, 120, 7200, 200_000].map(|age| ago(1_000_000 - age, 1_000_000));
        assert_eq!(ages, ["0s", "119s", "2m", "2h", "2d"]);
    }
}
