//! Which keys do several permissions cover together? Pure.

use bytes::Bytes;

use crate::kv::KeyRange;

/// Keys from `start` up to, not including, `end`; without an end, all keys from `start` on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    start: Bytes,
    end: Option<Bytes>,
}

impl Span {
    fn of(keys: &KeyRange) -> Span {
        // A range without keys is judged by the key that it names.
        let end =
            if keys.is_one() || keys.is_empty() { Some(after(&keys.start)) } else { keys.upper().cloned() };
        Span { start: keys.start.clone(), end }
    }

    fn reaches(&self, end: Option<&Bytes>) -> bool {
        match (&self.end, end) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(end)) => own >= end,
        }
    }
}

/// The first key behind this one.
fn after(key: &Bytes) -> Bytes {
    [&key[..], b"\0"].concat().into()
}

/// A set of keys: ranges in order, none of which touches another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(Vec<Span>);

impl Ranges {
    /// The union of some ranges.
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a KeyRange>) -> Ranges {
        let mut spans: Vec<_> = parts.into_iter().map(Span::of).collect();
        spans.sort_unstable();
        let mut union: Vec<Span> = Vec::with_capacity(spans.len());
        for span in spans {
            match union.last_mut().filter(|last| last.reaches(Some(&span.start))) {
                Some(last) if last.reaches(span.end.as_ref()) => {}
                Some(last) => last.end = span.end,
                None => union.push(span),
            }
        }
        Ranges(union)
    }

    /// Whether every key of a range is in the set.
    pub(super) fn cover(&self, keys: &KeyRange) -> bool {
        let wanted = Span::of(keys);
        let behind = self.0.partition_point(|span| span.start <= wanted.start);
        behind.checked_sub(1).is_some_and(|at| {
            let span = &self.0[at];
            span.end.as_ref().is_none_or(|end| *end > wanted.start) && span.reaches(wanted.end.as_ref())
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn neighbours_are_one_range() {
        let set = Ranges::of(&[KeyRange::span("b", "c"), KeyRange::span("a", "b"), KeyRange::one("x")]);
        assert!(set.cover(&KeyRange::span("a", "c")));
        assert!(set.cover(&KeyRange::one("x")));
        assert!(!set.cover(&KeyRange::span("a", "d")));
        assert!(!set.cover(&KeyRange::one("c")));
        assert!(!set.cover(&KeyRange::prefix("x")), "a key is not its prefix");
        assert!(!set.cover(&KeyRange::from_key("a")));
    }

    #[test]
    fn an_open_end_covers_everything_behind_it_and_nothing_before() {
        let set = Ranges::of(&[KeyRange::from_key("m")]);
        assert!(set.cover(&KeyRange::from_key("m")) && set.cover(&KeyRange::prefix("z")));
        assert!(!set.cover(&KeyRange::all()) && !set.cover(&KeyRange::one("l")));
        assert!(Ranges::of(&[KeyRange::all()]).cover(&KeyRange::all()));
        assert!(!Ranges::default().cover(&KeyRange::one("a")));
    }

    fn ranges() -> impl Strategy<Value = KeyRange> {
        let key = || prop::collection::vec(0_u8..3, 1..3).prop_map(Bytes::from);
        prop_oneof![
            key().prop_map(KeyRange::one),
            key().prop_map(KeyRange::from_key),
            key().prop_map(KeyRange::prefix),
            (key(), key()).prop_map(|(start, end)| KeyRange::span(start, end)),
        ]
    }

    proptest! {
        /// What is covered is covered key by key, for all keys that the ranges can tell apart.
        #[test]
        fn a_covered_range_has_no_key_outside(parts in prop::collection::vec(ranges(), 0..5), wanted in ranges()) {
            let set = Ranges::of(&parts);
            let mut keys = vec![Vec::new()];
            for len in 1..4_u32 {
                keys.extend((0..4_usize.pow(len)).map(|number| {
                    (0..len).map(|digit| (number / 4_usize.pow(digit) % 4) as u8).collect::<Vec<u8>>()
                }));
            }
            let allowed = |key: &[u8]| parts.iter().any(|part| !part.is_empty() && part.contains(key)
                || part.is_empty() && part.start == key);
            let inside = keys.iter().filter(|key| wanted.contains(key));
            let missing = inside.clone().any(|key| !allowed(key));
            if set.cover(&wanted) {
                prop_assert!(!missing, "{parts:?} do not cover {wanted:?}");
            }
        }
    }
}
