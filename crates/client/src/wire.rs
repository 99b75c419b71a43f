//! The messages and services of the wire, as generated.

#![allow(missing_docs, clippy::all, reason = "generated")]

/// The client wire of the public broker.
pub mod danube {
    tonic::include_proto!("danube");
}

/// Its admin wire.
pub mod danube_admin {
    tonic::include_proto!("danube_admin");
}

/// What we have beside it.
pub mod capstan {
    /// Topics.
    pub mod topics {
        /// First version.
        pub mod v1 {
            tonic::include_proto!("capstan.topics.v1");
        }
    }
}
