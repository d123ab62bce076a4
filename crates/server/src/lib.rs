//! The router as a process: gRPC over mutual TLS in front of the [`router`] pipeline.
//!
//! The binary `router` is [`Server`] with the settings of the environment; everything it is made
//! of is here, so that tests and other binaries can run it in process.
#![forbid(unsafe_code)]

mod agent;
mod connection;
mod debug;
mod delivery;
mod drops;
mod error;
mod grpc;
pub mod logging;
mod metrics;
mod pace;
mod preface;
mod profile;
mod refusals;
pub mod report;
mod server;
mod service;
mod summed_up;
mod tls;

pub use connection::Keepalive;
pub use error::Error;
pub use grpc::MAX_REQUEST_BYTES;
pub use server::Server;
