//! `HELLO`: which protocol, which user, which client name?

use bytes::BufMut;

use super::{Context, REDIS_VERSION, Role};
use capstan_redis_protocol::command::printed;
use capstan_redis_protocol::resp::{Protocol, Request, Writer, decimal};

/// The parsed arguments of `HELLO`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The requested protocol.
    pub protocol: Option<Protocol>,
    /// User and password.
    pub auth: Option<(&'a [u8], &'a [u8])>,
    /// The client name.
    pub name: Option<&'a [u8]>,
}

/// The reason why a `HELLO` is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloRefused {
    /// The version is not a number.
    NotANumber,
    /// There is no such version.
    UnknownVersion,
    /// An unknown or incomplete option.
    UnknownOption(Vec<u8>),
    /// A name that would break a line of `CLIENT LIST`.
    InvalidName,
}

impl HelloRefused {
    /// The error line.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        match self {
            HelloRefused::NotANumber => b"ERR Protocol version is not an integer or out of range".to_vec(),
            HelloRefused::UnknownVersion => b"NOPROTO unsupported protocol version".to_vec(),
            HelloRefused::UnknownOption(option) => {
                [&b"ERR Syntax error in HELLO option '"[..], option, b"'"].concat()
            }
            HelloRefused::InvalidName => {
                b"ERR Client names cannot contain spaces, newlines or special characters.".to_vec()
            }
        }
    }
}

impl<'a> Hello<'a> {
    /// Parses the arguments of `HELLO`.
    pub fn parse(request: Request<'a>) -> Result<Hello<'a>, HelloRefused> {
        let mut hello = Hello::default();
        if request.len() > 1 {
            let version = decimal(request.argument(1)).ok_or(HelloRefused::NotANumber)?;
            hello.protocol = match version {
                2 => Some(Protocol::Resp2),
                3 => Some(Protocol::Resp3),
                _ => return Err(HelloRefused::UnknownVersion),
            };
        }
        let mut at = 2;
        while at < request.len() {
            let option = request.argument(at);
            let left = request.len() - at - 1;
            if option.eq_ignore_ascii_case(b"AUTH") && left >= 2 {
                hello.auth = Some((request.argument(at + 1), request.argument(at + 2)));
                at += 3;
            } else if option.eq_ignore_ascii_case(b"SETNAME") && left >= 1 {
                let name = request.argument(at + 1);
                if !name.iter().all(u8::is_ascii_graphic) {
                    return Err(HelloRefused::InvalidName);
                }
                hello.name = Some(name);
                at += 2;
            } else {
                return Err(HelloRefused::UnknownOption(printed(option).to_vec()));
            }
        }
        Ok(hello)
    }
}

/// Writes the reply in the protocol that was just negotiated.
pub fn write_hello<B: BufMut>(context: &Context<'_>, client_id: i64, out: &mut Writer<'_, B>) {
    let protocol = match out.protocol() {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    };
    let role = match context.role() {
        Role::Primary => "master",
        Role::Replica { .. } => "replica",
    };
    out.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        out.bulk(name);
        out.bulk(value);
    }
    for (name, value) in [("proto", protocol), ("id", client_id)] {
        out.bulk(name);
        out.integer(value);
    }
    for (name, value) in [("mode", context.mode()), ("role", role)] {
        out.bulk(name);
        out.bulk(value);
    }
    out.bulk("modules");
    out.array(0);
}
