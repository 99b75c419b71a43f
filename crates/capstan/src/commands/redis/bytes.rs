//! Amounts of memory with units.

/// Reads `1048576`, `512mb`, `2gb`: units of 1024, as in redis.conf.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        other => return Err(format!("`{other}` is not a unit; use kb, mb or gb")),
    };
    let number: u64 = digits.parse().map_err(|_| "write an amount such as 512mb or 2gb".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "the amount is too large".to_owned())
}

/// The formatted amount; zero is no limit.
pub(super) fn shown_bytes(bytes: u64) -> String {
    match bytes {
        0 => "no memory limit".to_owned(),
        bytes if bytes % (1 << 30) == 0 => format!("{} gb", bytes >> 30),
        bytes if bytes % (1 << 20) == 0 => format!("{} mb", bytes >> 20),
        bytes => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(bytes("512mb"), Ok(512 << 20));
        assert_eq!(bytes("2GB"), Ok(2 << 30));
        assert_eq!(bytes("7"), Ok(7));
        for wrong in ["", "mb", "2tb", "-1", "99999999999gb"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(shown_bytes(2 << 30), "2 gb");
    }
}
