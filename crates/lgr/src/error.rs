//! What can go wrong in `lgr`, each with its culprit by name: a file, a peer, an argument.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error of this crate. Messages are complete in themselves; no source needs to be printed
/// beside them.
///
/// ```
/// let error = lgr::client::Credentials::load("absent.crt", "absent.key", "absent.crt").unwrap_err();
/// assert!(error.to_string().starts_with("cannot read absent.crt"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file or directory could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A certificate authority is there already, and overwriting it was not asked for.
    #[error("{} is there already: `--force` replaces the authority and all its identities", path.display())]
    AuthorityExists {
        /// The authority's file that is there.
        path: PathBuf,
    },
    /// A name that cannot be that of an identity.
    #[error("identity name `{name}`: use letters, digits, `-`, `_` and `.` only, and not `ca`")]
    IdentityName {
        /// The name.
        name: String,
    },
    /// A certificate could not be made.
    #[error("cannot make the certificate of `{name}`: {reason}")]
    Certificate {
        /// Whose certificate.
        name: String,
        /// Why not.
        reason: rcgen::Error,
    },
    /// A certificate, key or authority cannot be used.
    #[error("{what}: {reason}")]
    Credentials {
        /// The file, or what it is for if it came from memory.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Not an address of the form `HOST:PORT`.
    #[error("address `{addr}`: {reason}")]
    Address {
        /// What was given.
        addr: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No connection: refused, no answer, or no agreement on TLS.
    #[error("cannot connect to {peer}: {reason}")]
    Connect {
        /// The router's address.
        peer: String,
        /// Why not.
        reason: String,
    },
    /// A call ended with a gRPC status other than OK, or with its connection.
    #[error("{call} at {peer} ended with {}: {}", code_name(status.code()), reason)]
    Call {
        /// The router's address.
        peer: String,
        /// The method, for example `Ingress/BatchSender`.
        call: &'static str,
        /// The gRPC status; `UNKNOWN` or `UNAVAILABLE` if the connection broke.
        status: Box<tonic::Status>,
        /// The status's message and its causes.
        reason: String,
    },
    /// A subscription ended that should go on for ever.
    #[error("the subscription to {peer} is over: {reason}")]
    Ended {
        /// The router's address.
        peer: String,
        /// How.
        reason: String,
    },
    /// A peer sent what is no envelope batch.
    #[error("{peer} sent a malformed message: {reason}")]
    Malformed {
        /// The router's address.
        peer: String,
        /// What is wrong.
        reason: String,
    },
    /// The peer did not answer in time.
    #[error("{call} at {peer}: no answer within {patience:?}")]
    Silent {
        /// The router's address.
        peer: String,
        /// The method.
        call: &'static str,
        /// How long was waited.
        patience: Duration,
    },
    /// An argument that does not make sense.
    #[error("{argument}: {reason}")]
    Argument {
        /// The argument as the user writes it.
        argument: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The operating system refused what every program needs: threads, timers, signals.
    #[error("cannot start: {source}")]
    Runtime {
        /// Why.
        source: io::Error,
    },
    /// Standard input or output failed.
    #[error("standard {stream}: {source}")]
    Standard {
        /// `input` or `output`.
        stream: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl Error {
    /// The gRPC status, if the error is one.
    pub fn status(&self) -> Option<&tonic::Status> {
        match self {
            Self::Call { status, .. } => Some(status),
            _ => None,
        }
    }

    /// The gRPC status code, if the error is one.
    pub fn code(&self) -> Option<tonic::Code> {
        self.status().map(tonic::Status::code)
    }

    /// Whether the reader of our standard output went away, which is no failure of ours.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Standard { stream: "output", source }
            if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// The name that the gRPC documentation gives a status code.
pub(crate) fn code_name(code: tonic::Code) -> &'static str {
    use tonic::Code;
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
