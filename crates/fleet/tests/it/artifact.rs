//! Images on a host.

mod oci;
