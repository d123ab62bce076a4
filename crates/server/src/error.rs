//! What can keep the router from starting, each with the culprit named.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use rustls_pki_types::pem;

/// A router that can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that can't be read.
    #[error("can't read {}: {source}", file.display())]
    Read {
        /// Which file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file that does not hold what it should.
    #[error("{} does not hold {expected}: {reason}", file.display())]
    Pem {
        /// Which file.
        file: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A certificate or key that TLS can't use.
    #[error("can't use {}: {source}", file.display())]
    Tls {
        /// Which file.
        file: PathBuf,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A private key of some other certificate.
    #[error("the key in {} does not belong to the certificate in {}", key.display(), cert.display())]
    KeyMismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// A port that can't be bound.
    #[error("can't listen on {address} ({variable}): {source}")]
    Bind {
        /// Which address.
        address: SocketAddr,
        /// The variable that sets it.
        variable: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A thread or runtime that can't be started.
    #[error("can't start the {what}: {source}")]
    Start {
        /// Which one.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A pipeline that can't be built.
    #[error(transparent)]
    Router(#[from] router::Error),
}

impl Error {
    pub(crate) fn tls_file(
        file: &Path,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Tls {
            file: file.to_owned(),
            source: source.into(),
        }
    }

    pub(crate) fn pem(file: &Path, expected: &'static str, reason: pem::Error) -> Self {
        let reason = match reason {
            pem::Error::NoItemsFound => "there is none in it".to_owned(),
            // a bare `Debug` would print bytes as numbers
            pem::Error::MissingSectionEnd { end_marker } => {
                format!("missing {:?}", String::from_utf8_lossy(&end_marker))
            }
            pem::Error::IllegalSectionStart { line } => {
                format!("bad line {:?}", String::from_utf8_lossy(&line))
            }
            other => fmt::format(format_args!("{other}")),
        };
        Self::Pem {
            file: file.to_owned(),
            expected,
            reason,
        }
    }
}
