//! Every key of the Redis service and the record that it leads to. The only place of this crate with key text.

use capstan_meta::names;

names! {
    /// Names a cluster; on the wire of a proxy the same name is a database (`dbname`).
    pub struct ClusterName;
}
