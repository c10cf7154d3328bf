//! `hsmd`: serves a token that is attached to this machine to the gateways of a cluster, over mutual TLS.
//!
//! The [`server`] has a thread that reads and one that writes for each connection, and reads requests as
//! `qtls_pkcs11::protocol` has them. What needs the token goes into a queue, which [`work`] empties into the same kind of
//! member that a gateway's module has: sessions, login, checks and what follows an error are that module's code. Status is
//! answered without the token.

pub mod config;
pub mod log;
pub mod metrics;
pub mod server;
pub mod soft_token;
pub mod work;
