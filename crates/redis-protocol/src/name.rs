//! The name of a cluster, as text that is valid in a key.

use capstan_meta::names;

names! {
    /// Names a cluster; in the proxy's protocol the same name is a database (`dbname`).
    pub struct ClusterName;
}

capstan_meta::text_records!(ClusterName);
