//! A router of a hundred lines for the tests of `lgr`: mutual TLS, the five calls, everything that
//! comes in goes out to every subscriber. It keeps what it was sent, and misbehaves on request.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lgr::certs::{self, Authority, Profile};
use lgr::client::Credentials;
use loggregator::{v1, v2};
use prost::Message;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// Longer than anything here takes, short enough that a hang is seen.
pub const HANG: Duration = Duration::from_secs(120);

/// Identities that belong together (`good`), and those of another authority (`foreign`).
pub struct Certs {
    directory: TempDir,
}

impl Certs {
    pub fn good(&self) -> String {
        self.path("good")
    }

    pub fn foreign(&self) -> String {
        self.path("foreign")
    }

    fn path(&self, name: &str) -> String {
        self.directory
            .path()
            .join(name)
            .to_str()
            .unwrap()
            .to_owned()
    }
}

pub static CERTS: LazyLock<Certs> = LazyLock::new(|| {
    let directory = tempfile::tempdir().unwrap();
    let names = ["doppler", "agent"];
    certs::create(&directory.path().join("good"), &names, false).unwrap();
    // Its own identities, but the authority that the router's certificate checks out against.
    let foreign = directory.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    Authority::new("foreign")
        .unwrap()
        .issue("agent", &Profile::default())
        .unwrap()
        .write(&foreign)
        .unwrap();
    std::fs::copy(directory.path().join("good/ca.crt"), foreign.join("ca.crt")).unwrap();
    Certs { directory }
});

pub fn agent() -> Credentials {
    Credentials::from_directory(CERTS.good(), "agent").unwrap()
}

/// What the router does otherwise than it should.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Response headers of a subscription only with the first message, as the reference does.
    pub unconfirmed: bool,
    /// Half-closed streams end with `UNKNOWN` and `EOF`, as the reference does.
    pub eof: bool,
    /// Half-closed streams are never answered.
    pub silent: bool,
    /// Every n-th incoming message is lost.
    pub lose: Option<usize>,
    /// Every n-th incoming message is delivered twice.
    pub duplicate: Option<usize>,
    /// Subscriptions end with this status after so many messages.
    pub end: Option<(usize, Status)>,
    /// Subscriptions get these bytes first.
    pub first: Option<Bytes>,
    /// Pushes end with this status at once.
    pub refuse: Option<Status>,
}

#[derive(Default)]
struct State {
    behaviour: Behaviour,
    subscribers: Mutex<Vec<UnboundedSender<Bytes>>>,
    requests: Mutex<Vec<v2::EgressBatchRequest>>,
    ingress: Mutex<Vec<Bytes>>,
    v1_subscribers: Mutex<Vec<UnboundedSender<Bytes>>>,
}

/// A running router; stops when dropped.
pub struct FakeRouter {
    pub addr: String,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

impl FakeRouter {
    /// Starts one on a port of its own, with a thread of its own.
    pub fn start(behaviour: Behaviour) -> Self {
        let state = Arc::new(State {
            behaviour,
            ..State::default()
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        runtime.spawn(accept(listener, acceptor(), Arc::clone(&state)));
        Self {
            addr,
            state,
            runtime: Some(runtime),
        }
    }

    /// Every batch that came in, in order.
    pub fn ingress(&self) -> Vec<v2::EnvelopeBatch> {
        let ingress = self.state.ingress.lock().unwrap();
        ingress
            .iter()
            .map(|bytes| v2::EnvelopeBatch::decode(bytes.clone()).unwrap())
            .collect()
    }

    /// Every subscribe request.
    pub fn requests(&self) -> Vec<v2::EgressBatchRequest> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Waits until there are `count` live subscriptions.
    pub fn wait_for_subscribers(&self, count: usize) {
        wait_for(&format!("{count} subscribers"), || {
            let mut subscribers = self.state.subscribers.lock().unwrap();
            subscribers.retain(|subscriber| !subscriber.is_closed());
            subscribers.len() == count
        });
    }

    /// Delivers a batch to every subscriber.
    pub fn publish(&self, batch: &v2::EnvelopeBatch) {
        self.state.deliver(batch.encode_to_vec().into());
    }

    /// Ends all streams and connections.
    pub fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for FakeRouter {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Polls a condition that another thread brings about.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn acceptor() -> TlsAcceptor {
    let directory = CERTS.good();
    let directory = Path::new(&directory);
    let certificate = |name: &str| CertificateDer::from_pem_file(directory.join(name)).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca.crt")).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(
            vec![certificate("doppler.crt")],
            PrivateKeyDer::from_pem_file(directory.join("doppler.key")).unwrap(),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn accept(listener: std::net::TcpListener, acceptor: TlsAcceptor, state: Arc<State>) {
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            continue;
        };
        let (acceptor, state) = (acceptor.clone(), Arc::clone(&state));
        tokio::spawn(async move {
            tcp.set_nodelay(true).ok();
            let Ok(tls) = acceptor.accept(tcp).await else {
                return;
            };
            let service = hyper::service::service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, std::convert::Infallible>(state.call(request).await) }
            });
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(tls), service)
                .await;
        });
    }
}

