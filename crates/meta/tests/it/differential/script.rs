//! What a random script may ask. Revisions count from where the script begins; keys and leases are few, so that they
//! meet often.

use capstan_meta::{Detail, Relation, SortOrder, SortTarget};
use proptest::collection::vec;
use proptest::prelude::*;

/// The keys of all scripts.
pub const KEYS: [&str; 5] = ["a", "ab", "b", "c", "d"];
/// Leases that a script uses.
pub const LEASES: usize = 3;

/// A script: steps in order, then watches of what they did.
#[derive(Clone, Debug)]
pub struct Script {
    pub steps: Vec<Step>,
    /// Opened before the step of this number, from then on.
    pub live: Vec<(usize, WatchSpec)>,
    /// Opened behind the last step, from a revision of the past.
    pub past: Vec<(i64, WatchSpec)>,
}

#[derive(Clone, Debug)]
pub enum Step {
    Do(Act),
    Grant(usize),
    Revoke(usize),
    Info(usize),
    KeepAlive(usize),
    Compact(i64),
}

/// What can stand alone or in a transaction.
#[derive(Clone, Debug)]
pub enum Act {
    Put { key: usize, value: u8, lease: Option<usize>, prev_kv: bool, ignore_value: bool, ignore_lease: bool },
    Delete { keys: Keys, prev_kv: bool },
    Range(RangeSpec),
    Txn { compares: Vec<CompareSpec>, success: Vec<Act>, failure: Vec<Act> },
}

#[derive(Clone, Debug)]
pub struct RangeSpec {
    pub keys: Keys,
    pub at: Option<i64>,
    pub limit: usize,
    pub sort_by: SortTarget,
    pub order: SortOrder,
    pub detail: Detail,
    /// min and max modified, min and max created.
    pub filters: [Option<i64>; 4],
}

#[derive(Clone, Debug)]
pub struct CompareSpec {
    pub keys: Keys,
    pub relation: Relation,
    pub target: Target,
}

#[derive(Clone, Debug)]
pub enum Target {
    Version(i64),
    Create(Option<i64>),
    Mod(Option<i64>),
    Value(u8),
    Lease(Option<usize>),
}

#[derive(Clone, Debug)]
pub enum Keys {
    One(usize),
    Prefix(usize),
    From(usize),
    Span(usize, usize),
    All,
}

/// A watch of a range that holds at least one of the keys.
#[derive(Clone, Debug)]
pub struct WatchSpec {
    pub keys: Keys,
    pub prev_kv: bool,
    pub no_put: bool,
    pub no_delete: bool,
}

fn key() -> impl Strategy<Value = usize> {
    0..KEYS.len()
}

fn keys() -> impl Strategy<Value = Keys> {
    prop_oneof![
        4 => key().prop_map(Keys::One),
        2 => key().prop_map(Keys::Prefix),
        1 => key().prop_map(Keys::From),
        2 => (key(), key()).prop_map(|(from, to)| Keys::Span(from, to)),
        1 => Just(Keys::All),
    ]
}

/// Around the revisions that a script makes: some compacted, some in the future.
fn revision() -> impl Strategy<Value = i64> {
    -1_i64..12
}

fn put() -> impl Strategy<Value = Act> {
    let flag = || prop::bool::weighted(0.1);
    let lease = prop::option::weighted(0.3, 0..LEASES);
    (key(), 0_u8..4, lease, any::<bool>(), flag(), flag()).prop_map(
        |(key, value, lease, prev_kv, ignore_value, ignore_lease)| {
            // Mostly legal: what is ignored is not given.
            let value = if ignore_value && value < 3 { 0 } else { value };
            let lease = if ignore_lease { lease.filter(|lease| *lease == 0) } else { lease };
            Act::Put { key, value, lease, prev_kv, ignore_value, ignore_lease }
        },
    )
}

