//! What happened in the worlds of a test run.

/// What happened, to verify that the seeds cover everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) writes: u64,
    pub(super) refused: u64,
    pub(super) reads: u64,
    pub(super) elections: u64,
    pub(super) copies: u64,
    pub(super) cut_off: u64,
    pub(super) power_cuts: u64,
    pub(super) kills: u64,
    pub(super) shortened: u64,
    pub(super) retired: u64,
    pub(super) joined: u64,
    pub(super) jobs: u64,
}

impl Seen {
    fn counts(&self) -> [u64; 12] {
        let Seen { writes, refused, reads, elections, copies, cut_off, power_cuts, kills, .. } = *self;
        let Seen { shortened, retired, joined, jobs, .. } = *self;
        [
            writes, refused, reads, elections, copies, cut_off, power_cuts, kills, shortened, retired,
            joined, jobs,
        ]
    }

    pub(super) fn add(&mut self, other: &Seen) {
        let sum: Vec<u64> = self.counts().iter().zip(other.counts()).map(|(a, b)| a + b).collect();
        let [
            writes,
            refused,
            reads,
            elections,
            copies,
            cut_off,
            power_cuts,
            kills,
            shortened,
            retired,
            joined,
            jobs,
        ] = sum.try_into().unwrap();
        *self = Seen {
            writes,
            refused,
            reads,
            elections,
            copies,
            cut_off,
            power_cuts,
            kills,
            shortened,
            retired,
            joined,
            jobs,
        };
    }

    pub(super) fn assert_everything_happened(&self) {
        assert!(self.counts().iter().all(|count| *count > 0), "something never happened: {self:?}");
    }
}
