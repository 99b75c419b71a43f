//! Which consumer has a key? A ring of 100 points for each of them: a consumer that comes or goes moves only the keys next
//! to its points. Points follow from the place that a consumer has among the others, not from its name: the same keys are
//! spread in the same way in every topic. Consumers may say which keys they take.

/// Points of one consumer on the ring.
const POINTS: u32 = 100;

/// The points of all consumers, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keyring {
    points: Vec<(u32, u64)>,
}

impl Keyring {
    /// The ring of consumers with their places.
    pub(crate) fn of(consumers: impl Iterator<Item = (u32, u64)>) -> Keyring {
        let point = |(place, consumer), at| (hash(format!("{place}-{at}").as_bytes()), consumer);
        let mut points: Vec<_> =
            consumers.flat_map(|consumer| (0..POINTS).map(move |at| point(consumer, at))).collect();
        points.sort_unstable();
        Keyring { points }
    }

    /// The first consumer behind a key's place that takes it.
    pub(crate) fn owner(&self, key: &[u8], takes: impl Fn(u64) -> bool) -> Option<u64> {
        let start = self.points.partition_point(|(point, _)| *point < hash(key));
        let (before, behind) = self.points.split_at(start);
        behind.iter().chain(before).map(|(_, consumer)| *consumer).find(|consumer| takes(*consumer))
    }
}

/// FNV-1a, finished as MurmurHash3 does. FNV-1a alone places texts that differ only in their last characters next to each
/// other: numbered points and numbered keys would each lie in a few spots of the ring.
fn hash(bytes: &[u8]) -> u32 {
    let fnv = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = bytes.iter().fold(0x811c_9dc5, fnv);
    let hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    let hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// Whether a text matches a pattern in which `*` stands for any text and `?` for one character.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on when a star has to take one more character.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            Some(_) | None => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, t) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, found) in [
            ("*", "", true),
            ("*", "any", true),
            ("pay*", "payment", true),
            ("pay*", "repay", false),
            ("*-eu", "orders-eu", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, text), found, "{pattern} {text}");
        }
    }

    #[test]
    fn consumers_share_numbered_keys() {
        for consumers in 2..=8_u32 {
            let ring = Keyring::of((0..consumers).map(|place| (place, place.into())));
            let mut keys = [0; 8];
            for key in 0..8_000 {
                let owner = ring.owner(format!("key-{key}").as_bytes(), |_| true).unwrap();
                keys[usize::try_from(owner).unwrap()] += 1;
            }
            let fair = 8_000 / consumers;
            let shares = &keys[..usize::try_from(consumers).unwrap()];
            assert!(shares.iter().all(|keys| (fair / 2..fair * 2).contains(keys)), "{shares:?}");
        }
    }

    #[test]
    fn a_consumer_that_leaves_moves_only_its_own_keys() {
        let (three, two) =
            (Keyring::of([(0, 1), (1, 2), (2, 3)].into_iter()), Keyring::of([(0, 1), (2, 3)].into_iter()));
        let mut moved = [0; 4];
        for key in 0..3_000_u32 {
            let key = format!("key-{key}");
            let (before, after) = (
                three.owner(key.as_bytes(), |_| true).unwrap(),
                two.owner(key.as_bytes(), |_| true).unwrap(),
            );
            moved[usize::try_from(before).unwrap()] += 1;
            assert!(before == 2 || before == after);
        }
        assert!(moved[1..].iter().all(|keys| *keys > 500), "{moved:?}");
        assert_eq!(three.owner(b"x", |consumer| consumer == 2), Some(2));
        assert_eq!(three.owner(b"x", |_| false), None);
    }
}
