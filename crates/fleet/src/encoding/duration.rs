//! How are durations written? In values as decimal nanoseconds, by people as Go writes them: `10m`, `1.5s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use capstan_meta::record::{Record, RecordFormat, Value};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in a value: decimal nanoseconds, `600000000000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanos(pub i64);

impl Nanos {
    /// As long as a duration; the longest that can be written if it is longer.
    #[must_use]
    pub fn of(duration: Duration) -> Nanos {
        Nanos(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
    }

    /// The duration, if it is one that can be waited for: more than nothing.
    #[must_use]
    pub fn positive(self) -> Option<Duration> {
        u64::try_from(self.0).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    }
}

impl Record for Nanos {
    const FORMAT: RecordFormat = RecordFormat::Text;

    /// Exactly what Go's integer parser takes: no blanks, no exponent, no underscore, a sign if one likes.
    fn decode(value: &[u8]) -> Result<Nanos, String> {
        let text = std::str::from_utf8(value).map_err(|error| error.to_string())?;
        text.parse().map(Nanos).map_err(|error| format!("{text:?} is not a number of nanoseconds: {error}"))
    }

    fn encode(&self) -> Result<Value, String> {
        Ok(Value::from(self.0.to_string()))
    }
}

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a duration; write a number with its unit, such as 10m, 1.5s or 1h30m")]
pub struct InvalidDuration(pub String);

/// The units that Go knows, with their nanoseconds.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration as Go's command line does: `10m`, `1.5s`, `1h30m`, `0`; not `10`, not `1d`, nothing negative.
pub fn parse_go_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration(text.chars().take(64).collect());
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut nanos) = (unsigned, 0_u64);
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let (part, behind) = one_part(rest).ok_or_else(invalid)?;
        nanos = nanos.checked_add(part).filter(|sum| i64::try_from(*sum).is_ok()).ok_or_else(invalid)?;
        rest = behind;
    }
    Ok(Duration::from_nanos(nanos))
}

/// The nanoseconds of the first number with its unit, and what stands behind it.
fn one_part(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, behind) = text.split_at(end);
    let unit_end =
        behind.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(behind.len());
    let (unit, rest) = behind.split_at(unit_end);
    let (_, per_unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    // More than fifteen digits behind the point are below a nanosecond even of an hour.
    let digits: String = fraction.chars().take(15).collect();
    let scale = 10_u128.pow(u32::try_from(digits.len()).ok()?);
    let part =
        if digits.is_empty() { 0 } else { digits.parse::<u128>().ok()? * u128::from(*per_unit) / scale };
    Some((whole.checked_mul(*per_unit)?.checked_add(u64::try_from(part).ok()?)?, rest))
}

/// A duration that people write and read, in records that only Capstan has: `"1h30m"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// So many seconds.
    #[must_use]
    pub const fn secs(seconds: u64) -> Span {
        Span(Duration::from_secs(seconds))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if seconds == 0 && nanos == 0 {
            return f.write_str("0");
        }
        for (unit, amount) in [("h", seconds / 3600), ("m", seconds / 60 % 60), ("s", seconds % 60)] {
            if amount > 0 {
                write!(f, "{amount}{unit}")?;
            }
        }
        if nanos > 0 { write!(f, "{nanos}ns") } else { Ok(()) }
    }
}

impl FromStr for Span {
    type Err = InvalidDuration;

    fn from_str(text: &str) -> Result<Span, InvalidDuration> {
        parse_go_duration(text).map(Span)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_go_reads_integers() {
        assert_eq!(Nanos::of(Duration::from_secs(600)).encode().unwrap(), "600000000000");
        assert_eq!(Nanos::decode(b"+5"), Ok(Nanos(5)));
        assert_eq!(Nanos::decode(b"-5"), Ok(Nanos(-5)));
        assert_eq!(Nanos(-5).positive(), None);
        assert_eq!(Nanos(0).positive(), None);
        for wrong in ["6e11", " 5", "5 ", "0x10", "1_000", "", "9223372036854775808"] {
            assert!(Nanos::decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn people_write_durations_as_in_go() {
        let good =
            [("10m", 600_000_000_000), ("1.5s", 1_500_000_000), ("0", 0), ("1h30m", 5_400_000_000_000)];
        for (text, nanos) in good {
            assert_eq!(parse_go_duration(text).unwrap(), Duration::from_nanos(nanos), "{text}");
        }
        assert_eq!(parse_go_duration("2µs").unwrap(), Duration::from_micros(2));
        for span in [0, 59, 5_400, 90_061] {
            assert_eq!(Span::secs(span).to_string().parse(), Ok(Span::secs(span)));
        }
        for wrong in ["1d", "10", "", "s", ".s", "1..5s", "-1s", "1 s", "9999999999h", "1.5"] {
            assert!(parse_go_duration(wrong).is_err(), "{wrong}");
        }
    }
}
