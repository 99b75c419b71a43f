//! How is a time written? RFC 3339 with as many digits of the second as it has, and in the offset that it came with.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use capstan_meta::clock;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment that a record names. A value that is written back keeps its offset, so it stays the same text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Moment {
    at: Timestamp,
    offset: Offset,
}

/// A text that is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a time; write it as 2018-11-02T08:23:49.907839312Z")]
pub struct InvalidMoment(String);

impl Moment {
    /// A moment by its distance from 1970; the last one that a calendar holds if it is later than that.
    #[must_use]
    pub fn since_epoch(passed: Duration) -> Moment {
        let nanos = i128::try_from(passed.as_nanos()).unwrap_or(i128::MAX);
        Moment { at: Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX), offset: Offset::UTC }
    }

    /// A moment in whole seconds since 1970.
    #[must_use]
    pub fn from_unix(seconds: u64) -> Moment {
        Moment::since_epoch(Duration::from_secs(seconds))
    }

    /// This moment, by the wall clock.
    #[must_use]
    pub fn now() -> Moment {
        Moment::since_epoch(clock::since_epoch())
    }

    /// How long after 1970 it is; zero for what was before.
    #[must_use]
    pub fn as_epoch(self) -> Duration {
        let (seconds, nanos) = (self.at.as_second(), self.at.subsec_nanosecond());
        match (u64::try_from(seconds), u32::try_from(nanos)) {
            (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos),
            (Err(_), _) | (_, Err(_)) => Duration::ZERO,
        }
    }

    /// How long ago it was at another moment; zero if it was not yet.
    #[must_use]
    pub fn elapsed_at(self, now: Moment) -> Duration {
        now.as_epoch().saturating_sub(self.as_epoch())
    }

    /// The moment so much later.
    #[must_use]
    pub fn plus(self, wait: Duration) -> Moment {
        let later = Moment::since_epoch(self.as_epoch().saturating_add(wait));
        Moment { offset: self.offset, ..later }
    }

    /// The point in time, for calendars.
    #[must_use]
    pub fn timestamp(self) -> Timestamp {
        self.at
    }

    /// In seconds, as the notifications show it.
    #[must_use]
    pub fn to_seconds_text(self) -> String {
        let text = self.to_string();
        match text.split_once('.') {
            None => text,
            Some((seconds, rest)) => {
                let zone = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
                format!("{seconds}{zone}")
            }
        }
    }
}

/// What Go calls the zero time.
impl Default for Moment {
    fn default() -> Moment {
        let at = Offset::UTC.to_timestamp(DateTime::constant(1, 1, 1, 0, 0, 0, 0)).unwrap_or(Timestamp::MIN);
        Moment { at, offset: Offset::UTC }
    }
}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Moment) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Moment) -> std::cmp::Ordering {
        self.at.cmp(&other.at).then(self.offset.cmp(&other.offset))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local = self.offset.to_datetime(self.at);
        let (date, time) = (local.date(), local.time());
        write!(f, "{:04}-{:02}-{:02}", date.year(), date.month(), date.day())?;
        write!(f, "T{:02}:{:02}:{:02}", time.hour(), time.minute(), time.second())?;
        let fraction = format!("{:09}", time.subsec_nanosecond());
        let digits = fraction.trim_end_matches('0');
        if !digits.is_empty() {
            write!(f, ".{digits}")?;
        }
        match self.offset.seconds() / 60 {
            0 => f.write_str("Z"),
            minutes => {
                let sign = if minutes < 0 { '-' } else { '+' };
                write!(f, "{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
            }
        }
    }
}

impl FromStr for Moment {
    type Err = InvalidMoment;

    fn from_str(text: &str) -> Result<Moment, InvalidMoment> {
        parse(text).ok_or_else(|| InvalidMoment(text.chars().take(64).collect()))
    }
}

/// RFC 3339 as Go reads it: a capital T, no blanks, an offset with a colon.
fn parse(text: &str) -> Option<Moment> {
    let (date_time, offset) = split_offset(text)?;
    let (seconds, fraction) =
        date_time.split_once('.').map_or((date_time, ""), |(whole, part)| (whole, part));
    let shape = seconds.len() == 19
        && seconds.char_indices().all(|(at, letter)| match at {
            4 | 7 => letter == '-',
            10 => letter == 'T',
            13 | 16 => letter == ':',
            _ => letter.is_ascii_digit(),
        });
    let part = fraction.len() <= 9 && fraction.chars().all(|digit| digit.is_ascii_digit());
    if !shape || !part || date_time.ends_with('.') {
        return None;
    }
    let number = |from: usize, to: usize| seconds.get(from..to)?.parse::<i16>().ok();
    let small = |from: usize| i8::try_from(number(from, from + 2)?).ok();
    let nanos = format!("{fraction:0<9}").parse().ok()?;
    let local = DateTime::new(number(0, 4)?, small(5)?, small(8)?, small(11)?, small(14)?, small(17)?, nanos);
    Some(Moment { at: offset.to_timestamp(local.ok()?).ok()?, offset })
}

fn split_offset(text: &str) -> Option<(&str, Offset)> {
    if let Some(date_time) = text.strip_suffix('Z') {
        return Some((date_time, Offset::UTC));
    }
    let at = text.len().checked_sub(6)?;
    let (date_time, zone) = (text.get(..at)?, text.get(at..)?);
    let sign = match zone.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let whole =
        |text: &str| text.chars().all(|digit| digit.is_ascii_digit()).then(|| text.parse::<i32>().ok());
    let (hours, minutes) = (whole(hours)??, whole(minutes)??);
    let seconds = sign * (hours * 3600 + minutes * 60);
    (hours < 24 && minutes < 60)
        .then(|| Offset::from_seconds(seconds).ok())?
        .map(|offset| (date_time, offset))
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Moment, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_they_were_read() {
        for text in [
            "2018-11-02T08:23:49.907839312Z",
            "2018-11-02T08:23:49.9Z",
            "2018-11-02T08:23:49Z",
            "0001-01-01T00:00:00Z",
            "2018-11-02T17:23:49.9+09:00",
            "2018-11-02T03:53:49-04:30",
        ] {
            assert_eq!(text.parse::<Moment>().unwrap().to_string(), text);
        }
        assert_eq!(Moment::default().to_string(), "0001-01-01T00:00:00Z");
        let nanos = "2018-11-02T08:23:49.900000000Z".parse::<Moment>().unwrap();
        assert_eq!(nanos.to_string(), "2018-11-02T08:23:49.9Z");
        assert_eq!(nanos.to_seconds_text(), "2018-11-02T08:23:49Z");
        assert_eq!(Moment::from_unix(1).as_epoch(), Duration::from_secs(1));
        let far: Moment = "2999-01-01T00:00:00.5Z".parse().unwrap();
        assert_eq!(Moment::since_epoch(far.as_epoch()), far, "further away than 64 bits of nanoseconds");
        assert_eq!(Moment::default().as_epoch(), Duration::ZERO);
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for text in [
            "2018-11-02 08:23:49Z",
            "2018-11-02t08:23:49Z",
            "2018-11-02T08:23:49",
            "2018-11-02T08:23:49.Z",
            "2018-13-02T08:23:49Z",
            "2018-11-02T08:23:49+0900",
            "2018-11-02T08:23:49.1234567890Z",
            "",
            "é018-11-02T08:23:49Z",
            "2018-11-02T08:23:49+é1:00",
        ] {
            assert!(text.parse::<Moment>().is_err(), "{text}");
        }
    }
}
