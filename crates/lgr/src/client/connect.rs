//! The way to a router: TCP, mutual TLS, HTTP/2.
//!
//! tonic's own TLS is left aside: with rustls in our hands a refused certificate can be named as
//! what it is. With TLS 1.3 the refusal arrives after our side of the handshake is done, and
//! surfaces at some later call as a broken connection; [`Watched`] remembers the first failure of a
//! connection so that the call's error can tell it.

use std::fmt;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use gather::Gather;
use hyper_util::rt::TokioIo;
use rustls::client::WantsClientCert;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::Error;
use crate::certs::{Files, Identity};

/// What a client shows to a router, and what it checks the router against.
///
/// ```
/// use lgr::certs::Authority;
/// use lgr::client::Credentials;
///
/// let identity = Authority::new("an authority")?.issue("agent", &Default::default())?;
/// let credentials = Credentials::from_identity(&identity)?;
/// # drop(credentials);
/// # Ok::<(), lgr::Error>(())
/// ```
#[derive(Clone)]
pub struct Credentials(Arc<ClientConfig>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

impl Credentials {
    /// Reads certificate, private key and authority from PEM files.
    ///
    /// # Errors
    /// [`Error::Read`] or [`Error::Credentials`] with the file's path.
    pub fn load(
        cert: impl AsRef<Path>,
        key: impl AsRef<Path>,
        ca: impl AsRef<Path>,
    ) -> Result<Self, Error> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|source| Error::Read {
                path: path.to_owned(),
                source,
            })
        };
        let name = |path: &Path| path.display().to_string();
        let (cert, key, ca) = (cert.as_ref(), key.as_ref(), ca.as_ref());
        let roots = roots(&name(ca), &read(ca)?)?;
        let chain = chain(&name(cert), &read(cert)?)?;
        let private = private_key(&name(key), &read(key)?)?;
        let config = builder(&name(ca), roots, rustls::DEFAULT_VERSIONS)?
            .with_client_auth_cert(chain, private)
            .map_err(|error| unusable(&format!("{} and {}", name(cert), name(key)), &error))?;
        Ok(Self::from_config(config))
    }

    /// Reads the files that `lgr certs` wrote for identity `name` into `directory`.
    ///
    /// # Errors
    /// As [`Credentials::load`].
    pub fn from_directory(directory: impl AsRef<Path>, name: &str) -> Result<Self, Error> {
        let files = Files::of(directory.as_ref(), name);
        Self::load(files.cert, files.key, files.ca)
    }

    /// Uses an identity that lives in memory. It is not looked at, so that tests can show a router
    /// certificates which no library would show of its own accord.
    ///
    /// # Errors
    /// [`Error::Credentials`] if a part is not what it should be.
    pub fn from_identity(identity: &Identity) -> Result<Self, Error> {
        Self::from_identity_with(identity, rustls::DEFAULT_VERSIONS)
    }

    /// As [`Credentials::from_identity`], with these TLS versions only.
    ///
    /// # Errors
    /// [`Error::Credentials`] if a part is not what it should be.
    pub fn from_identity_with(
        identity: &Identity,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Result<Self, Error> {
        let what = |part: &str| format!("{} of `{}`", part, identity.name);
        let (key, ca) = (what("private key"), what("authority"));
        let chain = chain(&what("certificate"), identity.cert.as_bytes())?;
        let private = private_key(&key, identity.key.as_bytes())?;
        let private = provider()
            .key_provider
            .load_private_key(private)
            .map_err(|error| unusable(&key, &error))?;
        let roots = roots(&ca, identity.ca.as_bytes())?;
        let shown = SingleCertAndKey::from(CertifiedKey::new(chain, private));
        let builder = builder(&ca, roots, versions)?;
        Ok(Self::from_config(
            builder.with_client_cert_resolver(Arc::new(shown)),
        ))
    }

    /// Shows no certificate at all; a router refuses that. `ca` is PEM.
    ///
    /// # Errors
    /// [`Error::Credentials`] if `ca` holds no certificate.
    pub fn anonymous(ca: &str) -> Result<Self, Error> {
        let what = "authority";
        let builder = builder(what, roots(what, ca.as_bytes())?, rustls::DEFAULT_VERSIONS)?;
        Ok(Self::from_config(builder.with_no_client_auth()))
    }

    /// Uses a configuration of the caller's making; only the application protocol (`h2`) is set.
    pub fn from_config(mut config: ClientConfig) -> Self {
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self(Arc::new(config))
    }

    /// The configuration underneath.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.0
    }
}

