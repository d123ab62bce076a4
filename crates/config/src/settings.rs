//! The settings themselves, one struct per concern, and how they are made from variables.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::cipher::CipherSuite;
use crate::error::{Error, Warning};
use crate::read::Reader;
use crate::variables as v;

/// Everything the router can be told. See the crate's front page for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The gRPC listener.
    pub listen: Listen,
    /// Identity, authorities and suites.
    pub tls: Tls,
    /// Capacities of the rings and of egress batches.
    pub buffers: Buffers,
    /// The fan-out stage; `None` if it is off.
    pub fanout: Option<Fanout>,
    /// The router's own metrics.
    pub metrics: Metrics,
    /// The log.
    pub log: Log,
    /// The debug listener.
    pub pprof: Pprof,
    /// The end of the process.
    pub drain: Drain,
    /// What was accepted and should be logged.
    pub warnings: Vec<Warning>,
}

/// The gRPC listener and its connections.
///
/// ```
/// let settings = config::Settings::read(|name| match name {
///     "ROUTER_PORT" => Some("8082"),
///     "ROUTER_MAX_CONNECTION_AGE_SECONDS" => Some("3600"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(settings.listen.port, 8082);
/// assert_eq!(settings.listen.max_connection_age.unwrap().age.as_secs(), 3600);
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Port on all interfaces; 0 takes a free one.
    pub port: u16,
    /// Threads that serve connections.
    pub data_plane_threads: NonZeroUsize,
    /// Time a new connection has for its handshake.
    pub handshake_timeout: Duration,
    /// When connections are asked to go away; `None` is never.
    pub max_connection_age: Option<ConnectionAge>,
}

/// When a connection has lived long enough. See [`Listen`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAge {
    /// Age at which the client is asked to connect anew.
    pub age: Duration,
    /// Time from then until the connection is closed with whatever streams it has left.
    pub grace: Duration,
}

/// Certificate files and cipher suites.
///
/// ```
/// use config::CipherSuite;
///
/// let settings = config::Settings::read(|name| match name {
///     "ROUTER_CIPHER_SUITES" => Some("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384:"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(settings.tls.cipher_suites, [CipherSuite::EcdheRsaAes256GcmSha384]);
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Authorities that clients and the agent are verified against.
    pub ca_file: PathBuf,
    /// The router's certificate, as server and as client.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// Suites offered under TLS 1.2: at least one, each once.
    pub cipher_suites: Vec<CipherSuite>,
}

/// Capacities of the rings and of egress batches. All are at least 1.
///
/// ```
/// let settings = config::Settings::read(|name| match name {
///     "INGRESS_BUFFER_SIZE" => Some("0"), // the default
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(settings.buffers.ingress, 10_000);
/// assert_eq!(settings.buffers.egress_v1, 1_000);
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffers {
    /// Envelopes in each ingress ring.
    pub ingress: usize,
    /// Bytes in each ingress ring.
    pub ingress_bytes: usize,
    /// Envelopes in each v1 subscriber's ring.
    pub egress_v1: usize,
    /// Envelopes in each v2 subscriber's ring.
    pub egress_v2: usize,
    /// Bytes in each subscriber's ring.
    pub egress_bytes: usize,
    /// Bytes in the rings of all subscribers together.
    pub egress_total_bytes: usize,
    /// Bytes at which an egress batch is closed; a larger envelope is sent alone.
    pub egress_batch_bytes: usize,
}

/// The fan-out stage.
///
/// ```
/// use config::Ordering;
///
/// let settings = config::Settings::read(|name| match name {
///     "ROUTER_FANOUT_WRITER_ENABLED" => Some("1"),
///     "ROUTER_FANOUT_ORDERING" => Some("source"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// let fanout = settings.fanout.unwrap();
/// assert_eq!(fanout.ordering, Ordering::Source);
/// assert!(fanout.workers.get() >= 1); // as many as this process may use
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fanout {
    /// How many workers publish at once.
    pub workers: NonZeroUsize,
    /// What order they keep.
    pub ordering: Ordering,
}

