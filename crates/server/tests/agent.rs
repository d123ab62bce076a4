//! The router's own metrics as an agent receives them: what they look like, and that not a single
//! count is lost while the agent is away, is the wrong one, or breaks off.

mod common;
#[path = "common/process.rs"]
mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use bytes::{Buf as _, Bytes, BytesMut};
use common::*;
use h2::server::SendResponse;
use lgr::certs::Authority;
use loggregator::v2::{self, envelope::Message, value::Data};
use process::Process;
use prost::Message as _;
use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// Field case O15, the part that an agent sees.
#[tokio::test]
async fn six_metrics_each_on_a_stream_of_its_own() {
    let agent = StandIn::start(Manners::default()).await;
    let started = nanoseconds();
    let server = start(&[
        ("AGENT_GRPC_ADDRESS", &agent.address.to_string()),
        ("ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS", "50"),
        ("ROUTER_METRIC_SOURCE_ID", "a-router"),
    ]);
    let _subscription = server.router().subscribe(&firehose(), "a test");
    eventually("three pulses", || agent.received().len() >= 18).await;

    let received = agent.received();
    let mut of_stream = BTreeMap::new();
    for one in &received {
        of_stream.entry(one.stream).or_insert(series(&one.envelope));
    }
    assert_eq!(of_stream.len(), 6);
    for one in &received {
        assert!(
            one.envelope.timestamp >= started + 50_000_000,
            "before the first interval is over"
        );
        assert!(one.envelope.timestamp <= nanoseconds());
        assert_eq!(one.path, "/loggregator.v2.Ingress/Sender");
        assert_eq!(one.content_type, "application/grpc");
        assert_eq!(one.envelope.source_id, "a-router");
        assert_eq!(one.envelope.instance_id, "");
        assert!(one.envelope.tags.is_empty());
        assert_eq!(of_stream[&one.stream], series(&one.envelope));
    }
    let connections: BTreeSet<_> = received.iter().map(|one| one.connection).collect();
    assert_eq!(connections.len(), 1);

    let common = [("metric_version", "2.0"), ("origin", "loggregator.doppler")];
    let with = |direction| [&[("direction", direction)][..], &common].concat();
    let mut expected = vec![
        ("counter ingress".to_owned(), common.to_vec()),
        ("counter dropped".to_owned(), with("ingress")),
        ("counter dropped".to_owned(), with("egress")),
        ("counter egress".to_owned(), common.to_vec()),
        ("counter egress".to_owned(), common.to_vec()),
        ("gauge subscriptions".to_owned(), common.to_vec()),
    ];
    let mut shapes: Vec<_> = of_stream.into_values().collect();
    expected.sort();
    shapes.sort();
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(name, tags)| {
            (
                name,
                tags.iter()
                    .map(|(k, v)| (k.to_string(), v.to_string()))
                    .collect(),
            )
        })
        .collect();
    assert_eq!(shapes, expected);

    // zeros are sent, too
    for one in &received {
        match one.envelope.message.as_ref().expect("a message") {
            Message::Counter(counter) => assert_eq!((counter.delta, counter.total), (0, 0)),
            Message::Gauge(gauge) => {
                assert_eq!(gauge.metrics["subscriptions"].unit, "subscriptions");
            }
            other => panic!("{other:?}"),
        }
    }
    eventually("one stream", || agent.gauge("subscriptions") == Some(1.0)).await;
}

