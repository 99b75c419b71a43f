//! The messages and services of `proto/`, as generated.

#![allow(missing_docs, clippy::all, reason = "generated")]

/// The client wire of the public broker.
pub mod danube {
    tonic::include_proto!("danube");
}

/// The admin wire of the public broker.
pub mod danube_admin {
    tonic::include_proto!("danube_admin");
}

/// The schema registry of the public broker.
pub mod danube_schema {
    tonic::include_proto!("danube_schema");
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
