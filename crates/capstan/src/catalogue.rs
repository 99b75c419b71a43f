//! All keys of the product: the catalogues that the crates declare in their `keys.rs`.

use capstan_meta::record::KeyDoc;

/// The catalogues, in the order of the reference page.
pub(crate) const CATALOGUES: &[&[KeyDoc]] = &[
    capstan_control::keys::CATALOGUE,
    capstan_access::keys::CATALOGUE,
    capstan_log::keys::CATALOGUE,
    capstan_steward::keys::CATALOGUE,
    capstan_redis::keys::CATALOGUE,
    capstan_topics::keys::CATALOGUE,
    capstan_schemas::keys::CATALOGUE,
    capstan_docs::keys::CATALOGUE,
    capstan_fleet::keys::CATALOGUE,
];
