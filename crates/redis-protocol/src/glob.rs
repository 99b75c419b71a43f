//! Does a text match a pattern? Redis's patterns: `*`, `?`, `[a-c]`, `[^a]` and a backslash.

/// Whether the whole text matches. Takes at most O(pattern length × text length) steps.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to resume if the part after the last star does not match here.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
            continue;
        }
        let one =
            pattern.get(p..).filter(|rest| !rest.is_empty()).map(|rest| one(rest, text[t], ignore_case));
        match (one, retry) {
            (Some((true, len)), _) => {
                p += len;
                t += 1;
            }
            (_, Some((after_star, from))) => {
                (p, t) = (after_star, from + 1);
                retry = Some((after_star, from + 1));
            }
            (_, None) => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Whether the first element of a pattern matches a byte, and the length of the element.
fn one(pattern: &[u8], byte: u8, ignore_case: bool) -> (bool, usize) {
    let fold = |byte: u8| if ignore_case { byte.to_ascii_lowercase() } else { byte };
    match pattern {
        [b'?', ..] => (true, 1),
        [b'[', class @ ..] => {
            let (hit, len) = class_holds(class, fold(byte), fold);
            (hit, len + 1)
        }
        [b'\\', escaped, ..] => (fold(*escaped) == fold(byte), 2),
        [plain, ..] => (fold(*plain) == fold(byte), 1),
        [] => (false, 0),
    }
}

/// Whether a bracket class contains a byte; an unclosed class extends to the end of the pattern.
fn class_holds(class: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> (bool, usize) {
    let negated = class.first() == Some(&b'^');
    let mut at = usize::from(negated);
    let mut hit = false;
    loop {
        match &class[at.min(class.len())..] {
            [] => return (hit != negated, class.len()),
            [b']', ..] => return (hit != negated, at + 1),
            [b'\\', escaped, ..] => {
                hit |= fold(*escaped) == byte;
                at += 2;
            }
            [low, b'-', high, ..] => {
                let (low, high) = (fold(*low).min(fold(*high)), fold(*low).max(fold(*high)));
                hit |= (low..=high).contains(&byte);
                at += 3;
            }
            [plain, ..] => {
                hit |= fold(*plain) == byte;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_redis() {
        for (pattern, text, hit) in [
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("xr*", "xread", true),
            ("xr*", "axread", false),
            ("*a*b*c", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxcxxb", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[a", "a", true),
            ("[\\]]", "]", true),
            ("a**", "a", true),
            ("MAX*", "maxmemory", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), false), hit, "{pattern} {text}");
        }
        assert!(matches(b"MAX[A-Z]*", b"maxmemory", true));
    }

    #[test]
    fn a_nasty_pattern_takes_no_time() {
        let (pattern, text) = (b"a*".repeat(50), b"a".repeat(2000));
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text, false));
    }
}
