//! The table of all variables the router reads.
//!
//! One constant each; [`VARIABLES`] lists them in the order of the start-up report. What a number
//! may be and what an unset variable means stands only here.
//!
//! ```
//! use config::variables;
//!
//! assert_eq!(variables::ROUTER_PORT.env, "ROUTER_PORT");
//! assert_eq!(variables::ROUTER_PORT.allowed().unwrap(), "0 to 65535");
//! let required: Vec<_> = config::VARIABLES.iter().filter(|v| v.required).map(|v| v.env).collect();
//! assert_eq!(required, ["ROUTER_CERT_FILE", "ROUTER_KEY_FILE", "ROUTER_CA_FILE"]);
//! ```

use std::fmt;

use crate::{CipherSuite, Ordering};

/// One variable: what it is called, what it may hold and what it is for.
///
/// ```
/// for variable in config::VARIABLES {
///     println!("{:45} {:8} {}", variable.env, variable.kind.to_string(), variable.doc);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variable {
    /// The setting it becomes, as a path into [`Settings`](crate::Settings).
    pub name: &'static str,
    /// The name in the environment.
    pub env: &'static str,
    /// Whether the router refuses to start without it.
    pub required: bool,
    /// What it may hold.
    pub kind: Kind,
    /// The value that unset means, in words; empty where unset means "none".
    pub default: &'static str,
    /// One line: what it is for.
    pub doc: &'static str,
    /// Whether it is of our own making: the reference does not know it.
    pub ours: bool,
}

impl Variable {
    /// The allowed values, in words; `None` if anything will do.
    pub fn allowed(&self) -> Option<String> {
        match self.kind {
            Kind::Path | Kind::Text | Kind::Address | Kind::Bool => None,
            Kind::Choice(words) => Some(words.join(" or ")),
            Kind::List(names) => Some(format!("a list of {}", names.join(", "))),
            Kind::Number(number) => Some(number.to_string()),
        }
    }
}

/// The kind of a variable's value. Displayed it is the word for the "type" column of the report.
///
/// ```
/// assert_eq!(config::variables::ROUTER_CA_FILE.kind.to_string(), "path");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A file.
    Path,
    /// Any text.
    Text,
    /// `host:port`.
    Address,
    /// `true` or `1`; everything else is false.
    Bool,
    /// A whole number.
    Number(Number),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of which at least one entry is among these names.
    List(&'static [&'static str]),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Path => "path",
            Kind::Text => "text",
            Kind::Address => "address",
            Kind::Bool => "bool",
            Kind::Number(Number { unsigned: true, .. }) => "uint",
            Kind::Number(_) => "int",
            Kind::Choice(_) => "word",
            Kind::List(_) => "list",
        })
    }
}

/// What a number may be. Displayed it is the allowed range in words.
///
/// ```
/// use config::{Kind, variables::ROUTER_EGRESS_BATCH_BYTES};
///
/// let Kind::Number(number) = ROUTER_EGRESS_BATCH_BYTES.kind else { unreachable!() };
/// assert_eq!(number.default, 256 << 10);
/// assert_eq!(number.to_string(), "65536 to 4128768, or 0 for the default of 262144");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// The smallest allowed value; `i64::MIN` means that there is no lower end.
    pub min: i64,
    /// The largest allowed value.
    pub max: i64,
    /// What unset means.
    pub default: i64,
    /// Whether 0 means the default, too.
    pub zero_is_default: bool,
    /// Whether the reference reads it as unsigned, so that a leading `+` is refused.
    pub unsigned: bool,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min {
            i64::MIN => write!(f, "at most {}", self.max)?,
            min => write!(f, "{min} to {}", self.max)?,
        }
        if self.zero_is_default {
            write!(f, ", or 0 for the default of {}", self.default)?;
        }
        Ok(())
    }
}

const fn range(min: i64, max: i64, default: i64) -> Number {
    Number {
        min,
        max,
        default,
        zero_is_default: false,
        unsigned: false,
    }
}

const fn unsigned(max: i64, default: i64) -> Number {
    Number {
        min: 0,
        max,
        default,
        zero_is_default: false,
        unsigned: true,
    }
}

/// A size, where 0 would make no sense and means the default.
const fn size(min: i64, max: i64, default: i64) -> Number {
    Number {
        min,
        max,
        default,
        zero_is_default: true,
        unsigned: false,
    }
}

