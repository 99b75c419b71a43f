//! Verifies that a listener belongs to the process that we started.

use std::collections::HashSet;
use std::io::ErrorKind;

use anyhow::Context;

/// `TCP_LISTEN` in the kernel's table.
const LISTEN: &str = "0A";

/// The TCP ports on which the process itself listens, on any address.
///
/// The kernel's socket table has the inode of each listener, and the process's descriptors have the inodes it has open:
/// a port belongs to the process if both match.
pub fn listening_ports(pid: u32) -> anyhow::Result<Vec<u16>> {
    let own = socket_inodes(pid)?;
    let mut ports = Vec::new();
    for table in ["tcp", "tcp6"] {
        let path = format!("/proc/{pid}/net/{table}");
        match std::fs::read_to_string(&path) {
            Ok(text) => ports.extend(listeners(&text).filter(|l| own.contains(&l.inode)).map(|l| l.port)),
            // No IPv6 in this kernel.
            Err(e) if e.kind() == ErrorKind::NotFound && table == "tcp6" => {}
            Err(e) => return Err(e).context(format!("cannot read {path}")),
        }
    }
    ports.sort_unstable();
    ports.dedup();
    Ok(ports)
}

/// Whether the process itself listens on this port.
pub fn owns_port(pid: u32, port: u16) -> anyhow::Result<bool> {
    Ok(listening_ports(pid)?.contains(&port))
}

struct Listener {
    port: u16,
    inode: u64,
}

/// Rows of `/proc/net/tcp`: `sl local_address rem_address st ... uid timeout inode ...`.
fn listeners(table: &str) -> impl Iterator<Item = Listener> {
    table.lines().skip(1).filter_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        let listens = *fields.get(3)? == LISTEN;
        let listener =
            Listener { port: u16::from_str_radix(port, 16).ok()?, inode: fields.get(9)?.parse().ok()? };
        listens.then_some(listener)
    })
}

fn socket_inodes(pid: u32) -> anyhow::Result<HashSet<u64>> {
    let path = format!("/proc/{pid}/fd");
    let descriptors = std::fs::read_dir(&path).with_context(|| format!("cannot read {path}"))?;
    let inode = |target: &str| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    // A descriptor may be closed between being listed and being read.
    let targets = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    Ok(targets.filter_map(|target| inode(target.to_str()?)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_this_process_is_its_own_and_a_closed_one_is_not() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(owns_port(std::process::id(), port).unwrap());
        drop(listener);
        assert!(!owns_port(std::process::id(), port).unwrap());
    }

    #[test]
    fn connections_are_no_listeners() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 42 1 0\n\
                     1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000 0 0 43 1 0\n";
        let found: Vec<_> = listeners(table).map(|l| (l.port, l.inode)).collect();
        assert_eq!(found, [(8080, 42)]);
    }
}
