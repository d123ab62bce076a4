//! Mutual TLS: who we are, whom we accept, and with which suites.
//!
//! The rules are the reference's: TLS 1.2 and 1.3 only, a client certificate from our CA that may
//! authenticate clients, no name check, `h2` by ALPN. The configured cipher suites apply to TLS
//! 1.2; the suites of 1.3 are always on, or a router with the usual list would refuse 1.3.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use rustls::{
    CertificateError, CipherSuite, ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    server::WebPkiClientVerifier,
    version,
};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer, ServerName, UnixTime,
    pem::{self, PemObject},
};
use tokio_rustls::TlsAcceptor;

use crate::Error;

/// The name on the agents' certificates.
pub(crate) const AGENT_NAME: &str = "metron";

/// The configuration of the gRPC port, which can be made anew from the same files while the router
/// runs.
///
/// It is exchanged as a whole: identity and authorities belong together, and a session that the old
/// authorities let in can't be resumed under the new ones. Each handshake keeps the configuration
/// that it began with; open connections notice nothing.
pub(crate) struct Port {
    files: config::Tls,
    current: ArcSwap<ServerConfig>,
    reloaded: AtomicU64,
    failed: AtomicU64,
}

impl Port {
    /// # Errors
    ///
    /// As [`server_config`].
    pub(crate) fn new(files: config::Tls) -> Result<Self, Error> {
        Ok(Self {
            current: ArcSwap::from_pointee(server_config(&files)?),
            files,
            reloaded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        })
    }

    /// For one handshake.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.current.load_full().into()
    }

    /// Reads the files again, for the handshakes from now on.
    ///
    /// # Errors
    ///
    /// As [`server_config`]; everything is as it was then.
    pub(crate) fn reload(&self) -> Result<(), Error> {
        match server_config(&self.files) {
            Ok(config) => {
                self.current.store(Arc::new(config));
                self.reloaded.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(error) => {
                self.failed.fetch_add(1, Relaxed);
                Err(error)
            }
        }
    }

    /// How often the files were read again, with success and without.
    pub(crate) fn reloads(&self) -> (u64, u64) {
        (self.reloaded.load(Relaxed), self.failed.load(Relaxed))
    }
}

/// Reads the files into the configuration of the gRPC port.
///
/// # Errors
///
/// A file that can't be read or used, a key that doesn't fit, a certificate that is not valid now:
/// each names the file.
fn server_config(tls: &config::Tls) -> Result<ServerConfig, Error> {
    let provider = Arc::new(provider(&tls.cipher_suites));
    let (chain, key) = identity(tls)?;
    let roots = Arc::new(roots(&tls.ca_file)?);
    check_validity(&chain, &roots, &provider, &tls.cert_file)?;

    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| Error::tls_file(&tls.ca_file, error))?;
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS12, &version::TLS13])
        .map_err(|error| Error::tls_file(&tls.cert_file, error))?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => Error::KeyMismatch {
                cert: tls.cert_file.clone(),
                key: tls.key_file.clone(),
            },
            error => Error::tls_file(&tls.cert_file, error),
        })?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    Ok(server)
}

/// The configuration of our own connection to the agent: the same identity and authorities. The
/// configured suites are the port's alone.
pub(crate) fn agent_config(tls: &config::Tls) -> Result<ClientConfig, Error> {
    let (chain, key) = identity(tls)?;
    let roots = roots(&tls.ca_file)?;
    let provider = Arc::new(provider(&config::CipherSuite::ALL));
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS12, &version::TLS13])
        .map_err(|error| Error::tls_file(&tls.cert_file, error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| Error::tls_file(&tls.cert_file, error))?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(client)
}

/// The provider with the configured TLS 1.2 suites and all of 1.3.
fn provider(suites: &[config::CipherSuite]) -> CryptoProvider {
    let wanted: Vec<CipherSuite> = suites
        .iter()
        .map(|suite| match suite {
            config::CipherSuite::EcdheRsaAes128GcmSha256 => {
                CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
            }
            config::CipherSuite::EcdheRsaAes256GcmSha384 => {
                CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
            }
        })
        .collect();
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|suite| match suite {
        SupportedCipherSuite::Tls13(_) => true,
        SupportedCipherSuite::Tls12(suite) => wanted.contains(&suite.common.suite),
    });
    provider
}

fn identity(
    tls: &config::Tls,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let chain = certificates(&tls.cert_file)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key_file)?)
        .map_err(|error| Error::pem(&tls.key_file, "a private key", error))?;
    Ok((chain, key))
}

fn roots(file: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots
            .add(certificate)
            .map_err(|error| Error::tls_file(file, error))?;
    }
    Ok(roots)
}

/// All certificates of a PEM file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_slice_iter(&read(file)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::pem(file, "PEM certificates", error))?;
    if certificates.is_empty() {
        return Err(Error::pem(
            file,
            "PEM certificates",
            pem::Error::NoItemsFound,
        ));
    }
    Ok(certificates)
}

fn read(file: &Path) -> Result<Vec<u8>, Error> {
    fs::read(file).map_err(|source| Error::Read {
        file: file.to_owned(),
        source,
    })
}

/// An identity that has expired, or is not valid yet, would start a router that nobody can talk
/// to. Only the leaf's dates are looked at: who issued it is for its clients to judge.
fn check_validity(
    chain: &[CertificateDer<'_>],
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    file: &Path,
) -> Result<(), Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|error| Error::tls_file(file, error))?;
    let any_name = ServerName::try_from(AGENT_NAME).expect("a valid DNS name");
    match verifier.verify_server_cert(&chain[0], &chain[1..], &any_name, &[], UnixTime::now()) {
        Err(rustls::Error::InvalidCertificate(
            error @ (CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }),
        )) => Err(Error::tls_file(
            file,
            rustls::Error::InvalidCertificate(error),
        )),
        _ => Ok(()),
    }
}
