//! A router in this process, its certificates, and clients for it: what all tests here start from.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::{net::SocketAddr, path::PathBuf, sync::LazyLock, time::Duration};

use lgr::{
    certs,
    client::{Client, Credentials, Options, every_kind},
};
use loggregator::v2;
use server::Server;

/// How long a test waits for what must happen at once: long enough for a very busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One set of certificates for the whole test binary.
pub struct Certificates {
    directory: tempfile::TempDir,
}

pub static CERTIFICATES: LazyLock<Certificates> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a temporary directory");
    certs::create(
        directory.path(),
        &["doppler", "metron", "reverselogproxy"],
        false,
    )
    .expect("certificates");
    Certificates { directory }
});

impl Certificates {
    pub fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub fn credentials(&self) -> Credentials {
        Credentials::from_directory(self.directory.path(), "reverselogproxy").expect("credentials")
    }
}

/// A router with these variables set, and free ports.
pub fn start(variables: &[(&'static str, &str)]) -> Server {
    Server::start(&settings(variables)).expect("the router starts")
}

pub fn settings(variables: &[(&'static str, &str)]) -> config::Settings {
    config::Settings::read(|name| {
        if let Some((_, value)) = variables.iter().find(|(variable, _)| *variable == name) {
            return Some(PathBuf::from(value).into_os_string());
        }
        let file = match name {
            "ROUTER_CA_FILE" => "ca.crt",
            "ROUTER_CERT_FILE" => "doppler.crt",
            "ROUTER_KEY_FILE" => "doppler.key",
            _ => return None,
        };
        Some(CERTIFICATES.path(file).into_os_string())
    })
    .expect("settings")
}

/// The address to reach a server at: it listens on all interfaces.
pub fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.grpc_address().port())
}

pub async fn client(server: &Server) -> Client {
    client_with(server, Options::default()).await
}

pub async fn client_with(server: &Server, options: Options) -> Client {
    Client::connect(&address(server), &CERTIFICATES.credentials(), &options)
        .await
        .expect("the router is reachable")
}

/// A client of a router that is a process of its own.
pub async fn client_at(router: SocketAddr, options: Options) -> Client {
    Client::connect(&router.to_string(), &CERTIFICATES.credentials(), &options)
        .await
        .expect("the router is reachable")
}

/// A connection that is through with TLS and has not said anything more.
pub async fn tls(
    router: SocketAddr,
    credentials: &Credentials,
) -> std::io::Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>> {
    let socket = tokio::net::TcpStream::connect(router).await?;
    let name = rustls_pki_types::ServerName::try_from("doppler").expect("a valid DNS name");
    tokio_rustls::TlsConnector::from(credentials.config().clone())
        .connect(name, socket)
        .await
}

/// A request for everything.
pub fn firehose() -> v2::EgressBatchRequest {
    v2::EgressBatchRequest {
        selectors: every_kind(""),
        ..Default::default()
    }
}

/// Waits until the router has as many subscriptions.
pub async fn subscriptions(server: &Server, count: u64) {
    eventually(&format!("{count} subscriptions"), || {
        server.router().counters().subscriptions == count
    })
    .await;
}

/// Waits for a condition that must come true.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    if waited.await.is_err() {
        panic!("{what}: not within {PATIENCE:?}");
    }
}

/// A log of `source_id` with `payload`.
pub fn log(source_id: &str, payload: impl Into<Vec<u8>>) -> v2::Envelope {
    v2::Envelope {
        timestamp: 1,
        source_id: source_id.to_owned(),
        message: Some(v2::envelope::Message::Log(v2::Log {
            payload: payload.into(),
            r#type: 0,
        })),
        ..Default::default()
    }
}

pub fn counter(source_id: &str, name: &str) -> v2::Envelope {
    v2::Envelope {
        source_id: source_id.to_owned(),
        message: Some(v2::envelope::Message::Counter(v2::Counter {
            name: name.to_owned(),
            delta: 1,
            total: 0,
        })),
        ..Default::default()
    }
}

pub fn batch(envelopes: impl IntoIterator<Item = v2::Envelope>) -> v2::EnvelopeBatch {
    v2::EnvelopeBatch {
        batch: envelopes.into_iter().collect(),
    }
}

/// Receives until `count` envelopes are there, and returns the batches.
pub async fn receive(
    from: &mut lgr::client::BatchedReceiver,
    count: usize,
) -> Vec<Vec<v2::Envelope>> {
    let mut batches = Vec::new();
    let mut received = 0;
    while received < count {
        let next = tokio::time::timeout(PATIENCE, from.next()).await;
        let batch = next
            .unwrap_or_else(|_| panic!("{received} of {count} envelopes within {PATIENCE:?}"))
            .expect("the stream lives")
            .expect("the stream does not end")
            .batch;
        received += batch.len();
        batches.push(batch);
    }
    batches
}

/// The status code that an open stream ends with, once what is still on its way has been read.
pub async fn ending(stream: &mut lgr::client::BatchedReceiver) -> Option<tonic::Code> {
    let read_to_the_end = async {
        loop {
            match stream.next().await {
                Ok(Some(_)) => {}
                Ok(None) => return Some(tonic::Code::Ok),
                Err(error) => return error.code(),
            }
        }
    };
    tokio::time::timeout(PATIENCE, read_to_the_end)
        .await
        .expect("the stream ends")
}

pub fn payload(envelope: &v2::Envelope) -> &[u8] {
    match &envelope.message {
        Some(v2::envelope::Message::Log(log)) => &log.payload,
        other => panic!("not a log: {other:?}"),
    }
}

/// A GET on the debug port: the status and the body.
pub async fn get(debug: SocketAddr, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let mut socket = tokio::net::TcpStream::connect(debug)
        .await
        .expect("the debug port");
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    socket
        .write_all(request.as_bytes())
        .await
        .expect("a request");
    let mut response = String::new();
    socket
        .read_to_string(&mut response)
        .await
        .expect("a response");
    let status = response[9..12].parse().expect("a status");
    let body = response
        .split_once("\r\n\r\n")
        .map_or("", |(_, body)| body)
        .to_owned();
    (status, body)
}