impl State {
    async fn call(self: Arc<Self>, request: http::Request<Incoming>) -> http::Response<Body> {
        let mut grpc =
            tonic::server::Grpc::new(Raw).apply_max_message_size_config(Some(10 << 20), None);
        let request = request.map(Body::new);
        match request.uri().path() {
            "/loggregator.v2.Ingress/BatchSender" => {
                let push = tower::service_fn(|request| self.clone().push(request, false));
                grpc.client_streaming(push, request).await
            }
            "/loggregator.v2.Ingress/Sender" => {
                let push = tower::service_fn(|request| self.clone().push(request, true));
                grpc.client_streaming(push, request).await
            }
            "/loggregator.v2.Ingress/Send" => {
                let send = tower::service_fn(|request: Request<Bytes>| {
                    self.accept(request.into_inner(), false);
                    std::future::ready(Ok(Response::new(Bytes::new())))
                });
                grpc.unary(send, request).await
            }
            "/loggregator.v2.Egress/BatchedReceiver" => {
                let subscribe = tower::service_fn(|request| self.clone().subscribe(request));
                grpc.server_streaming(subscribe, request).await
            }
            // Each API by itself: nothing is converted. A v1 message looks like a batch of one.
            v1::PUSHER => {
                let push = tower::service_fn(|request| self.clone().push_v1(request));
                grpc.client_streaming(push, request).await
            }
            v1::BATCH_SUBSCRIBE => {
                let subscribe = tower::service_fn(|_: Request<Bytes>| {
                    let (sender, queue) = unbounded_channel();
                    self.v1_subscribers.lock().unwrap().push(sender);
                    std::future::ready(Ok(Response::new(Egress {
                        first: None,
                        queue,
                        end: None,
                    })))
                });
                grpc.server_streaming(subscribe, request).await
            }
            path => Status::unimplemented(format!("no {path} here")).into_http(),
        }
    }

    async fn push(
        self: Arc<Self>,
        request: Request<Streaming<Bytes>>,
        single: bool,
    ) -> Result<Response<Bytes>, Status> {
        if let Some(status) = &self.behaviour.refuse {
            return Err(status.clone());
        }
        let mut messages = request.into_inner();
        while let Some(message) = messages.next().await {
            self.accept(message?, single);
        }
        if self.behaviour.silent {
            std::future::pending::<()>().await;
        }
        if self.behaviour.eof {
            return Err(Status::unknown("EOF"));
        }
        Ok(Response::new(Bytes::new()))
    }

    async fn push_v1(
        self: Arc<Self>,
        request: Request<Streaming<Bytes>>,
    ) -> Result<Response<Bytes>, Status> {
        let mut messages = request.into_inner();
        while let Some(message) = messages.next().await.transpose()? {
            let mut subscribers = self.v1_subscribers.lock().unwrap();
            subscribers.retain(|subscriber| subscriber.send(message.clone()).is_ok());
        }
        // What becomes of the reference's OK without a message.
        if self.behaviour.eof {
            return Err(Status::internal("Missing response message."));
        }
        Ok(Response::new(Bytes::new()))
    }

    fn accept(&self, message: Bytes, single: bool) {
        let message = if single {
            let envelope = v2::Envelope::decode(message).unwrap();
            v2::EnvelopeBatch {
                batch: vec![envelope],
            }
            .encode_to_vec()
            .into()
        } else {
            message
        };
        let number = {
            let mut ingress = self.ingress.lock().unwrap();
            ingress.push(message.clone());
            ingress.len()
        };
        let nth = |every: Option<usize>| every.is_some_and(|every| number.is_multiple_of(every));
        if !nth(self.behaviour.lose) {
            self.deliver(message.clone());
        }
        if nth(self.behaviour.duplicate) {
            self.deliver(message);
        }
    }

    fn deliver(&self, message: Bytes) {
        let mut subscribers = self.subscribers.lock().unwrap();
        subscribers.retain(|subscriber| subscriber.send(message.clone()).is_ok());
    }

    async fn subscribe(
        self: Arc<Self>,
        request: Request<Bytes>,
    ) -> Result<Response<Egress>, Status> {
        let request = v2::EgressBatchRequest::decode(request.into_inner())
            .map_err(|error| Status::internal(error.to_string()))?;
        let (sender, mut queue) = unbounded_channel();
        if let Some(first) = &self.behaviour.first {
            sender.send(first.clone()).unwrap();
        }
        self.requests.lock().unwrap().push(request);
        self.subscribers.lock().unwrap().push(sender);
        let first = if self.behaviour.unconfirmed {
            queue.recv().await
        } else {
            None
        };
        Ok(Response::new(Egress {
            first,
            queue,
            end: self.behaviour.end.clone(),
        }))
    }
}

struct Egress {
    first: Option<Bytes>,
    queue: UnboundedReceiver<Bytes>,
    end: Option<(usize, Status)>,
}

impl Stream for Egress {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some((left, status)) = &mut self.end {
            if *left == 0 {
                return Poll::Ready(Some(Err(status.clone())));
            }
            *left -= 1;
        }
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => match self.queue.poll_recv(cx) {
                Poll::Pending => {
                    if let Some((left, _)) = &mut self.end {
                        *left += 1;
                    }
                    Poll::Pending
                }
                Poll::Ready(next) => Poll::Ready(next.map(Ok)),
            },
        }
    }
}

#[derive(Clone)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.len());
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