/// What order the fan-out stage keeps. See [`Fanout`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// None: an envelope goes to whichever worker is free.
    #[default]
    None,
    /// The envelopes of each source id stay in order.
    Source,
}

impl Ordering {
    /// Every ordering there is.
    pub const ALL: [Ordering; 2] = [Ordering::None, Ordering::Source];

    /// The words for [`ALL`](Self::ALL), in the same order.
    pub const NAMES: [&'static str; 2] = ["none", "source"];
}

/// The router's own metrics.
///
/// ```
/// let settings = config::Settings::read(|name| match name {
///     "AGENT_GRPC_ADDRESS" => Some("127.0.0.1:3458"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(settings.metrics.agent_address.as_deref(), Some("127.0.0.1:3458"));
/// assert_eq!(settings.metrics.interval.unwrap().as_millis(), 5_000);
/// assert_eq!(settings.metrics.source_id, "doppler");
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metrics {
    /// `host:port` of the agent; `None` sends no metrics. Not checked further.
    pub agent_address: Option<String>,
    /// Pause between two sendings; `None` sends no metrics.
    pub interval: Option<Duration>,
    /// Source id of the metrics.
    pub source_id: String,
}

/// The log.
///
/// ```
/// use config::Timestamps;
///
/// let settings = config::Settings::read(|name| match name {
///     "USE_RFC339" => Some("true"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(settings.log.timestamps, Timestamps::Rfc3339);
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How a line's time is written.
    pub timestamps: Timestamps,
}

/// How a log line's time is written. See [`Log`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timestamps {
    /// Local time with microseconds: `2026/08/01 12:00:00.000000`.
    #[default]
    Local,
    /// UTC with nanoseconds: `2026-08-01T12:00:00.000000000Z`.
    Rfc3339,
}

/// The debug listener on the loopback interface.
///
/// ```
/// let settings = config::Settings::read(|name| match name {
///     "ROUTER_PPROF_PORT" => Some("6060"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(settings.pprof.port, 6060);
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pprof {
    /// Its port; 0 takes a free one.
    pub port: u16,
}

/// What happens when the process is told to end.
///
/// ```
/// let settings = config::Settings::read(|name| match name {
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(settings.drain.timeout.as_secs(), 10);
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Time for delivering what was accepted; zero does not wait.
    pub timeout: Duration,
}

impl Settings {
    /// The settings in the environment of this process.
    ///
    /// # Errors
    ///
    /// All mistakes there are, in one [`Error`].
    pub fn from_env() -> Result<Settings, Error> {
        Settings::read(|name| std::env::var_os(name))
    }

    /// The settings that `lookup` gives; called with the name of each variable. Values may be
    /// `&str`, `String` or `OsString`; only paths may be other than UTF-8.
    ///
    /// # Errors
    ///
    /// All mistakes there are, in one [`Error`].
    pub fn read<V: Into<OsString>>(lookup: impl Fn(&str) -> Option<V>) -> Result<Settings, Error> {
        let lookup = |name: &str| lookup(name).map(Into::into);
        let mut from = Reader::new(&lookup);

        let listen = Listen::read(&mut from);
        let tls = Tls::read(&mut from);
        let buffers = Buffers::read(&mut from);
        let fanout = Fanout::read(&mut from);
        let metrics = Metrics::read(&mut from);
        let log = Log::read(&mut from);
        let pprof = Pprof {
            port: port(&mut from, &v::ROUTER_PPROF_PORT),
        };
        let drain = Drain {
            timeout: milliseconds(&mut from, &v::ROUTER_DRAIN_TIMEOUT_MILLISECONDS),
        };

        let warnings = from.finish().map_err(Error::new)?;
        Ok(Settings {
            listen,
            tls,
            buffers,
            fanout,
            metrics,
            log,
            pprof,
            drain,
            warnings,
        })
    }
}

