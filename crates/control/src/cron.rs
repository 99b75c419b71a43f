//! Which minutes does a schedule name? Lines of five fields as in a crontab: minute, hour, day, month, weekday.
//!
//! A line names minutes. A window is open during those, and a recurring task begins in each of them: `* 22-23 * * 1-5` is open from ten to midnight on working
//! days. As in crontab, when both the day and the weekday are restricted, either is enough.

use std::fmt;
use std::str::FromStr;

use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The names that may stand for numbers.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Some numbers of one field, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    bits: u64,
    /// `*`, or steps of it: says nothing about which day.
    any: bool,
}

/// One line of five fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cron {
    text: String,
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
}

/// A line that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line:?} is not a cron line: {why}")]
pub struct InvalidCron {
    line: String,
    why: String,
}

impl Cron {
    /// Whether the minute of this moment is one of those that the line names.
    #[must_use]
    pub fn matches(&self, moment: &Zoned) -> bool {
        let has = |field: Field, number: i8| u32::try_from(number).is_ok_and(|n| field.bits >> n & 1 == 1);
        let day = has(self.day, moment.day());
        let weekday = has(self.weekday, moment.weekday().to_sunday_zero_offset());
        let date = match (self.day.any, self.weekday.any) {
            (false, false) => day || weekday,
            (true, _) | (_, true) => day && weekday,
        };
        date && has(self.minute, moment.minute())
            && has(self.hour, moment.hour())
            && has(self.month, moment.month())
    }

    /// Whether the line names the minute of this moment, in seconds since 1970, in UTC.
    #[must_use]
    pub fn matches_utc(&self, seconds: u64) -> bool {
        let moment = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        moment.is_some_and(|moment| self.matches(&moment.to_zoned(TimeZone::UTC)))
    }
}

impl FromStr for Cron {
    type Err = InvalidCron;

    fn from_str(text: &str) -> Result<Cron, InvalidCron> {
        let invalid = |why: String| InvalidCron { line: text.chars().take(128).collect(), why };
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(invalid(format!("it has {} fields instead of five", fields.len())));
        };
        let parse = |name: &str, text: &str, low, high, names: &[&str]| {
            field(text, low, high, names).ok_or_else(|| invalid(format!("its {name} is {text:?}")))
        };
        let mut weekday = parse("weekday", weekday, 0, 7, &WEEKDAYS)?;
        // Sunday is both 0 and 7.
        weekday.bits |= weekday.bits >> 7 & 1;
        Ok(Cron {
            minute: parse("minute", minute, 0, 59, &[])?,
            hour: parse("hour", hour, 0, 23, &[])?,
            day: parse("day", day, 1, 31, &[])?,
            month: parse("month", month, 1, 12, &MONTHS)?,
            weekday,
            text: fields.join(" "),
        })
    }
}

fn field(text: &str, low: u32, high: u32, names: &[&str]) -> Option<Field> {
    let mut bits = 0;
    for part in text.split(',') {
        bits |= range(part, low, high, names)?;
    }
    Some(Field { bits, any: text.starts_with('*') })
}

/// `*`, `5`, `5-10`, and each of them with `/2` behind it.
fn range(text: &str, low: u32, high: u32, names: &[&str]) -> Option<u64> {
    let (span, step) = match text.split_once('/') {
        Some((span, step)) => (span, Some(step.parse::<u32>().ok().filter(|step| *step > 0)?)),
        None => (text, None),
    };
    let number = |text: &str| {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let value = match named {
            // Months are counted from one, weekdays from zero.
            Some(at) => u32::try_from(at).ok()? + low,
            None if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok()?,
            None => return None,
        };
        (low..=high).contains(&value).then_some(value)
    };
    let (first, last) = match span.split_once('-') {
        _ if span == "*" => (low, high),
        Some((first, last)) => (number(first)?, number(last)?),
        None if step.is_some() => (number(span)?, high),
        None => (number(span)?, number(span)?),
    };
    (first <= last).then(|| {
        (first..=last).step_by(step.unwrap_or(1) as usize).fold(0, |bits, number| bits | 1_u64 << number)
    })
}

impl fmt::Display for Cron {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for Cron {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for Cron {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cron, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(line: &str, moment: &str) -> bool {
        line.parse::<Cron>().unwrap().matches(&moment.parse().unwrap())
    }

    #[test]
    fn a_line_names_minutes() {
        let monday = "2018-11-05T22:00:00+09:00[Asia/Tokyo]";
        assert!(open("* * * * *", monday));
        assert!(open("0 22 5 11 1", monday));
        assert!(open("* 22-23 * * mon-fri", monday));
        assert!(open("*/15 22 * nov *", monday));
        assert!(!open("1 22 * * *", monday));
        assert!(!open("* * * * 0,6", monday));
        assert!(open("* * * * 7", "2018-11-04T00:00:00Z[UTC]"), "sunday is also 7");
        assert!(!open("* 22 * * *", "2018-11-05T21:59:59+09:00[Asia/Tokyo]"), "the minute before");
        assert!(!open("* 22 * * *", "2018-11-05T23:00:00+09:00[Asia/Tokyo]"), "the minute behind");
    }

    #[test]
    fn a_time_in_seconds_is_one_in_utc() {
        let line: Cron = "13 22 14 11 *".parse().unwrap();
        assert!(line.matches_utc(1_700_000_000), "2023-11-14T22:13:20Z");
        assert!(!line.matches_utc(1_700_000_000 + 60));
        assert!(!line.matches_utc(u64::MAX));
    }

    #[test]
    fn a_day_or_a_weekday_is_enough_when_both_are_named() {
        assert!(open("* * 13 * 5", "2018-11-13T00:00:00Z[UTC]"));
        assert!(open("* * 13 * 5", "2018-11-16T00:00:00Z[UTC]"));
        assert!(!open("* * 13 * 5", "2018-11-15T00:00:00Z[UTC]"));
        assert!(!open("* * 13 * *", "2018-11-16T00:00:00Z[UTC]"));
    }

    #[test]
    fn a_bad_line_says_what_is_wrong() {
        for (line, why) in [
            ("* * * *", "it has 4 fields instead of five"),
            ("60 * * * *", "its minute is \"60\""),
            ("* 5-1 * * *", "its hour is \"5-1\""),
            ("* * 0 * *", "its day is \"0\""),
            ("* * * foo *", "its month is \"foo\""),
            ("* * * * */0", "its weekday is \"*/0\""),
            ("+1 * * * *", "its minute is \"+1\""),
        ] {
            assert_eq!(line.parse::<Cron>().unwrap_err().why, why, "{line}");
        }
    }
}