#[tokio::test]
async fn deltas_add_up_to_the_counters() {
    let agent = StandIn::start(Manners::default()).await;
    let server = start_with_agent(agent.address, &[("ROUTER_EGRESS_V2_BUFFER_SIZE", "100")]);
    let _slow = server
        .router()
        .subscribe(&firehose(), "one that never reads");
    let client = client(&server).await;
    let mut reader = client.batched_receiver(v2::EgressBatchRequest {
        selectors: lgr::client::every_kind("b"),
        ..Default::default()
    });
    subscriptions(&server, 2).await;
    for _ in 0..20 {
        client
            .send(&batch(
                (0..50).map(|_| log("a", "x")).chain([log("b", "y")]),
            ))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    receive(&mut reader, 20).await;

    agent.has_all_of(&server).await;
    let now = server.router().counters();
    assert_eq!((now.ingress, now.egress), (1_020, 20));
    assert!(now.dropped_egress >= 920, "{now:?}");
    assert_eq!(agent.gauge("subscriptions"), Some(2.0));
}

/// Field case O18.
#[tokio::test]
async fn nothing_is_lost_while_the_agent_is_away() {
    let agent = StandIn::start(Manners::default()).await;
    let address = agent.address;
    let server = start_with_agent(address, &[("ROUTER_EGRESS_V2_BUFFER_SIZE", "10")]);
    eventually("a pulse", || !agent.received().is_empty()).await;
    let before = agent.gone().await;

    let _slow = server
        .router()
        .subscribe(&firehose(), "one that never reads");
    let client = client(&server).await;
    let mut reader = client.batched_receiver(v2::EgressBatchRequest {
        selectors: lgr::client::every_kind("b"),
        ..Default::default()
    });
    subscriptions(&server, 2).await;
    for round in 0..101 {
        client
            .send(&batch((0..10).map(|_| log("a", "x"))))
            .await
            .unwrap();
        if round % 10 == 0 {
            // routing goes on as if nothing were wrong
            client.send(&batch([log("b", "y")])).await.unwrap();
            receive(&mut reader, 1).await;
        }
    }
    eventually("all published", || {
        server.router().counters().published == 1_010 + 11
    })
    .await;
    let dropped = server.router().counters().dropped_egress;
    assert!((1_011..1_021).contains(&dropped), "{dropped}");

    let agent = StandIn::start_at(address, Manners::default()).await;
    agent.knows(before);
    agent.has_all_of(&server).await;
    assert_eq!(server.router().counters().dropped_egress, dropped);
}

/// Field case O18, the part on leaks.
#[tokio::test]
async fn an_agent_that_comes_and_goes_leaves_nothing_behind() {
    let mut agent = StandIn::start(Manners::default()).await;
    let address = agent.address;
    let router = Process::start(&variables(address));
    let grpc = router.grpc();
    let up = "an agent's pulse";
    eventually(up, || !agent.received().is_empty()).await;
    let descriptors = router.descriptors();

    let told = |part: &str| {
        router
            .stderr()
            .iter()
            .filter(|line| line.contains(part))
            .count()
    };
    for round in 1..=3 {
        drop(agent);
        eventually("it is missed", || {
            told("metrics don't reach the agent") == round
        })
        .await;
        agent = StandIn::start_at(address, Manners::default()).await;
        eventually("it is found", || told("metrics reach the agent") == round).await;
        eventually(up, || !agent.received().is_empty()).await;
    }
    eventually("as many descriptors as at first", || {
        router.descriptors() == descriptors
    })
    .await;
    drop(TcpStream::connect(grpc).await.expect("it still accepts"));
    assert_eq!(told("the agent"), 6, "{:#?}", router.stderr());
}

#[tokio::test]
async fn an_agent_of_the_wrong_name_costs_no_count() {
    costs_no_count(Manners {
        identity: Some("reverselogproxy"),
        ..Manners::default()
    })
    .await;
}

/// With TLS 1.3 the refusal comes after the router's own side of the handshake is done.
#[tokio::test]
async fn an_agent_that_refuses_our_certificate_costs_no_count() {
    costs_no_count(Manners {
        foreign_clients: true,
        ..Manners::default()
    })
    .await;
}

#[tokio::test]
async fn an_agent_that_hangs_costs_no_count() {
    costs_no_count(Manners {
        window: Some(10),
        ..Manners::default()
    })
    .await;
}

/// An agent with bad manners must not get a single envelope; the right one then gets all.
async fn costs_no_count(manners: Manners) {
    let agent = StandIn::start(manners).await;
    let address = agent.address;
    let server = start_with_agent(address, &[]);
    let client = client(&server).await;
    client
        .send(&batch((0..5).map(|_| log("a", "x"))))
        .await
        .unwrap();
    // the second comes when the first has hung for too long
    let attempts = if manners.window.is_some() { 2 } else { 3 };
    eventually("attempts to connect", || agent.connections() >= attempts).await;
    client
        .send(&batch((0..5).map(|_| log("a", "x"))))
        .await
        .unwrap();
    assert_eq!(server.router().counters().ingress, 10);
    assert_eq!(agent.gone().await, Sums::new());

    let agent = StandIn::start_at(address, Manners::default()).await;
    agent.has_all_of(&server).await;
}

#[tokio::test]
async fn an_agent_that_ends_streams_gets_them_again() {
    let agent = StandIn::start(Manners {
        ends_streams: true,
        ..Manners::default()
    })
    .await;
    let server = start_with_agent(agent.address, &[]);
    let client = client(&server).await;
    for number in 1..=5 {
        client.send(&batch([log("a", "x")])).await.unwrap();
        let connections = || {
            let received = agent.received().into_iter();
            received.map(|one| one.connection).collect::<BTreeSet<_>>()
        };
        eventually("one more", || connections().len() >= number).await;
    }
    agent.has_all_of(&server).await;
}

#[tokio::test]
async fn the_last_counts_go_out_when_the_router_ends() {
    let agent = StandIn::start(Manners::default()).await;
    let server = start_with_agent(agent.address, &[]);
    eventually("a pulse", || !agent.received().is_empty()).await;
    let router = server.router().clone();
    let subscription = router.subscribe(&firehose(), "one that never reads");
    let client = client(&server).await;
    client
        .send(&batch((0..7).map(|_| log("a", "x"))))
        .await
        .unwrap();
    eventually("all published", || router.counters().matched == 7).await;
    drop(subscription);
    drop(client);
    tokio::task::spawn_blocking(|| server.drain())
        .await
        .unwrap();

    let now = router.counters();
    assert_eq!((now.ingress, now.dropped_egress), (7, 7));
    assert_eq!(agent.sums(), sums_of(&now));
}

fn start_with_agent(agent: SocketAddr, more: &[(&'static str, &str)]) -> server::Server {
    let address = agent.to_string();
    let own = [
        ("AGENT_GRPC_ADDRESS", address.as_str()),
        ("ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS", "20"),
    ];
    start(&[&own[..], more].concat())
}

/// Variables of a process that talks to this agent.
fn variables(agent: SocketAddr) -> Vec<(&'static str, String)> {
    let file = |name| {
        CERTIFICATES
            .path(name)
            .to_str()
            .expect("a plain path")
            .to_owned()
    };
    vec![
        ("ROUTER_CA_FILE", file("ca.crt")),
        ("ROUTER_CERT_FILE", file("doppler.crt")),
        ("ROUTER_KEY_FILE", file("doppler.key")),
        ("AGENT_GRPC_ADDRESS", agent.to_string()),
        ("ROUTER_METRIC_BATCH_INTERVAL_MILLISECONDS", "20".to_owned()),
    ]
}

/// What a metric is, apart from its value: kind, name and tags.
fn series(envelope: &v2::Envelope) -> (String, BTreeMap<String, String>) {
    let name = match envelope.message.as_ref().expect("a message") {
        Message::Counter(counter) => format!("counter {}", counter.name),
        Message::Gauge(gauge) => {
            format!(
                "gauge {}",
                gauge.metrics.keys().cloned().collect::<Vec<_>>().join(" ")
            )
        }
        other => panic!("{other:?}"),
    };
    let text = |value: &v2::Value| match &value.data {
        Some(Data::Text(text)) => text.clone(),
        other => panic!("{other:?}"),
    };
    (
        name,
        envelope
            .deprecated_tags
            .iter()
            .map(|(key, value)| (key.clone(), text(value)))
            .collect(),
    )
}

/// Sums by metric, as an agent builds them.
type Sums = BTreeMap<String, u64>;

fn sums_of(now: &router::Counters) -> Sums {
    [
        ("ingress", now.ingress),
        ("dropped ingress", now.dropped_ingress),
        ("dropped egress", now.dropped_egress),
        ("egress", now.egress),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn nanoseconds() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970");
    since.as_nanos() as i64
}

/// One envelope, and how it came.
#[derive(Clone, Debug)]
struct Received {
    connection: usize,
    stream: u32,
    path: String,
    content_type: String,
    envelope: v2::Envelope,
}

/// How an agent behaves.
#[derive(Clone, Copy, Debug, Default)]
struct Manners {
    /// Its certificate is that of another.
    identity: Option<&'static str>,
    /// It accepts the clients of another authority only.
    foreign_clients: bool,
    /// It ends each stream behind its first envelope, but keeps what was on the way.
    ends_streams: bool,
    /// It takes no more bytes than this on a stream.
    window: Option<u32>,
}

/// An agent that keeps what it gets. Gone, with its connections, when dropped.
struct StandIn {
    address: SocketAddr,
    state: Arc<State>,
    task: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct State {
    received: Mutex<Vec<Received>>,
    /// What an agent before this one got.
    known: Mutex<Sums>,
    connections: AtomicUsize,
}

impl StandIn {
    async fn start(manners: Manners) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), manners).await
    }

    async fn start_at(address: SocketAddr, manners: Manners) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).expect("the address is free");
        let listener = socket.listen(64).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let task = AbortOnDropHandle::new(tokio::spawn(accept(listener, manners, state.clone())));
        Self {
            address,
            state,
            task,
        }
    }

    fn received(&self) -> Vec<Received> {
        self.state.received.lock().unwrap().clone()
    }

    /// Connections that were accepted, whatever became of them.
    fn connections(&self) -> usize {
        self.state.connections.load(SeqCst)
    }

    fn knows(&self, sums: Sums) {
        *self.state.known.lock().unwrap() = sums;
    }

    fn sums(&self) -> Sums {
        let mut sums = self.state.known.lock().unwrap().clone();
        for one in self.received() {
            if let Some(Message::Counter(counter)) = &one.envelope.message {
                let direction = one.envelope.deprecated_tags.get("direction");
                let name = match direction.and_then(|value| value.data.clone()) {
                    Some(Data::Text(direction)) => format!("{} {direction}", counter.name),
                    _ => counter.name.clone(),
                };
                *sums.entry(name).or_default() += counter.delta;
            }
        }
        sums
    }

    /// The last value of a gauge.
    fn gauge(&self, name: &str) -> Option<f64> {
        self.received()
            .iter()
            .rev()
            .find_map(|one| match &one.envelope.message {
                Some(Message::Gauge(gauge)) => gauge.metrics.get(name).map(|value| value.value),
                _ => None,
            })
    }

    async fn has_all_of(&self, server: &server::Server) {
        eventually("all counts", || {
            self.sums() == sums_of(&server.router().counters())
        })
        .await;
        // and no more than all
        let pulses = self.received().len();
        eventually("two more pulses", || self.received().len() >= pulses + 12).await;
        assert_eq!(self.sums(), sums_of(&server.router().counters()));
    }

    /// Closes everything; the sums of what was received.
    async fn gone(mut self) -> Sums {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.sums()
    }
}

