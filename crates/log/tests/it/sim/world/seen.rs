//! What happened in a world.

/// Counts what happened, to verify that the seeds cover all faults.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub(super) events: u64,
    pub(super) committed: u64,
    pub(super) acknowledged: u64,
    pub(super) elections: u64,
    pub(super) shrinks: u64,
    pub(super) grows: u64,
    pub(super) cuts: u64,
    pub(super) resets: u64,
    pub(super) crashes: u64,
    pub(super) deposed: u64,
    pub(super) no_lease: u64,
    pub(super) losses: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.events += other.events;
        self.committed += other.committed;
        self.acknowledged += other.acknowledged;
        self.elections += other.elections;
        self.shrinks += other.shrinks;
        self.grows += other.grows;
        self.cuts += other.cuts;
        self.resets += other.resets;
        self.crashes += other.crashes;
        self.deposed += other.deposed;
        self.no_lease += other.no_lease;
        self.losses += other.losses;
    }

    pub fn assert_everything_happened(&self) {
        let counts = [
            self.committed,
            self.acknowledged,
            self.elections,
            self.shrinks,
            self.grows,
            self.cuts,
            self.resets,
            self.crashes,
            self.deposed,
            self.no_lease,
            self.losses,
        ];
        assert!(counts.iter().all(|count| *count > 0), "something never happened: {self:?}");
    }
}
