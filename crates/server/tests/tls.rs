//! Who is let in, with which TLS versions, suites and keys, and what the log says of those who are
//! not.

mod common;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, LazyLock, Mutex, Once},
};

use common::*;
use lgr::{
    certs::{Authority, Files, Identity, Key, Profile, Usage, Validity, Version},
    client::{Client, Credentials, Options},
};
use rustls::{
    CipherSuite, ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion,
    crypto::aws_lc_rs, version,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use server::Server;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

const AES_128: CipherSuite = CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
const AES_256: CipherSuite = CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384;
const CHACHA: CipherSuite = CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256;

static AUTHORITY: LazyLock<Authority> =
    LazyLock::new(|| Authority::new("our authority").expect("an authority"));

/// Field case O7, those who are let in.
#[tokio::test]
async fn a_name_is_no_matter() {
    let server = router(Key::Rsa, &[]);
    let nameless = Profile {
        alternative_names: Some(Vec::new()),
        ..Profile::default()
    };
    let ecdsa = Profile {
        key: Key::Ecdsa,
        ..Profile::default()
    };
    let client_only = Profile {
        usage: Usage::ClientOnly,
        ..Profile::default()
    };
    for profile in [nameless, ecdsa, client_only, Profile::default()] {
        let identity = AUTHORITY.issue("whoever", &profile).unwrap();
        for versions in [&[&version::TLS12][..], &[&version::TLS13]] {
            let credentials = Credentials::from_identity_with(&identity, versions).unwrap();
            let client = Client::connect(&address(&server), &credentials, &Options::default())
                .await
                .unwrap();
            client.send(&batch([log("a", "x")])).await.unwrap();
        }
    }
}

/// Field case O7, those who are not.
#[tokio::test]
async fn whoever_is_refused_is_named_with_the_reason() {
    let issue = |profile: Profile| AUTHORITY.issue("agent", &profile).unwrap();
    let foreign = Identity {
        ca: AUTHORITY.cert().to_owned(),
        ..Authority::new("a foreign authority")
            .unwrap()
            .issue("agent", &Profile::default())
            .unwrap()
    };
    let cases = [
        (
            issue(Profile {
                usage: Usage::ServerOnly,
                ..Profile::default()
            }),
            "not for authenticating clients",
        ),
        (foreign, "not from an authority in ROUTER_CA_FILE"),
        (
            issue(Profile {
                version: Version::V1,
                ..Profile::default()
            }),
            "not X.509 version 3",
        ),
        (
            issue(Profile {
                validity: Validity::Expired,
                ..Profile::default()
            }),
            "has expired",
        ),
        (
            issue(Profile {
                validity: Validity::NotYet,
                ..Profile::default()
            }),
            "not valid yet",
        ),
    ];
    // each with a server of its own, since the log sums up what comes in crowds
    for (identity, reason) in &cases {
        for version in [&version::TLS12, &version::TLS13] {
            let server = router(Key::Rsa, &[]);
            let credentials = Credentials::from_identity_with(identity, &[version]).unwrap();
            let peer = turned_away(&server, credentials.config().clone()).await;
            assert_told(peer, reason).await;
        }
    }

    let server = router(Key::Rsa, &[]);
    let nobody = Credentials::anonymous(AUTHORITY.cert()).unwrap();
    let peer = turned_away(&server, nobody.config().clone()).await;
    assert_told(peer, "it showed no certificate").await;
    let (_, metrics) = get(server.debug_address(), "/metrics").await;
    assert!(
        metrics.contains("\nrefused_connections_total 1\n"),
        "{metrics}"
    );
}

#[tokio::test]
async fn whoever_does_not_speak_h2_over_tls_is_refused() {
    let server = router(Key::Rsa, &[]);
    // HTTP/2 without TLS
    let mut socket = connect(&server).await;
    let peer = socket.local_addr().unwrap();
    socket
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    until_closed(&mut socket).await;
    assert_told(peer, "it does not speak TLS").await;

    // TLS without an application protocol, and with another one
    for (protocols, reason) in [
        (vec![], "it did not ask for h2 (ALPN)"),
        (vec![b"http/1.1".to_vec()], "it did not ask for h2 (ALPN)"),
    ] {
        let mut config = client_config(&[&version::TLS13], &[]);
        config.alpn_protocols = protocols;
        let peer = turned_away(&server, Arc::new(config)).await;
        assert_told(peer, reason).await;
    }

    // h2 by name only
    let mut tls = handshake(&server, Arc::new(client_config(&[&version::TLS13], &[])))
        .await
        .unwrap();
    let peer = tls.get_ref().0.local_addr().unwrap();
    tls.write_all(b"GET / HTTP/1.1\r\nhost: doppler\r\n\r\n")
        .await
        .unwrap();
    until_closed(&mut tls).await;
    assert_told(peer, "it does not speak HTTP/2").await;
}

#[tokio::test]
async fn tls_before_1_2_is_refused() {
    let server = router(Key::Rsa, &[]);
    for version in [[3, 1], [3, 2]] {
        let mut socket = connect(&server).await;
        let peer = socket.local_addr().unwrap();
        socket.write_all(&client_hello(version)).await.unwrap();
        // a fatal alert
        let mut alert = [0; 7];
        let answer = time::timeout(PATIENCE, socket.read_exact(&mut alert)).await;
        answer.expect("an answer").unwrap();
        assert_eq!((alert[0], alert[5]), (21, 2));
        until_closed(&mut socket).await;
        assert_told(peer, "its TLS is too old: 1.2 or 1.3 is needed").await;
    }
}

/// Field case O8: the list holds for TLS 1.2, and only there.
#[tokio::test]
async fn cipher_suites_are_those_of_the_list() {
    let name = |suite: CipherSuite| suite.as_str().expect("a known suite").to_owned();
    let (both, one) = (
        format!("{}:{}", name(AES_128), name(AES_256)),
        name(AES_256),
    );
    let with_others = format!("TLS_RSA_WITH_RC4_128_SHA,{one},");
    for (list, offered) in [
        ("", &[AES_128, AES_256][..]),
        (&both, &[AES_128, AES_256]),
        (&one, &[AES_256]),
        (&with_others, &[AES_256]),
    ] {
        let server = router(Key::Rsa, &[("ROUTER_CIPHER_SUITES", list)]);
        for suite in [AES_128, AES_256, CHACHA] {
            let config = Arc::new(client_config(&[&version::TLS12], &[suite]));
            if offered.contains(&suite) {
                let negotiated = negotiated(&server, config).await;
                assert_eq!(negotiated, (ProtocolVersion::TLSv1_2, suite), "{list}");
            } else {
                let peer = turned_away(&server, config).await;
                assert_told(peer, "it has no cipher suite of ours").await;
            }
        }
        for suite in [
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        ] {
            let config = Arc::new(client_config(&[&version::TLS13], &[suite]));
            let negotiated = negotiated(&server, config).await;
            assert_eq!(negotiated, (ProtocolVersion::TLSv1_3, suite), "{list}");
        }
    }
}

/// Field case O8: both suites of TLS 1.2 sign with RSA.
#[tokio::test]
async fn an_ecdsa_key_works_with_tls_1_3() {
    let server = router(Key::Ecdsa, &[]);
    let both = Arc::new(client_config(&[&version::TLS12, &version::TLS13], &[]));
    assert_eq!(negotiated(&server, both).await.0, ProtocolVersion::TLSv1_3);
    let old = Arc::new(client_config(&[&version::TLS12], &[]));
    turned_away(&server, old).await;
}

/// Field case O8: a wrong path is named, whatever the list says.
#[test]
fn a_wrong_path_is_named_whatever_the_suites() {
    let settings = settings(&[
        ("ROUTER_CERT_FILE", "no/such/file.crt"),
        (
            "ROUTER_CIPHER_SUITES",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        ),
    ]);
    let error = Server::start(&settings).err().expect("there is no file");
    assert!(error.to_string().contains("no/such/file.crt"), "{error}");
}

/// Field case O5, in process: whoever connects after a reload sees the new certificate, and a
/// session from before it is not resumed.
#[tokio::test]
async fn a_reload_changes_new_connections_only() {
    let directory = tempfile::tempdir().unwrap();
    let files = identity(Key::Rsa).write(directory.path()).unwrap();
    let server = Server::start(&settings_of(&files, &[])).unwrap();
    let config = Arc::new(client_config(&[&version::TLS12], &[]));

    let shown = |tls: &TlsStream<TcpStream>| {
        let chain = tls.get_ref().1.peer_certificates();
        chain.expect("a certificate")[0].clone().into_owned()
    };
    let mut before = handshake(&server, config.clone()).await.unwrap();
    let old = shown(&before);
    identity(Key::Rsa).write(directory.path()).unwrap();
    server.reload_certificates().unwrap();
    let after = handshake(&server, config.clone()).await.unwrap();
    assert_ne!(shown(&after), old);

    std::fs::write(&files.cert, "nothing").unwrap();
    let error = server.reload_certificates().unwrap_err();
    assert!(error.to_string().contains("doppler.crt"), "{error}");
    let still = handshake(&server, config).await.unwrap();
    assert_eq!(shown(&still), shown(&after));

    // the first connection lives: it answers to the preface with its settings
    before
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut frame = [0; 9];
    let answer = time::timeout(PATIENCE, before.read_exact(&mut frame)).await;
    answer.expect("an answer").unwrap();
    assert_eq!(frame[3], 4, "not a SETTINGS frame: {frame:?}");
}

/// A router of our authority with such a key.
fn router(key: Key, variables: &[(&'static str, &str)]) -> Server {
    LOG.listen();
    let directory = tempfile::tempdir().unwrap();
    let files = identity(key).write(directory.path()).unwrap();
    // it has read its files when it has started
    Server::start(&settings_of(&files, variables)).expect("the router starts")
}

fn identity(key: Key) -> Identity {
    let profile = Profile {
        key,
        ..Profile::default()
    };
    AUTHORITY.issue("doppler", &profile).unwrap()
}

fn settings_of(files: &Files, variables: &[(&'static str, &str)]) -> config::Settings {
    let mut all = vec![
        ("ROUTER_CERT_FILE", files.cert.to_str().unwrap()),
        ("ROUTER_KEY_FILE", files.key.to_str().unwrap()),
        ("ROUTER_CA_FILE", files.ca.to_str().unwrap()),
    ];
    all.extend(variables);
    settings(&all)
}

/// A client with a good certificate, and with these suites; none means all.
fn client_config(
    versions: &[&'static SupportedProtocolVersion],
    suites: &[CipherSuite],
) -> ClientConfig {
    static CLIENT: LazyLock<Identity> =
        LazyLock::new(|| AUTHORITY.issue("agent", &Profile::default()).unwrap());

    let mut provider = aws_lc_rs::default_provider();
    if !suites.is_empty() {
        provider
            .cipher_suites
            .retain(|suite| suites.contains(&suite.suite()));
    }
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(AUTHORITY.cert().as_bytes()).unwrap())
        .unwrap();
    let chain = vec![CertificateDer::from_pem_slice(CLIENT.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(CLIENT.key.as_bytes()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

async fn connect(server: &Server) -> TcpStream {
    TcpStream::connect(address(server)).await.unwrap()
}

async fn handshake(server: &Server, config: Arc<ClientConfig>) -> io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("doppler").unwrap();
    let socket = connect(server).await;
    TlsConnector::from(config).connect(name, socket).await
}

/// Version and suite of a connection that works.
async fn negotiated(server: &Server, config: Arc<ClientConfig>) -> (ProtocolVersion, CipherSuite) {
    let tls = handshake(server, config).await.expect("a handshake");
    let session = tls.get_ref().1;
    (
        session.protocol_version().unwrap(),
        session.negotiated_cipher_suite().unwrap().suite(),
    )
}

/// Tries to connect, makes sure that the router closes, and says from which address it was.
async fn turned_away(server: &Server, config: Arc<ClientConfig>) -> SocketAddr {
    let socket = connect(server).await;
    let peer = socket.local_addr().unwrap();
    let name = ServerName::try_from("doppler").unwrap();
    // with TLS 1.3 it may look fine until something is read
    if let Ok(mut tls) = TlsConnector::from(config).connect(name, socket).await {
        until_closed(&mut tls).await;
    }
    peer
}

/// Reads until the end, whatever kind of end it is. There may be TLS records, but no data.
async fn until_closed(socket: &mut (impl tokio::io::AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    let closed = time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
    let _ = closed.expect("the router closes");
}

/// Checks that the log has exactly one line on a peer, which is short and gives the reason.
async fn assert_told(peer: SocketAddr, reason: &str) {
    let whose = format!(" {peer} ");
    let about_peer = || {
        let mut lines = LOG.lines();
        lines.retain(|line| line.contains(&whose));
        lines
    };
    eventually(&format!("a line on {peer}: {reason}"), || {
        !about_peer().is_empty()
    })
    .await;
    let lines = about_peer();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains(reason), "{lines:#?}");
    assert!(lines[0].len() < 140, "too long: {lines:#?}");
}

/// What the servers of this test binary have logged.
static LOG: Log = Log {
    listening: Once::new(),
    text: Mutex::new(Vec::new()),
};

struct Log {
    listening: Once,
    text: Mutex<Vec<u8>>,
}

impl Log {
    fn listen(&'static self) {
        self.listening.call_once(|| {
            tracing_subscriber::fmt()
                .with_ansi(false)
                .without_time()
                .with_target(false)
                .with_writer(move || self)
                .init();
        });
    }

    fn lines(&self) -> Vec<String> {
        let text = self.text.lock().unwrap();
        let text = String::from_utf8_lossy(&text);
        text.lines().map(str::to_owned).collect()
    }
}

impl io::Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a client sends that knows no more than an old version.
fn client_hello(version: [u8; 2]) -> Vec<u8> {
    let mut hello = version.to_vec();
    hello.extend([7; 32]); // random
    hello.push(0); // no session
    hello.extend([0, 4, 0xC0, 0x13, 0x00, 0x2F]); // ECDHE_RSA and RSA with AES_128_CBC_SHA
    hello.extend([1, 0]); // no compression
    let extensions = [
        0, 10, 0, 4, 0, 2, 0, 23, // groups: P-256
        0, 11, 0, 2, 1, 0, // point formats: uncompressed
    ];
    hello.extend([0, extensions.len() as u8]);
    hello.extend(extensions);

    let mut record = vec![22, 3, 1, 0, hello.len() as u8 + 4];
    record.extend([1, 0, 0, hello.len() as u8]);
    record.extend(hello);
    record
}
