//! Where are ranges cut, so that every node gets the right number of slots in few ranges?
//!
//! First how many slots each node gives and takes (as few as possible), then which ones: piece by piece, always the
//! piece that adds the fewest ranges. A piece next to a range of its taker adds none; a whole range that changes its
//! owner adds none; a piece cut where two givers meet adds one, and the next one beside it none.

use crate::mix;

/// Consecutive slots of one owner, or of none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) len: u32,
    pub(crate) owner: Option<u32>,
}

/// How many slots each node gives and takes.
#[derive(Debug, Clone)]
pub(crate) struct Quota {
    gives: Vec<u32>,
    takes: Vec<u32>,
    free: u32,
}

impl Quota {
    /// The fewest moves that leave every node within `fair`. Odd slots go where something moves anyway.
    pub(crate) fn new(runs: &[Run], fair: &[(u32, u32)]) -> Self {
        Self::favouring(runs, fair, |moves, node| (u64::from(!moves), u64::from(node)))
    }

    /// The same, with odd slots going to nodes of low rank first; a rank may depend on whether the node gives or takes
    /// something anyway.
    fn favouring(runs: &[Run], fair: &[(u32, u32)], rank: impl Fn(bool, u32) -> (u64, u64)) -> Self {
        let mut stored = vec![0; fair.len()];
        let mut free = 0;
        for run in runs {
            match run.owner {
                Some(owner) => stored[owner as usize] += run.len,
                None => free += run.len,
            }
        }
        let bounds = || stored.iter().zip(fair);
        let mut gives: Vec<u32> = bounds().map(|(&has, &(_, high))| has.saturating_sub(high)).collect();
        let mut takes: Vec<u32> = bounds().map(|(&has, &(low, _))| low.saturating_sub(has)).collect();
        let offered = free + gives.iter().sum::<u32>();
        let asked = takes.iter().sum::<u32>();
        let may_give: Vec<u32> =
            bounds().zip(&gives).map(|((&has, &(low, _)), give)| (has - give).saturating_sub(low)).collect();
        let may_take: Vec<u32> = bounds()
            .zip(gives.iter().zip(&takes))
            .map(|((&has, &(_, high)), (give, take))| high.saturating_sub(has - give + take))
            .collect();
        spread(asked.saturating_sub(offered), &mut gives, &may_give, &rank);
        spread(offered.saturating_sub(asked), &mut takes, &may_take, &rank);
        Self { gives, takes, free }
    }

    pub(crate) fn moved(&self) -> u32 {
        self.free + self.gives.iter().sum::<u32>()
    }
}

/// Adds `more` in total, to those of low rank first.
fn spread(mut more: u32, to: &mut [u32], room: &[u32], rank: impl Fn(bool, u32) -> (u64, u64)) {
    let mut order: Vec<usize> = (0..to.len()).collect();
    order.sort_by_key(|&at| (rank(to[at] > 0, at as u32), at));
    for at in order {
        let part = more.min(room[at]);
        to[at] += part;
        more -= part;
    }
}

/// Which of two equally good pieces to take first.
#[derive(Clone, Copy)]
enum Taste {
    Leftmost,
    Largest,
    Rightmost,
}

/// Ways to distribute odd slots that are tried besides the plain one.
const ODD_SLOT_ORDERS: u64 = 15;
/// Cluster size up to which they are tried: above, one attempt takes long and odd slots matter little.
const SMALL_CLUSTER: usize = 64;

/// The best of several deterministic attempts.
pub(crate) fn fewest_ranges(runs: &[Run], fair: &[(u32, u32)]) -> Vec<Run> {
    let orders = if fair.len() <= SMALL_CLUSTER { ODD_SLOT_ORDERS } else { 0 };
    let scrambled = |order: u64| {
        let anyway_first = order % 2;
        let rank =
            |moves: bool, node: u32| (anyway_first * u64::from(!moves), mix::pair(order, u64::from(node)));
        Quota::favouring(runs, fair, rank)
    };
    let quotas = std::iter::once(Quota::new(runs, fair)).chain((0..orders).map(scrambled));
    let attempts = quotas.flat_map(|quota| {
        [Taste::Leftmost, Taste::Largest, Taste::Rightmost]
            .map(|taste| Cutting { runs: runs.to_vec(), quota: quota.clone(), taste }.run())
    });
    attempts.min_by_key(Vec::len).unwrap_or_default()
}

struct Cutting {
    runs: Vec<Run>,
    quota: Quota,
    taste: Taste,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

#[derive(Clone, Copy)]
struct Piece {
    run: usize,
    side: Side,
    len: u32,
    taker: u32,
}

impl Cutting {
    fn run(mut self) -> Vec<Run> {
        while let Some(piece) = self.best_piece() {
            self.cut(piece);
        }
        self.runs
    }

    fn best_piece(&self) -> Option<Piece> {
        let needy: Vec<u32> = (0..self.quota.takes.len() as u32).filter(|&at| self.needs(at) > 0).collect();
        let neediest = needy.iter().copied().max_by_key(|&at| (self.needs(at), std::cmp::Reverse(at)))?;
        let mut by_need: Vec<(u32, u32)> = needy.iter().map(|&at| (self.needs(at), at)).collect();
        by_need.sort_unstable();
        let mut best: Option<(Rank, Piece)> = None;
        for run in 0..self.runs.len() {
            let available = self.available(run);
            if available == 0 {
                continue;
            }
            let fits = by_need.partition_point(|&(need, _)| need < available);
            let exact = by_need.get(fits).map(|&(_, at)| at);
            for side in [Side::Left, Side::Right] {
                let beside = [self.neighbour(run, Side::Left), self.neighbour(run, Side::Right)];
                let beside = beside.into_iter().flatten().filter(|&at| self.needs(at) > 0);
                for taker in beside.chain(exact).chain([neediest]) {
                    let piece = Piece { run, side, len: available.min(self.needs(taker)), taker };
                    let rank = self.rank(&piece);
                    if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                        best = Some((rank, piece));
                    }
                }
            }
        }
        best.map(|(_, piece)| piece)
    }

