//! The router's settings: environment in, typed values out.
//!
//! [`Settings::from_env`] reads every variable, checks it, and gives either settings that can be
//! used as they are or an [`Error`] that holds *all* mistakes at once, each naming the variable,
//! its value and what is allowed. This crate neither logs nor ends the process: what was
//! accepted but looks wrong is kept in [`Settings::warnings`] for the caller to log.
//!
//! ```
//! use config::Settings;
//!
//! // any source of text will do; `Settings::from_env()` reads the process environment
//! let settings = Settings::read(|name| match name {
//!     "ROUTER_CA_FILE" => Some("ca.crt"),
//!     "ROUTER_CERT_FILE" => Some("doppler.crt"),
//!     "ROUTER_KEY_FILE" => Some("doppler.key"),
//!     "ROUTER_FANOUT_WRITER_ENABLED" => Some("true"),
//!     "ROUTER_PUBLISH_WORKERS" => Some("4"),
//!     _ => None,
//! })?;
//! assert_eq!(settings.listen.port, 0);
//! assert_eq!(settings.buffers.ingress, 10_000);
//! assert_eq!(settings.fanout.unwrap().workers.get(), 4);
//! # Ok::<(), config::Error>(())
//! ```
//!
//! # How it is laid out
//!
//! - [`variables`] is the table of all variables: name, kind, allowed range, default, one line of
//!   documentation. Parsing takes ranges and defaults from it, so the table cannot lie; the
//!   start-up report and the documentation's tests iterate over it.
//! - [`Settings`] has one struct per concern.
//! - [`Problem`] is one mistake, [`Error`] all of them, [`Warning`] what was let pass.
//!
//! # Reading rules
//!
//! An empty variable counts as unset. Numbers are decimal without blanks; where the reference
//! reads an unsigned number (both ports, the metric interval) a leading `+` is refused, elsewhere a
//! sign is fine. Of booleans only `true` and `1` are true, everything else is false and never an
//! error. Lists are split at commas or colons, blanks around entries and empty entries are ignored.
//! Every variable is checked, also one whose feature is off, so that a mistake shows at start and
//! not on the day the feature is turned on.
//!
//! # Differences to the reference
//!
//! | variable | the reference | here |
//! |---|---|---|
//! | all | the first mistake ends the process | all mistakes are reported at once |
//! | `ROUTER_PORT`, `ROUTER_PPROF_PORT` | parsed as 64 bits and cut: 70000 listens on 4464, or fails when listening | 0 to 65535, else an error |
//! | `ROUTER_CIPHER_SUITES` | commas only; unknown names skipped silently; a list without a known name panics | commas or colons; skipped names are kept as warnings; a list without a known name is an error that names the known ones |
//! | `INGRESS_BUFFER_SIZE` | unset, 0 or negative: crash at start | unset or 0: 10,000; negative: an error |
//! | `EGRESS_BUFFER_SIZE` | unset, 0 or negative: crash at the first v1 subscription | unset or 0: 1,000; negative: an error |
//! | `AGENT_GRPC_ADDRESS` | never checked | anything is accepted, but what is not `host:port` gives a warning |
//! | booleans | `TRUE`, `yes` and so on are silently false | false too, with a warning |
//! | `ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS` | any 64-bit number | at most a day |
//! | `ROUTER_PUBLISH_WORKERS` | any number; the CPUs of the scheduler by default | at most 1,024; the CPUs this process may use, a CPU quota respected; checked even when the feature is off |
//! | `ROUTER_FANOUT_ORDERING` and all variables marked as ours in [`variables`] | do not exist | optional, with defaults that keep the reference's behaviour or better it |
#![forbid(unsafe_code)]

mod cipher;
mod error;
mod read;
mod settings;
pub mod variables;

pub use cipher::CipherSuite;
pub use error::{Error, Problem, Warning};
pub use settings::{
    Buffers, ConnectionAge, Drain, Fanout, Listen, Log, Metrics, Ordering, Pprof, Settings,
    Timestamps, Tls,
};
pub use variables::{Kind, VARIABLES, Variable};

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