fn builder(
    what: &str,
    roots: RootCertStore,
    versions: &[&'static SupportedProtocolVersion],
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(|error| unusable(what, &error))?
        .with_root_certificates(roots))
}

fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())))
}

fn roots(what: &str, pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in chain(what, pem)? {
        roots
            .add(certificate)
            .map_err(|error| unusable(what, &error))?;
    }
    Ok(roots)
}

fn chain(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(what, &error))?;
    if chain.is_empty() {
        Err(unusable(what, &"holds no certificate (PEM)"))
    } else {
        Ok(chain)
    }
}

fn private_key(what: &str, pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls_pki_types::pem::Error::NoItemsFound => unusable(what, &"holds no private key (PEM)"),
        error => unusable(what, &error),
    })
}

fn unusable(what: &str, reason: &dyn fmt::Display) -> Error {
    Error::Credentials {
        what: what.to_owned(),
        reason: reason.to_string(),
    }
}

/// How to speak to a router. The defaults are those of its real consumers.
///
/// ```
/// let options = lgr::client::Options::default();
/// assert_eq!(options.server_name, "doppler");
/// assert_eq!(options.max_receive, 10 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// The name that the router's certificate must have. Default `doppler`.
    pub server_name: String,
    /// How long connecting may take, TLS included. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a router may take to answer a half-close or a unary call. Default 10 s.
    pub answer_timeout: Duration,
    /// The largest message to accept, in bytes. Default 10 MiB.
    pub max_receive: usize,
    /// HTTP/2 window of each stream, in bytes; `None` is the HTTP library's default.
    pub stream_window: Option<u32>,
    /// HTTP/2 window of the connection, in bytes; `None` is the HTTP library's default.
    pub connection_window: Option<u32>,
    /// Interval of HTTP/2 pings, also without streams; `None` sends none. Default 15 s. A ping
    /// that is not answered within 20 s ends the connection.
    pub ping_interval: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            server_name: "doppler".to_owned(),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            max_receive: 10 << 20,
            stream_window: None,
            connection_window: None,
            ping_interval: Some(Duration::from_secs(15)),
        }
    }
}

const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Beneath TLS, since rustls reads 4 KiB at a time.
const READ_BUFFER: usize = 64 << 10;

/// Connects to the router at `addr` (`HOST:PORT`).
pub(super) async fn connect(
    addr: &str,
    credentials: &Credentials,
    options: &Options,
) -> Result<(Channel, Witness), Error> {
    let port = match addr.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() => port.parse::<u16>().map_err(|_| {
            let reason = format!("port `{port}` is not a number from 0 to 65535");
            Error::Address {
                addr: addr.to_owned(),
                reason,
            }
        })?,
        _ => {
            let reason = "must be HOST:PORT, for example 127.0.0.1:8082".to_owned();
            return Err(Error::Address {
                addr: addr.to_owned(),
                reason,
            });
        }
    };
    let name = ServerName::try_from(options.server_name.clone()).map_err(|_| Error::Argument {
        argument: format!("server name `{}`", options.server_name),
        reason: "must be a host name or an IP address".to_owned(),
    })?;
    let failed = |reason: String| Error::Connect {
        peer: addr.to_owned(),
        reason,
    };

    let uri = match &name {
        ServerName::IpAddress(rustls_pki_types::IpAddr::V6(_)) => {
            format!("http://[{}]:{port}", options.server_name)
        }
        _ => format!("http://{}:{port}", options.server_name),
    };
    let mut endpoint = Endpoint::from_shared(uri)
        .and_then(|endpoint| endpoint.user_agent(concat!("lgr/", env!("CARGO_PKG_VERSION"))))
        .map_err(|error| failed(causes(&error)))?
        .initial_stream_window_size(options.stream_window)
        .initial_connection_window_size(options.connection_window)
        .keep_alive_timeout(PING_TIMEOUT);
    if let Some(interval) = options.ping_interval {
        endpoint = endpoint
            .http2_keep_alive_interval(interval)
            .keep_alive_while_idle(true);
    }

    let witness = Witness::default();
    let connector = Connector {
        addr: addr.to_owned(),
        tls: TlsConnector::from(Arc::clone(&credentials.0)),
        name,
        timeout: options.connect_timeout,
        witness: witness.clone(),
    };
    let connector = tower::service_fn(move |_: http::Uri| {
        let connector = connector.clone();
        async move { connector.connect().await.map(TokioIo::new) }
    });
    match endpoint.connect_with_connector(connector).await {
        Ok(channel) => Ok((channel, witness)),
        Err(error) => Err(failed(witness.first().unwrap_or_else(|| causes(&error)))),
    }
}