fn delete() -> impl Strategy<Value = Act> {
    (keys(), any::<bool>()).prop_map(|(keys, prev_kv)| Act::Delete { keys, prev_kv })
}

fn range() -> impl Strategy<Value = Act> {
    let sort_by = prop_oneof![
        4 => Just(SortTarget::Key),
        1 => Just(SortTarget::Version),
        1 => Just(SortTarget::CreateRevision),
        1 => Just(SortTarget::ModRevision),
        1 => Just(SortTarget::Value),
    ];
    let order = prop_oneof![Just(SortOrder::None), Just(SortOrder::Ascend), Just(SortOrder::Descend)];
    let detail =
        prop_oneof![4 => Just(Detail::Whole), 1 => Just(Detail::KeysOnly), 1 => Just(Detail::CountOnly)];
    let filter = || prop::option::weighted(0.15, revision());
    let filters = [filter(), filter(), filter(), filter()];
    (keys(), prop::option::weighted(0.4, revision()), 0_usize..5, sort_by, order, detail, filters).prop_map(
        |(keys, at, limit, sort_by, order, detail, filters)| {
            // Equal ones have no order, so that a limit would cut anywhere among them.
            let limit = if sort_by == SortTarget::Key { limit } else { 0 };
            Act::Range(RangeSpec { keys, at, limit, sort_by, order, detail, filters })
        },
    )
}

fn compare() -> impl Strategy<Value = CompareSpec> {
    let relation = prop_oneof![
        Just(Relation::Equal),
        Just(Relation::Greater),
        Just(Relation::Less),
        Just(Relation::NotEqual)
    ];
    let never_or = || prop::option::weighted(0.6, revision());
    let target = prop_oneof![
        (0_i64..4).prop_map(Target::Version),
        never_or().prop_map(Target::Create),
        never_or().prop_map(Target::Mod),
        (0_u8..4).prop_map(Target::Value),
        prop::option::of(0..LEASES).prop_map(Target::Lease),
    ];
    (keys(), relation, target).prop_map(|(keys, relation, target)| CompareSpec { keys, relation, target })
}

fn act() -> impl Strategy<Value = Act> {
    let simple = || prop_oneof![5 => put(), 2 => delete(), 3 => range()];
    let txn = |inner: BoxedStrategy<Act>| {
        let acts = || vec(inner.clone(), 0..4);
        (vec(compare(), 0..3), acts(), acts()).prop_map(|(compares, success, failure)| Act::Txn {
            compares,
            success,
            failure,
        })
    };
    simple().boxed().prop_recursive(2, 12, 4, move |inner| prop_oneof![3 => simple(), 2 => txn(inner)])
}

fn watch() -> impl Strategy<Value = WatchSpec> {
    let keys = prop_oneof![
        key().prop_map(Keys::One),
        key().prop_map(Keys::Prefix),
        key().prop_map(Keys::From),
        (0..KEYS.len() - 1, 1..KEYS.len())
            .prop_map(|(from, more)| { Keys::Span(from, (from + more).min(KEYS.len() - 1)) }),
        Just(Keys::All),
    ];
    (keys, any::<bool>(), 0..4).prop_map(|(keys, prev_kv, filter)| WatchSpec {
        keys,
        prev_kv,
        no_put: filter == 1,
        no_delete: filter == 2,
    })
}

pub fn scripts() -> impl Strategy<Value = Script> {
    let lease = || 0..LEASES;
    let step = prop_oneof![
        12 => act().prop_map(Step::Do),
        2 => lease().prop_map(Step::Grant),
        1 => lease().prop_map(Step::Revoke),
        1 => lease().prop_map(Step::Info),
        1 => lease().prop_map(Step::KeepAlive),
        1 => revision().prop_map(Step::Compact),
    ];
    let live = vec((0_usize..16, watch()), 0..2);
    let past = vec((revision(), watch()), 0..3);
    (vec(step, 1..20), live, past).prop_map(|(steps, live, past)| Script { steps, live, past })
}
