//! Tests through the public interface, with real redis-server processes.
