//! The host's side: runs the redis-server processes of this host and keeps them as the metadata wants them.