const DAY_MILLISECONDS: i64 = 24 * 60 * 60 * 1000;
const YEAR_SECONDS: i64 = 365 * 24 * 60 * 60;
/// Far more than any router can hold, small enough for arithmetic never to overflow.
const MAX_ENVELOPES: i64 = 100_000_000;
/// A tebibyte where addresses are wide enough for it.
const MAX_BYTES: i64 = if usize::BITS >= 64 { 1 << 40 } else { 1 << 30 };
/// The largest message a producer may send. An ingress ring must be able to hold one.
const MAX_MESSAGE_BYTES: i64 = 10 << 20;

/// Port of the gRPC server.
pub const ROUTER_PORT: Variable = Variable {
    name: "listen.port",
    env: "ROUTER_PORT",
    required: false,
    kind: Kind::Number(unsigned(65_535, 0)),
    default: "0",
    doc: "port of the gRPC server on all interfaces; 0 takes a free one",
    ours: false,
};

/// Certificate of the router.
pub const ROUTER_CERT_FILE: Variable = Variable {
    name: "tls.cert_file",
    env: "ROUTER_CERT_FILE",
    required: true,
    kind: Kind::Path,
    default: "",
    doc: "the router's certificate, PEM, may hold a chain; shown to clients and to the agent",
    ours: false,
};

/// Private key of the router.
pub const ROUTER_KEY_FILE: Variable = Variable {
    name: "tls.key_file",
    env: "ROUTER_KEY_FILE",
    required: true,
    kind: Kind::Path,
    default: "",
    doc: "the private key of that certificate, PEM",
    ours: false,
};

/// Certificate authority that everybody's certificate must come from.
pub const ROUTER_CA_FILE: Variable = Variable {
    name: "tls.ca_file",
    env: "ROUTER_CA_FILE",
    required: true,
    kind: Kind::Path,
    default: "",
    doc: "the authorities that clients and the agent are verified against, a PEM bundle",
    ours: false,
};

/// Cipher suites of TLS 1.2.
pub const ROUTER_CIPHER_SUITES: Variable = Variable {
    name: "tls.cipher_suites",
    env: "ROUTER_CIPHER_SUITES",
    required: false,
    kind: Kind::List(&CipherSuite::NAMES),
    default: "both",
    doc: "suites offered under TLS 1.2, split at commas or colons; unknown names are skipped with a warning",
    ours: false,
};

/// Capacity of each ingress ring.
pub const INGRESS_BUFFER_SIZE: Variable = Variable {
    name: "buffers.ingress",
    env: "INGRESS_BUFFER_SIZE",
    required: false,
    kind: Kind::Number(size(1, MAX_ENVELOPES, 10_000)),
    default: "10000",
    doc: "capacity of each ingress ring, in envelopes",
    ours: false,
};

/// Capacity of each v1 subscriber's ring.
pub const EGRESS_BUFFER_SIZE: Variable = Variable {
    name: "buffers.egress_v1",
    env: "EGRESS_BUFFER_SIZE",
    required: false,
    kind: Kind::Number(size(1, MAX_ENVELOPES, 1_000)),
    default: "1000",
    doc: "capacity of each v1 subscriber's ring, in envelopes",
    ours: false,
};

/// Workers of the fan-out stage.
pub const ROUTER_PUBLISH_WORKERS: Variable = Variable {
    name: "fanout.workers",
    env: "ROUTER_PUBLISH_WORKERS",
    required: false,
    kind: Kind::Number(range(i64::MIN, 1_024, 0)),
    default: "0",
    doc: "workers of the fan-out stage; 0 or less means the CPUs this process may use, a CPU quota respected",
    ours: false,
};

/// Switches the fan-out stage on.
pub const ROUTER_FANOUT_WRITER_ENABLED: Variable = Variable {
    name: "fanout",
    env: "ROUTER_FANOUT_WRITER_ENABLED",
    required: false,
    kind: Kind::Bool,
    default: "false",
    doc: "publish v2 envelopes by several workers at once",
    ours: false,
};

/// What order the fan-out stage keeps.
pub const ROUTER_FANOUT_ORDERING: Variable = Variable {
    name: "fanout.ordering",
    env: "ROUTER_FANOUT_ORDERING",
    required: false,
    kind: Kind::Choice(&Ordering::NAMES),
    default: "none",
    doc: "with fan-out: none promises no order, source keeps the order of each source id's envelopes",
    ours: true,
};

