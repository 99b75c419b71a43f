//! Which error is it? The first word of an error reply, as far as a proxy decides by it.

/// The codes of errors that a proxy writes, or that it evaluates in replies of nodes and other proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// Another proxy serves the slot.
    Moved,
    /// The same command may succeed later.
    TryAgain,
    /// The slot is not served.
    ClusterDown,
    /// A blocking command was ended by `CLIENT UNBLOCK`.
    Unblocked,
    /// The command was sent to a node and no valid reply will arrive: it may or may not have been executed.
    /// Deliberately a code of our own: cluster clients retry a command after `TRYAGAIN`, `CLUSTERDOWN` or
    /// `LOADING`.
    OutcomeUnknown,
}

impl ErrorCode {
    const ALL: [ErrorCode; 5] = [
        ErrorCode::Moved,
        ErrorCode::TryAgain,
        ErrorCode::ClusterDown,
        ErrorCode::Unblocked,
        ErrorCode::OutcomeUnknown,
    ];

    /// The word on the wire.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            ErrorCode::Moved => "MOVED",
            ErrorCode::TryAgain => "TRYAGAIN",
            ErrorCode::ClusterDown => "CLUSTERDOWN",
            ErrorCode::Unblocked => "UNBLOCKED",
            ErrorCode::OutcomeUnknown => "OUTCOMEUNKNOWN",
        }
    }

    /// The code of a reply; `None` if the reply is not an error, or has another code.
    #[must_use]
    pub fn of(reply: &[u8]) -> Option<ErrorCode> {
        let text = reply.strip_prefix(b"-")?;
        let end = text.iter().position(|byte| matches!(byte, b' ' | b'\r'))?;
        ErrorCode::ALL.into_iter().find(|code| code.word().as_bytes() == &text[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_whole_first_words_of_errors() {
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::of(format!("-{} why\r\n", code.word()).as_bytes()), Some(code));
            assert_eq!(ErrorCode::of(format!("-{}\r\n", code.word()).as_bytes()), Some(code));
            assert_eq!(ErrorCode::of(format!("+{} why\r\n", code.word()).as_bytes()), None);
            assert_eq!(ErrorCode::of(format!("-{}X why\r\n", code.word()).as_bytes()), None);
        }
        assert_eq!(ErrorCode::of(b"-ERR MOVED x\r\n"), None);
        assert_eq!(ErrorCode::of(b"-MOVED"), None, "not a whole line");
    }
}
