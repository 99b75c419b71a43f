//! Which requests are served? Every route declares what it needs, a credential says where the request comes from, and
//! everything else is refused.

mod authenticate;
mod caller;
pub(crate) mod certs;
pub(crate) mod manage;
mod routes;
pub(crate) mod session;

pub(crate) use authenticate::{Gate, check};
pub(crate) use caller::{Asks, NamedJson, NamedQuery};
pub use routes::RouteNeed;
pub(crate) use routes::{Routes, admin, host, operate, public, signed_in, view};
