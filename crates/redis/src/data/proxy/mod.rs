//! How does a command travel? Workers, client sessions, connections to nodes.
