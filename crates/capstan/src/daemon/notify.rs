//! Notifies systemd (Type=notify). Without systemd this does nothing.

use std::os::unix::net::UnixDatagram;

/// Reports that everything serves.
pub(crate) fn ready() {
    tell("READY=1");
}

/// Reports that the process is stopping.
pub(crate) fn stopping() {
    tell("STOPPING=1");
}

fn tell(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(state.as_bytes(), &path));
    if let Err(error) = sent {
        tracing::warn!(%error, state, "cannot notify systemd");
    }
}
