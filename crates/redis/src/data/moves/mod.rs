//! How does a range of slots move to another proxy?
