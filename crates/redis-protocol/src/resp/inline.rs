//! What are the words of an inline command? Separated by spaces, with quotes and escapes, as typed in telnet.

/// Splits a line into words; `None` if a quote is not closed, or closed in the middle of a word.
pub(super) fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_ascii_start();
    while !rest.is_empty() {
        let (word, after) = word(rest)?;
        words.push(word);
        rest = after.trim_ascii_start();
    }
    Some(words)
}

/// One word, and the rest of the line.
fn word(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        match rest {
            [] => return Some((word, rest)),
            [blank, ..] if blank.is_ascii_whitespace() => return Some((word, rest)),
            [b'"', after @ ..] => rest = closed(double_quoted(after, &mut word)?)?,
            [b'\'', after @ ..] => rest = closed(single_quoted(after, &mut word)?)?,
            [byte, after @ ..] => {
                word.push(*byte);
                rest = after;
            }
        }
    }
}

/// A closing quote ends the word.
fn closed(after: &[u8]) -> Option<&[u8]> {
    after.first().is_none_or(u8::is_ascii_whitespace).then_some(after)
}

fn double_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'"', after @ ..] => return Some(after),
            [b'\\', b'x', high, low, after @ ..] if hex(*high, *low).is_some() => {
                word.extend(hex(*high, *low));
                after
            }
            [b'\\', escaped, after @ ..] => {
                word.push(unescaped(*escaped));
                after
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\'', after @ ..] => return Some(after),
            [b'\\', b'\'', after @ ..] => {
                word.push(b'\'');
                after
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
        }
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Option<Vec<String>> {
        let text = |word| String::from_utf8(word).unwrap();
        words(line.as_bytes()).map(|words| words.into_iter().map(text).collect())
    }

    #[test]
    fn words_are_quoted_as_in_redis() {
        assert_eq!(split("  ").unwrap(), [""; 0]);
        assert_eq!(split(" SET  k\tv ").unwrap(), ["SET", "k", "v"]);
        assert_eq!(split(r#"ECHO "a\x41\n""#).unwrap(), ["ECHO", "aA\n"]);
        assert_eq!(split(r#"ECHO "\q\x4g""#).unwrap(), ["ECHO", "qx4g"]);
        assert_eq!(split(r"ECHO 'it\'s' ''").unwrap(), ["ECHO", "it's", ""]);
        assert_eq!(split(r#"a"b c" d"#).unwrap(), ["ab c", "d"]);
    }

    #[test]
    fn open_quotes_are_refused() {
        for bad in [r#""a"#, "'a", "'a'b", r#""a"b"#, r#""a\"#] {
            assert_eq!(split(bad), None, "{bad}");
        }
    }
}
