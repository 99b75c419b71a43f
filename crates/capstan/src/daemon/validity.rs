//! When does a certificate end? The one field of X.509 that Capstan reads by itself; everything else is rustls' business.
//! Pure; input that is not a certificate is an error.

use anyhow::{Context as _, Result, ensure};
use jiff::civil::DateTime;
use jiff::fmt::strtime::BrokenDownTime;

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Two digits of a year in UTCTime from here on mean 19.., below it 20.. (RFC 5280, 4.1.2.5.1).
const PIVOT: u32 = 50;

/// The end of a certificate in DER, in seconds since 1970.
pub(super) fn not_after(certificate: &[u8]) -> Result<i64> {
    let (outer, _) = expect(certificate, SEQUENCE)?;
    let (mut body, _) = expect(outer, SEQUENCE)?;
    if body.first() == Some(&VERSION) {
        body = element(body)?.2;
    }
    // Serial number, algorithm, issuer.
    for _ in 0..3 {
        body = element(body)?.2;
    }
    let (validity, _) = expect(body, SEQUENCE)?;
    let after = element(validity)?.2;
    let (tag, time, _) = element(after)?;
    seconds(tag, std::str::from_utf8(time)?)
}

/// The content of the next element, which has this tag, and what is behind it.
fn expect(bytes: &[u8], wanted: u8) -> Result<(&[u8], &[u8])> {
    let (tag, content, rest) = element(bytes)?;
    ensure!(tag == wanted, "not a certificate: tag {tag:#x} instead of {wanted:#x}");
    Ok((content, rest))
}

/// The next element: its tag, its content, and what is behind it.
fn element(bytes: &[u8]) -> Result<(u8, &[u8], &[u8])> {
    const CUT: &str = "not a certificate: it is cut off";
    let (tag, rest) = bytes.split_first().context(CUT)?;
    let (first, rest) = rest.split_first().context(CUT)?;
    let (length, rest) = match first {
        short @ 0..=0x7f => (usize::from(*short), rest),
        long @ 0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(long & 0x7f)).context(CUT)?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        other => anyhow::bail!("not a certificate: length {other:#x}"),
    };
    let (content, rest) = rest.split_at_checked(length).context(CUT)?;
    Ok((*tag, content, rest))
}

fn seconds(tag: u8, text: &str) -> Result<i64> {
    let full = match tag {
        UTC_TIME => {
            let year: u32 = text.get(..2).context("a time without a year")?.parse()?;
            format!("{}{text}", if year < PIVOT { "20" } else { "19" })
        }
        GENERALIZED_TIME => text.to_owned(),
        other => anyhow::bail!("not a time: tag {other:#x}"),
    };
    let time: DateTime = BrokenDownTime::parse("%Y%m%d%H%M%SZ", &full)?.to_datetime()?;
    Ok(time.to_zoned(jiff::tz::TimeZone::UTC)?.timestamp().as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate(year: i32) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, 2, 3);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn both_forms_of_time_are_read() {
        assert_eq!(not_after(&certificate(2001)).unwrap(), 981_158_400);
        assert_eq!(not_after(&certificate(2049)).unwrap(), 2_495_923_200);
        assert_eq!(
            not_after(&certificate(2060)).unwrap(),
            2_842_992_000,
            "behind 2049 it is GeneralizedTime"
        );
        assert_eq!(seconds(UTC_TIME, "500101000000Z").unwrap(), -631_152_000);
    }

    #[test]
    fn what_is_no_certificate_is_refused_and_never_panics() {
        let whole = certificate(2001);
        for end in 0..200 {
            assert!(not_after(&whole[..end]).is_err(), "{end}");
        }
        for tag in 0..=u8::MAX {
            drop(not_after(&[tag, 0x84, 0xff, 0xff, 0xff, 0xff, 0]));
            assert!(not_after(&[0x30, tag]).is_err());
        }
        assert!(seconds(UTC_TIME, "x").is_err() && seconds(GENERALIZED_TIME, "20019999").is_err());
    }
}
