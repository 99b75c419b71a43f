//! Which consumer has a key? A ring of 100 points for each of them: a consumer that comes or goes moves only the keys next
//! to its points. Consumers may say which keys they take.

/// Points of one consumer on the ring.
const POINTS: u32 = 100;

/// The points of all consumers, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keyring {
    points: Vec<(u32, u64)>,
}

impl Keyring {
    pub(crate) fn of(consumers: impl Iterator<Item = u64>) -> Keyring {
        let point = |consumer: u64, at: u32| (hash(format!("{consumer}-{at}").as_bytes()), consumer);
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
    fn two_consumers_share_numbered_keys() {
        // Numbers as spread as those of real consumers.
        let numbers = |pair: u64| [2 * pair + 1, 2 * pair + 2].map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for pair in 0..200 {
            let [one, two] = numbers(pair);
            let ring = Keyring::of([one, two].into_iter());
            let owner = |key: u32| ring.owner(format!("key-{key}").as_bytes(), |_| true).unwrap();
            let few = (0..16).filter(|key| owner(*key) == one).count();
            assert!((1..16).contains(&few), "{one} has {few} of 16 keys, {two} the others");
            let many = (0..1_000).filter(|key| owner(*key) == one).count();
            assert!((300..700).contains(&many), "{one} has {many} of 1000 keys, {two} the others");
        }
    }

    #[test]
    fn a_consumer_that_leaves_moves_only_its_own_keys() {
        let (three, two) = (Keyring::of([1, 2, 3].into_iter()), Keyring::of([1, 3].into_iter()));
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
