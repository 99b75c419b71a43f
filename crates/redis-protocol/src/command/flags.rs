//! The terms of `COMMAND`: flags, categories and kinds of key access, as bits.

/// No flag, no category.
pub(super) const NONE: u32 = 0;

/// Declares bits with Redis's names for them, in the order in which Redis prints them.
macro_rules! bits {
    ($words:ident: $($name:ident = $word:literal),+ $(,)?) => {
        bits!(@each 0, $($name)+);
        pub(super) const $words: &[(u32, &str)] = &[$(($name, $word)),+];
    };
    (@each $bit:expr, $name:ident $($rest:ident)*) => {
        pub(super) const $name: u32 = 1 << ($bit);
        bits!(@each $bit + 1, $($rest)*);
    };
    (@each $bit:expr,) => {};
}

bits! { FLAG_WORDS:
    WRITE = "write",
    READONLY = "readonly",
    DENYOOM = "denyoom",
    ADMIN = "admin",
    PUBSUB = "pubsub",
    NOSCRIPT = "noscript",
    BLOCKING = "blocking",
    LOADING = "loading",
    STALE = "stale",
    SKIP_MONITOR = "skip_monitor",
    SKIP_SLOWLOG = "skip_slowlog",
    ASKING = "asking",
    FAST = "fast",
    NO_AUTH = "no_auth",
    NO_ASYNC_LOADING = "no_async_loading",
    NO_MULTI = "no_multi",
    NO_MANDATORY_KEYS = "no_mandatory_keys",
    MOVABLE_KEYS = "movablekeys",
    ALLOW_BUSY = "allow_busy",
}

bits! { CATEGORY_WORDS:
    KEYSPACE = "@keyspace",
    READ = "@read",
    WRITING = "@write",
    SET = "@set",
    SORTEDSET = "@sortedset",
    LIST = "@list",
    HASH = "@hash",
    STRING = "@string",
    BITMAP = "@bitmap",
    HYPERLOGLOG = "@hyperloglog",
    GEO = "@geo",
    STREAM = "@stream",
    CHANNELS = "@pubsub",
    ADMINISTRATION = "@admin",
    QUICK = "@fast",
    SLOW = "@slow",
    WAITING = "@blocking",
    DANGEROUS = "@dangerous",
    CONNECTION = "@connection",
    TRANSACTION = "@transaction",
    SCRIPTING = "@scripting",
}

bits! { ACCESS_WORDS:
    RW = "RW",
    RO = "RO",
    OW = "OW",
    RM = "RM",
    ACCESS = "access",
    UPDATE = "update",
    INSERT = "insert",
    DELETE = "delete",
    NOT_KEY = "not_key",
    INCOMPLETE = "incomplete",
    VARIABLE = "variable_flags",
}

/// The names of the bits that are set.
pub(super) fn words(
    of: &'static [(u32, &'static str)],
    bits: u32,
) -> impl Iterator<Item = &'static str> + Clone {
    of.iter().filter(move |(bit, _)| bits & bit != 0).map(|(_, word)| *word)
}

/// The ACL categories of a command: its own, and those implied by its flags.
pub(super) const fn categories(flags: u32, own: u32) -> u32 {
    let mut all = own;
    if flags & WRITE != 0 {
        all |= WRITING;
    }
    if flags & READONLY != 0 && own & SCRIPTING == 0 {
        all |= READ;
    }
    if flags & ADMIN != 0 {
        all |= ADMINISTRATION | DANGEROUS;
    }
    if flags & PUBSUB != 0 {
        all |= CHANNELS;
    }
    if flags & BLOCKING != 0 {
        all |= WAITING;
    }
    all | if flags & FAST != 0 { QUICK } else { SLOW }
}
