//! How many hosts? A count, or a part of those that there are.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A count (`3`) or a part (`"10%"`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many.
    Count(u32),
    /// So many of a hundred; at most a hundred.
    Percent(u8),
}

/// A text that is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an amount; write a count such as 3 or a part such as \"10%\"")]
pub struct InvalidAmount(String);

impl Amount {
    /// All hosts.
    pub const ALL: Amount = Amount::Percent(100);

    /// How many of `total` that is at most: parts are rounded down, because this is for limits and budgets.
    #[must_use]
    pub fn limit_of(self, total: usize) -> usize {
        match self {
            Amount::Count(count) => count as usize,
            Amount::Percent(percent) => total * usize::from(percent) / 100,
        }
    }

    /// How many of `total` that is at least: parts are rounded up, because this is for waves.
    #[must_use]
    pub fn size_of(self, total: usize) -> usize {
        match self {
            Amount::Count(count) => (count as usize).min(total),
            Amount::Percent(percent) => (total * usize::from(percent)).div_ceil(100),
        }
    }

    /// Whether it is nothing whatever the total.
    #[must_use]
    pub fn is_zero(self) -> bool {
        match self {
            Amount::Count(count) => count == 0,
            Amount::Percent(percent) => percent == 0,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Count(count) => count.fmt(f),
            Amount::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Amount {
    type Err = InvalidAmount;

    fn from_str(text: &str) -> Result<Amount, InvalidAmount> {
        let parsed = match text.strip_suffix('%') {
            Some(percent) => percent.parse().ok().filter(|percent| *percent <= 100).map(Amount::Percent),
            None => text.parse().ok().map(Amount::Count),
        };
        parsed.ok_or_else(|| InvalidAmount(text.chars().take(64).collect()))
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Amount::Count(count) => serializer.serialize_u32(*count),
            Amount::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u32),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(count) => Ok(Amount::Count(count)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_round_down_and_waves_round_up() {
        let tenth: Amount = "10%".parse().unwrap();
        assert_eq!((tenth.limit_of(25), tenth.size_of(25)), (2, 3));
        assert_eq!((tenth.limit_of(3), tenth.size_of(3)), (0, 1));
        assert_eq!(Amount::Count(5).size_of(3), 3);
        assert_eq!(Amount::Count(5).limit_of(3), 5);
        for wrong in ["101%", "-1", "x", "", "%", "1.5"] {
            assert!(wrong.parse::<Amount>().is_err(), "{wrong}");
        }
        let both: Vec<Amount> = serde_json::from_str(r#"[1,"10%"]"#).unwrap();
        assert_eq!(both, [Amount::Count(1), tenth]);
        assert_eq!(serde_json::to_string(&both).unwrap(), r#"[1,"10%"]"#);
    }
}