impl Listen {
    fn read(from: &mut Reader<'_>) -> Listen {
        let age = seconds(from, &v::ROUTER_MAX_CONNECTION_AGE_SECONDS);
        let grace = seconds(from, &v::ROUTER_MAX_CONNECTION_AGE_GRACE_SECONDS);
        Listen {
            port: port(from, &v::ROUTER_PORT),
            data_plane_threads: at_least_one(from.number(&v::ROUTER_DATA_PLANE_THREADS)),
            handshake_timeout: milliseconds(from, &v::ROUTER_HANDSHAKE_TIMEOUT_MILLISECONDS),
            max_connection_age: (!age.is_zero()).then_some(ConnectionAge { age, grace }),
        }
    }
}

impl Tls {
    fn read(from: &mut Reader<'_>) -> Tls {
        Tls {
            ca_file: from.path(&v::ROUTER_CA_FILE),
            cert_file: from.path(&v::ROUTER_CERT_FILE),
            key_file: from.path(&v::ROUTER_KEY_FILE),
            cipher_suites: match from.list(&v::ROUTER_CIPHER_SUITES) {
                Some(positions) => positions.into_iter().map(|p| CipherSuite::ALL[p]).collect(),
                None => CipherSuite::ALL.to_vec(),
            },
        }
    }
}

impl Buffers {
    fn read(from: &mut Reader<'_>) -> Buffers {
        let mut size = |variable| at_least_one(from.number(variable)).get();
        Buffers {
            ingress: size(&v::INGRESS_BUFFER_SIZE),
            ingress_bytes: size(&v::ROUTER_INGRESS_BUFFER_BYTES),
            egress_v1: size(&v::EGRESS_BUFFER_SIZE),
            egress_v2: size(&v::ROUTER_EGRESS_V2_BUFFER_SIZE),
            egress_bytes: size(&v::ROUTER_EGRESS_BUFFER_BYTES),
            egress_total_bytes: size(&v::ROUTER_EGRESS_TOTAL_BYTES),
            egress_batch_bytes: size(&v::ROUTER_EGRESS_BATCH_BYTES),
        }
    }
}

impl Fanout {
    fn read(from: &mut Reader<'_>) -> Option<Fanout> {
        // all three are read, and so checked, whether or not the stage is on
        let enabled = from.bool(&v::ROUTER_FANOUT_WRITER_ENABLED);
        let workers = match from.number(&v::ROUTER_PUBLISH_WORKERS) {
            ..=0 => usable_cpus(),
            given => at_least_one(given),
        };
        let position = from.choice(&v::ROUTER_FANOUT_ORDERING);
        let ordering = position.map_or(Ordering::default(), |p| Ordering::ALL[p]);
        enabled.then_some(Fanout { workers, ordering })
    }
}

impl Metrics {
    fn read(from: &mut Reader<'_>) -> Metrics {
        let interval = milliseconds(from, &v::ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS);
        let source_id = from.text(&v::ROUTER_METRIC_SOURCE_ID);
        Metrics {
            agent_address: from.address(&v::AGENT_GRPC_ADDRESS),
            interval: (!interval.is_zero()).then_some(interval),
            source_id: source_id.unwrap_or_else(|| v::ROUTER_METRIC_SOURCE_ID.default.to_owned()),
        }
    }
}

impl Log {
    fn read(from: &mut Reader<'_>) -> Log {
        let rfc3339 = from.bool(&v::USE_RFC339);
        Log {
            timestamps: if rfc3339 {
                Timestamps::Rfc3339
            } else {
                Timestamps::Local
            },
        }
    }
}

fn port(from: &mut Reader<'_>, variable: &v::Variable) -> u16 {
    u16::try_from(from.number(variable)).expect("the table bounds ports by 0 and 65535")
}

fn milliseconds(from: &mut Reader<'_>, variable: &v::Variable) -> Duration {
    Duration::from_millis(from.number(variable).unsigned_abs())
}

fn seconds(from: &mut Reader<'_>, variable: &v::Variable) -> Duration {
    Duration::from_secs(from.number(variable).unsigned_abs())
}

/// For numbers that the table bounds below by 1 and above by what fits an address.
fn at_least_one(number: i64) -> NonZeroUsize {
    usize::try_from(number)
        .ok()
        .and_then(NonZeroUsize::new)
        .expect("the table bounds sizes by 1 and the address width")
}

/// How many CPUs this process may use: affinity and the quota of its control group respected.
fn usable_cpus() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
