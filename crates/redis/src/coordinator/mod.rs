//! Coordinators: read the metadata, push it to the proxies, ping them, report failures, complete what was begun.