async fn accept(listener: TcpListener, manners: Manners, state: Arc<State>) {
    let tls = TlsAcceptor::from(Arc::new(tls(manners)));
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let connection = state.connections.fetch_add(1, SeqCst);
        let (tls, state) = (tls.clone(), state.clone());
        connections.spawn(async move {
            let Ok(socket) = tls.accept(socket).await else {
                return;
            };
            let mut settings = h2::server::Builder::new();
            if let Some(window) = manners.window {
                settings.initial_window_size(window);
            }
            let Ok(mut requests) = settings.handshake::<_, Bytes>(socket).await else {
                return;
            };
            let mut streams = JoinSet::new();
            while let Some(Ok((request, answer))) = requests.accept().await {
                streams.spawn(take(request, answer, connection, manners, state.clone()));
            }
        });
    }
}

async fn take(
    request: http::Request<h2::RecvStream>,
    mut answer: SendResponse<Bytes>,
    connection: usize,
    manners: Manners,
    state: Arc<State>,
) {
    let (head, mut body) = request.into_parts();
    let mut buffer = BytesMut::new();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        buffer.extend_from_slice(&data);
        while buffer.len() >= 5 {
            let length = u32::from_be_bytes(buffer[1..5].try_into().unwrap()) as usize;
            if buffer.len() < 5 + length {
                break;
            }
            assert_eq!(buffer[0], 0, "compressed");
            buffer.advance(5);
            let envelope = v2::Envelope::decode(buffer.split_to(length)).expect("an envelope");
            state.received.lock().unwrap().push(Received {
                connection,
                stream: body.stream_id().as_u32(),
                path: head.uri.path().to_owned(),
                content_type: head.headers["content-type"].to_str().unwrap().to_owned(),
                envelope,
            });
            if manners.ends_streams {
                let _ = answer.send_response(status("14"), true);
            }
        }
    }
    // what the reference's agent says to a half-close
    let _ = answer.send_response(status("2"), true);
}

fn status(code: &str) -> http::Response<()> {
    http::Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .body(())
        .unwrap()
}

fn tls(manners: Manners) -> ServerConfig {
    let read = |file: String| std::fs::read(CERTIFICATES.path(&file)).expect("a file");
    let name = manners.identity.unwrap_or("metron");
    let chain = CertificateDer::pem_slice_iter(&read(format!("{name}.crt")))
        .collect::<Result<Vec<_>, _>>()
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(&read(format!("{name}.key"))).unwrap();
    let authority = if manners.foreign_clients {
        Authority::new("another authority")
            .unwrap()
            .cert()
            .as_bytes()
            .to_vec()
    } else {
        read("ca.crt".to_owned())
    };
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&authority).unwrap())
        .unwrap();

    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}
