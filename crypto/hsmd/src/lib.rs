//! `hsmd`: serves a token that is attached to this machine to the gateways of a cluster, over mutual TLS.
//!
//! The [`server`] has a thread that reads for each connection, and one that writes what the client is slow to read; who has a
//! place is a matter of [`places`], and how much of what there is a matter of [`shares`]. Requests are as
//! `qtls_pkcs11::protocol` has them. What needs the token [`work`] hands to the same kind of member that a gateway's
//! module has: sessions, login, checks and what follows an error are that module's code. The thread that signed sends the
//! answer. Status is answered without the token.

pub mod config;
pub mod log;
pub mod metrics;
pub mod places;
pub mod server;
pub mod shares;
pub mod soft_token;
pub mod work;