    fn needs(&self, node: u32) -> u32 {
        self.quota.takes[node as usize]
    }

    fn available(&self, run: usize) -> u32 {
        let Run { len, owner } = self.runs[run];
        owner.map_or(len, |owner| len.min(self.quota.gives[owner as usize]))
    }

    fn at(&self, run: usize, side: Side) -> Option<usize> {
        let at = match side {
            Side::Left => run.checked_sub(1)?,
            Side::Right => run + 1,
        };
        (at < self.runs.len()).then_some(at)
    }

    fn neighbour(&self, run: usize, side: Side) -> Option<u32> {
        self.at(run, side).and_then(|at| self.runs[at].owner)
    }

    /// Lower is better: ranges added; then leftovers that cost ranges later; then taste.
    fn rank(&self, piece: &Piece) -> Rank {
        let Run { len, owner } = self.runs[piece.run];
        let touches = |side| i32::from(self.neighbour(piece.run, side) == Some(piece.taker));
        let added = match piece.len == len {
            true => i32::from(owner.is_none()) - touches(Side::Left) - touches(Side::Right),
            false => 1 - touches(piece.side),
        };
        let unfinished = i32::from(piece.len < self.available(piece.run))
            + i32::from(piece.len < self.needs(piece.taker))
            - i32::from(added > 0 && self.gives_beside(piece));
        let taste = match self.taste {
            Taste::Leftmost => piece.run as i64,
            Taste::Largest => -i64::from(piece.len),
            Taste::Rightmost => -(piece.run as i64),
        };
        (added, unfinished, taste, piece.run, piece.side == Side::Right)
    }

    /// Whether the next piece could come from the run beside this one.
    fn gives_beside(&self, piece: &Piece) -> bool {
        self.at(piece.run, piece.side).is_some_and(|run| self.available(run) > 0)
    }

    fn cut(&mut self, piece: Piece) {
        let owner = self.runs[piece.run].owner;
        self.quota.takes[piece.taker as usize] -= piece.len;
        if let Some(owner) = owner {
            self.quota.gives[owner as usize] -= piece.len;
        }
        let given = Run { len: piece.len, owner: Some(piece.taker) };
        self.runs[piece.run].len -= piece.len;
        let at = piece.run + usize::from(piece.side == Side::Right);
        self.runs.insert(at, given);
        self.runs.retain(|run| run.len > 0);
        self.runs.dedup_by(|next, before| {
            let same = next.owner == before.owner;
            before.len += if same { next.len } else { 0 };
            same
        });
    }
}

type Rank = (i32, i32, i64, usize, bool);

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges of the best layout that moves no more and is as fair, by exhaustive search.
    fn exhaustive(slots: &[Option<u32>], fair: &[(u32, u32)], moved: u32) -> usize {
        let mut best = usize::MAX;
        let mut owners = vec![0u32; slots.len()];
        loop {
            let changed = owners.iter().zip(slots).filter(|(now, was)| Some(**now) != **was).count() as u32;
            let count = |node: usize| owners.iter().filter(|&&owner| owner as usize == node).count() as u32;
            let is_fair = |(node, &(low, high)): (usize, &(u32, u32))| (low..=high).contains(&count(node));
            if changed <= moved && fair.iter().enumerate().all(is_fair) {
                best = best.min(owners.chunk_by(|a, b| a == b).count());
            }
            let Some(at) = owners.iter().position(|&owner| owner as usize + 1 < fair.len()) else {
                return best;
            };
            owners[..at].fill(0);
            owners[at] += 1;
        }
    }

    #[test]
    fn small_cases_are_within_one_range_of_the_best_there_is() {
        let (mut cases, mut exact) = (0, 0);
        for seed in 0..300u64 {
            let nodes = 2 + (mix::mix(seed) % 2) as u32;
            let len = 6 + (mix::mix(seed + 1000) % 4) as u32;
            let part = 1 + (mix::mix(seed + 2000) % 3) as u32;
            // Stretches of one owner, some without one, so that cuts and whole ranges both matter.
            let owner = |slot: u32| (mix::pair(seed, u64::from(slot / part)) % u64::from(nodes + 1)) as u32;
            let slots: Vec<Option<u32>> =
                (0..len).map(|slot| Some(owner(slot)).filter(|&o| o < nodes)).collect();
            let runs: Vec<Run> = slots
                .chunk_by(|a, b| a == b)
                .map(|run| Run { len: run.len() as u32, owner: run[0] })
                .collect();
            let fair = vec![(len / nodes, len.div_ceil(nodes)); nodes as usize];
            let quota = Quota::new(&runs, &fair);
            let ours = fewest_ranges(&runs, &fair).len();
            let best = exhaustive(&slots, &fair, quota.moved());
            assert!(
                (best..=best + 1).contains(&ours),
                "seed {seed}: {ours} ranges where {best} are possible"
            );
            cases += 1;
            exact += u32::from(ours == best);
        }
        assert!(exact * 10 >= cases * 9, "{exact} of {cases} at the best");
        println!("{exact} of {cases} at the best");
    }
}
