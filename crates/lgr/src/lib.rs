//! The router's companion: makes certificates, sends envelopes, shows what subscribers get.
//!
//! The binary `lgr` is the command line; this library is what it is made of, and what tests of a
//! router use:
//!
//! - [`certs`]: a certificate authority with identities, also ones that must be refused;
//! - [`client`]: the v2 calls over mutual TLS, typed and raw;
//! - [`numbered`]: numbered envelopes, to know what was lost or duplicated on the way.
#![forbid(unsafe_code)]

pub mod certs;
pub mod client;
mod error;
pub mod numbered;

pub use error::Error;

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
