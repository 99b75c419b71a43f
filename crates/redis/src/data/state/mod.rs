//! What has the proxy been told? Accepting messages by epoch, keeping them on disk, the routing table made of them.
