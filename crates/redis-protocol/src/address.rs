//! Where does a proxy or a node listen? `host:port`, as text that is valid in a key.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use capstan_meta::record::Segment;
use serde::{Deserialize, Serialize};

/// Longest address; host names end at 253 bytes.
const MAX_LEN: usize = 253 + 6;

/// `host:port` of a proxy or a node. The host is an IP address or a name, resolved by the side that connects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    text: Arc<str>,
    port: u16,
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address; write host:port, such as 127.0.0.1:7001")]
pub struct InvalidAddress(String);

impl Address {
    /// The whole text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The part before the port, without the brackets of an IPv6 address.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.text.rsplit_once(':').map_or(&*self.text, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// The port, never zero.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl FromStr for Address {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Address, InvalidAddress> {
        let invalid = || InvalidAddress(text.chars().take(64).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let sound = |c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') || (bracketed && ":[]".contains(c))
        };
        let port: u16 = port.parse().map_err(|_| invalid())?;
        if host.is_empty() || text.len() > MAX_LEN || port == 0 || !host.chars().all(sound) {
            return Err(invalid());
        }
        Ok(Address { text: text.into(), port })
    }
}

impl Segment for Address {}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl TryFrom<String> for Address {
    type Error = InvalidAddress;

    fn try_from(text: String) -> Result<Address, InvalidAddress> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> String {
        address.text.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        let address: Address = "127.0.0.1:7001".parse().unwrap();
        assert_eq!((address.host(), address.port()), ("127.0.0.1", 7001));
        let address: Address = "[::1]:7001".parse().unwrap();
        assert_eq!((address.host(), address.port()), ("::1", 7001));
        for bad in
            ["", "7001", ":7001", "host:", "host:0", "host:70000", "a/b:1", "a b:1", "::1:7001", "h:+1x"]
        {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