/// Timestamp format of the log.
pub const USE_RFC339: Variable = Variable {
    name: "log.timestamps",
    env: "USE_RFC339",
    required: false,
    kind: Kind::Bool,
    default: "false",
    doc: "log timestamps as RFC 3339 in UTC with nanoseconds (the name really lacks a 3)",
    ours: false,
};

/// Port of the debug listener.
pub const ROUTER_PPROF_PORT: Variable = Variable {
    name: "pprof.port",
    env: "ROUTER_PPROF_PORT",
    required: false,
    kind: Kind::Number(unsigned(65_535, 0)),
    default: "0",
    doc: "port of the debug listener on the loopback interface; 0 takes a free one",
    ours: false,
};

/// Where the router's own metrics go.
pub const AGENT_GRPC_ADDRESS: Variable = Variable {
    name: "metrics.agent_address",
    env: "AGENT_GRPC_ADDRESS",
    required: false,
    kind: Kind::Address,
    default: "",
    doc: "host:port of the agent that takes the router's own metrics; unset sends none",
    ours: false,
};

/// How often the router's own metrics go out.
pub const ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS: Variable = Variable {
    name: "metrics.interval",
    env: "ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS",
    required: false,
    kind: Kind::Number(unsigned(DAY_MILLISECONDS, 5_000)),
    default: "5000",
    doc: "pause between two sendings of the router's own metrics; 0 sends none",
    ours: false,
};

/// Source id of the router's own metrics.
pub const ROUTER_METRIC_SOURCE_ID: Variable = Variable {
    name: "metrics.source_id",
    env: "ROUTER_METRIC_SOURCE_ID",
    required: false,
    kind: Kind::Text,
    default: "doppler",
    doc: "source id of the router's own metrics",
    ours: false,
};

/// Capacity of each v2 subscriber's ring.
pub const ROUTER_EGRESS_V2_BUFFER_SIZE: Variable = Variable {
    name: "buffers.egress_v2",
    env: "ROUTER_EGRESS_V2_BUFFER_SIZE",
    required: false,
    // The reference has 1,000, which one scheduling hiccup of 2.5 ms overruns at 400,000/s.
    kind: Kind::Number(size(1, MAX_ENVELOPES, 10_000)),
    default: "10000",
    doc: "capacity of each v2 subscriber's ring, in envelopes (the reference: 1000, fixed)",
    ours: true,
};

/// Bytes an ingress ring may hold.
pub const ROUTER_INGRESS_BUFFER_BYTES: Variable = Variable {
    name: "buffers.ingress_bytes",
    env: "ROUTER_INGRESS_BUFFER_BYTES",
    required: false,
    // 10,000 envelopes of 6 KiB: never reached with ordinary logs, a bound with huge ones.
    kind: Kind::Number(size(MAX_MESSAGE_BYTES, MAX_BYTES, 64 << 20)),
    default: "67108864",
    doc: "bytes that each ingress ring may hold, whatever its capacity in envelopes",
    ours: true,
};

/// Bytes a subscriber's ring may hold.
pub const ROUTER_EGRESS_BUFFER_BYTES: Variable = Variable {
    name: "buffers.egress_bytes",
    env: "ROUTER_EGRESS_BUFFER_BYTES",
    required: false,
    // 10,000 envelopes of 1.6 KiB, and any single message of the largest size.
    kind: Kind::Number(size(64 << 10, MAX_BYTES, 16 << 20)),
    default: "16777216",
    doc: "bytes that each subscriber's ring may hold, whatever its capacity in envelopes",
    ours: true,
};

/// Bytes all subscribers' rings may hold together.
pub const ROUTER_EGRESS_TOTAL_BYTES: Variable = Variable {
    name: "buffers.egress_total_bytes",
    env: "ROUTER_EGRESS_TOTAL_BYTES",
    required: false,
    // 16 subscribers that have stalled with full rings. What several of them hold of one message is
    // in memory once, so that the process takes less than this.
    kind: Kind::Number(size(1 << 20, MAX_BYTES, 256 << 20)),
    default: "268435456",
    doc: "bytes that the rings of all subscribers may hold together",
    ours: true,
};