#[derive(Clone)]
struct Connector {
    addr: String,
    tls: TlsConnector,
    name: ServerName<'static>,
    timeout: Duration,
    witness: Witness,
}

impl Connector {
    /// A connection that is through with TLS, or an error that says which part failed.
    async fn connect(self) -> io::Result<Gather<Watched<impl AsyncRead + AsyncWrite>>> {
        self.witness.forget();
        let attempt = async {
            let tcp = TcpStream::connect(&self.addr).await?;
            tcp.set_nodelay(true)?;
            let tcp = BufReader::with_capacity(READ_BUFFER, tcp);
            let tls = self
                .tls
                .connect(self.name.clone(), tcp)
                .await
                .map_err(|error| {
                    io::Error::new(error.kind(), format!("TLS handshake failed: {error}"))
                })?;
            if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
                return Err(io::Error::other(
                    "the peer does not speak HTTP/2 (no ALPN `h2`)",
                ));
            }
            Ok(tls)
        };
        let result = match tokio::time::timeout(self.timeout, attempt).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no connection within {:?}", self.timeout),
            )),
        };
        match result {
            Ok(io) => Ok(Gather::new(Watched {
                io,
                witness: self.witness,
                failure: None,
            })),
            Err(error) => {
                self.witness.note(&error);
                Err(error)
            }
        }
    }
}

/// Remembers the first failure of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Witness(Arc<Mutex<Option<String>>>);

impl Witness {
    pub(super) fn first(&self) -> Option<String> {
        self.slot().clone()
    }

    fn note(&self, error: &io::Error) {
        self.slot().get_or_insert_with(|| error.to_string());
    }

    fn forget(&self) {
        *self.slot() = None;
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A connection whose first failure is remembered.
struct Watched<T> {
    io: T,
    witness: Witness,
    /// Why writing failed, while the peer's last words are awaited.
    failure: Option<io::Error>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.io).poll_read(cx, buffer));
        Poll::Ready(result.inspect_err(|error| self.witness.note(error)))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Watched<T> {
    /// A failed write is final, but it has to wait: a peer that refuses says so before it closes,
    /// and what it said, still to be read, tells more than "broken pipe".
    fn poll_failure(&mut self, cx: &mut Context<'_>, failure: io::Error) -> Poll<io::Error> {
        let mut scratch = [0; 1024];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.io).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(Ok(())) => self.witness.note(&failure),
                Poll::Ready(Err(refusal)) => self.witness.note(&refusal),
                Poll::Pending => {
                    self.failure = Some(failure);
                    return Poll::Pending;
                }
            }
            if self.witness.first().is_some() {
                return Poll::Ready(failure);
            }
        }
    }

    fn poll_writing<R>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let failure = match self.failure.take() {
            Some(failure) => failure,
            None => match ready!(poll(Pin::new(&mut self.io), cx)) {
                Ok(done) => return Poll::Ready(Ok(done)),
                Err(failure) => failure,
            },
        };
        self.poll_failure(cx, failure).map(Err)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, |io, cx| io.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_writing(cx, |io, cx| io.poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_writing(cx, |io, cx| io.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// An error with all its causes, without the repetitions that error types like to make.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = cause.source();
    }
    text
}