/// Bytes of one egress batch.
pub const ROUTER_EGRESS_BATCH_BYTES: Variable = Variable {
    name: "buffers.egress_batch_bytes",
    env: "ROUTER_EGRESS_BATCH_BYTES",
    required: false,
    // gRPC clients refuse messages above 4 MiB unless told otherwise; 64 KiB below that is safe.
    // Each stream that nobody reads holds one batch in memory, so the default is no larger than a
    // hundred envelopes of 2.6 KiB.
    kind: Kind::Number(size(64 << 10, (4 << 20) - (64 << 10), 256 << 10)),
    default: "262144",
    doc: "bytes at which an egress batch is closed; a larger envelope is sent alone",
    ours: true,
};

/// Threads of the data plane.
pub const ROUTER_DATA_PLANE_THREADS: Variable = Variable {
    name: "listen.data_plane_threads",
    env: "ROUTER_DATA_PLANE_THREADS",
    required: false,
    kind: Kind::Number(size(1, 256, 1)),
    default: "1",
    doc: "threads that serve connections; one is cheapest and carries a million envelopes a second",
    ours: true,
};

/// How long a client may take for its handshakes.
pub const ROUTER_HANDSHAKE_TIMEOUT_MILLISECONDS: Variable = Variable {
    name: "listen.handshake_timeout",
    env: "ROUTER_HANDSHAKE_TIMEOUT_MILLISECONDS",
    required: false,
    kind: Kind::Number(size(1, DAY_MILLISECONDS, 10_000)),
    default: "10000",
    doc: "time a new connection has for its handshake before it is closed",
    ours: true,
};

/// How long a connection may live.
pub const ROUTER_MAX_CONNECTION_AGE_SECONDS: Variable = Variable {
    name: "listen.max_connection_age",
    env: "ROUTER_MAX_CONNECTION_AGE_SECONDS",
    required: false,
    kind: Kind::Number(range(0, YEAR_SECONDS, 0)),
    default: "0",
    doc: "age at which a connection is asked to go away, so that clients spread anew; 0 means never",
    ours: true,
};

/// How long streams of an aged connection may go on.
pub const ROUTER_MAX_CONNECTION_AGE_GRACE_SECONDS: Variable = Variable {
    name: "listen.max_connection_age.grace",
    env: "ROUTER_MAX_CONNECTION_AGE_GRACE_SECONDS",
    required: false,
    kind: Kind::Number(range(0, YEAR_SECONDS, 10)),
    default: "10",
    doc: "time the streams of an aged connection have left before it is closed",
    ours: true,
};

/// How long draining may take at the end.
pub const ROUTER_DRAIN_TIMEOUT_MILLISECONDS: Variable = Variable {
    name: "drain.timeout",
    env: "ROUTER_DRAIN_TIMEOUT_MILLISECONDS",
    required: false,
    kind: Kind::Number(range(0, DAY_MILLISECONDS, 10_000)),
    default: "10000",
    doc: "time for delivering what was accepted once the process is told to end; 0 does not wait",
    ours: true,
};

/// All variables: those the reference knows, in the order of its start-up report, with the fan-out
/// pair where the proposal put it; then ours.
pub const VARIABLES: &[Variable] = &[
    ROUTER_PORT,
    ROUTER_CERT_FILE,
    ROUTER_KEY_FILE,
    ROUTER_CA_FILE,
    ROUTER_CIPHER_SUITES,
    INGRESS_BUFFER_SIZE,
    EGRESS_BUFFER_SIZE,
    ROUTER_PUBLISH_WORKERS,
    ROUTER_FANOUT_WRITER_ENABLED,
    USE_RFC339,
    ROUTER_PPROF_PORT,
    AGENT_GRPC_ADDRESS,
    ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS,
    ROUTER_METRIC_SOURCE_ID,
    ROUTER_FANOUT_ORDERING,
    ROUTER_EGRESS_V2_BUFFER_SIZE,
    ROUTER_INGRESS_BUFFER_BYTES,
    ROUTER_EGRESS_BUFFER_BYTES,
    ROUTER_EGRESS_TOTAL_BYTES,
    ROUTER_EGRESS_BATCH_BYTES,
    ROUTER_DATA_PLANE_THREADS,
    ROUTER_HANDSHAKE_TIMEOUT_MILLISECONDS,
    ROUTER_MAX_CONNECTION_AGE_SECONDS,
    ROUTER_MAX_CONNECTION_AGE_GRACE_SECONDS,
    ROUTER_DRAIN_TIMEOUT_MILLISECONDS,
];
