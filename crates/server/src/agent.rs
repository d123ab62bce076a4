//! The router's own metrics, sent to the agent on the same machine as envelopes.
//!
//! Six metrics, each on a `Sender` stream of its own, all on one connection; at each pulse each
//! stream carries one envelope, zeros included. What the envelopes look like is what the
//! platform's dashboards expect; `docs/metrics.md` says what is counted.
//!
//! A counter's envelope holds what was counted since the last envelope that went out. While the
//! agent is away nothing is queued: the difference just grows. A pulse goes out whole or not at
//! all.
//!
//! HTTP/2 is spoken by hand here, since only that tells whether the agent is there: with TLS 1.3
//! an agent refuses our certificate after the handshake is done for us, and what was written until
//! then is lost without an error. So a new connection is proven by a ping before anything is sent.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Poll, ready},
    time::{Duration, SystemTime},
};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{Ping, SendStream, client::ResponseFuture};
use http::{HeaderMap, Request, StatusCode, header};
use loggregator::v2::{self, envelope::Message, value::Data};
use prost::Message as _;
use router::{Counters, Router};
use rustls_pki_types::ServerName;
use tokio::{
    net::TcpStream,
    time::{self, Instant, MissedTickBehavior},
};
use tokio_rustls::TlsConnector;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    grpc::{PREFIX, prefix},
    tls,
};

/// How long the agent may take: to accept a connection, and to take a pulse.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the last pulse may take when the router ends.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Pauses between attempts to connect, the first and the longest. Attempts are made at pulses.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

const ORIGIN: &str = "loggregator.doppler";
const METRIC_VERSION: &str = "2.0";

/// Sends the metrics of one router.
pub(crate) struct Agent {
    address: String,
    interval: Duration,
    source_id: String,
    tls: config::Tls,
    router: Router,
    metrics: Vec<Metric>,
    link: Option<Link>,
    pause: Pause,
    /// Whether the last pulse arrived; only changes are logged.
    reached: Option<bool>,
}

impl Agent {
    /// `None` if the settings want no metrics to be sent.
    pub(crate) fn new(settings: &config::Settings, router: Router) -> Option<Self> {
        let config::Metrics {
            agent_address,
            interval,
            source_id,
        } = &settings.metrics;
        Some(Self {
            address: agent_address.clone()?,
            interval: (*interval)?,
            source_id: source_id.clone(),
            tls: settings.tls.clone(),
            router,
            metrics: metrics(),
            link: None,
            pause: Pause::default(),
            reached: None,
        })
    }

    /// Sends a pulse each interval until `end`, and then what has been counted since the last.
    pub(crate) async fn run(mut self, end: CancellationToken) {
        let mut ticks = time::interval_at(Instant::now() + self.interval, self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.pulse().await,
                () = end.cancelled() => break,
            }
        }
        let _ = time::timeout(LAST_PATIENCE, self.last_pulse()).await;
    }

    async fn pulse(&mut self) {
        let result = match time::timeout(PATIENCE, self.try_pulse()).await {
            Ok(None) => return,
            Ok(Some(result)) => result,
            Err(_) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("it took nothing within {PATIENCE:?}"),
            )),
        };
        let reached = result.is_ok();
        match result {
            Ok(()) if self.reached == Some(false) => {
                tracing::info!("metrics reach the agent at {} again", self.address);
            }
            Ok(()) => {}
            Err(error) => {
                self.link = None;
                self.pause.grow();
                if self.reached != Some(false) {
                    tracing::warn!(
                        "metrics don't reach the agent at {}: {error}; trying on",
                        self.address
                    );
                }
            }
        }
        self.reached = Some(reached);
    }

    /// `None` if it is too early for another attempt to connect.
    async fn try_pulse(&mut self) -> Option<io::Result<()>> {
        if self.link.is_none() {
            if !self.pause.is_over() {
                return None;
            }
            match Link::open(&self.address, &self.tls, self.metrics.len()).await {
                Ok(link) => self.link = Some(link),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(self.send().await)
    }

    /// Sends one envelope on each stream, or none at all.
    async fn send(&mut self) -> io::Result<()> {
        let Some(link) = &mut self.link else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let now = self.router.counters();
        let readings: Vec<Reading> = self
            .metrics
            .iter()
            .map(|metric| metric.read(&now, &self.source_id))
            .collect();
        for (stream, reading) in link.streams.iter_mut().zip(&readings) {
            stream.make_room(reading.frame.len()).await?;
        }
        // no waiting from here on: a pulse that is cut short would be counted in part only
        for ((stream, metric), reading) in
            link.streams.iter_mut().zip(&mut self.metrics).zip(readings)
        {
            stream.send(reading.frame)?;
            metric.delivered = reading.value;
        }
        self.pause = Pause::default();
        Ok(())
    }

    async fn last_pulse(&mut self) {
        if self.send().await.is_ok()
            && let Some(link) = self.link.take()
        {
            link.finish().await;
        }
    }
}

/// One metric, and how much of it the agent knows.
struct Metric {
    name: &'static str,
    direction: Option<&'static str>,
    kind: Kind,
    value: fn(&Counters) -> u64,
    /// The counter's value when its last envelope went out.
    delivered: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge { unit: &'static str },
}

/// A metric's value, and the envelope that tells it.
struct Reading {
    value: u64,
    frame: Bytes,
}

fn metrics() -> Vec<Metric> {
    let counter = |name, direction, value| Metric {
        name,
        direction,
        kind: Kind::Counter,
        value,
        delivered: 0,
    };
    vec![
        counter("ingress", None, |now| now.ingress),
        counter("dropped", Some("ingress"), |now| now.dropped_ingress),
        counter("dropped", Some("egress"), |now| now.dropped_egress),
        // of v2 subscribers and of v1 subscribers; the agent adds them up
        counter("egress", None, |now| now.egress - now.v1.egress),
        counter("egress", None, |now| now.v1.egress),
        Metric {
            name: "subscriptions",
            direction: None,
            kind: Kind::Gauge {
                unit: "subscriptions",
            },
            value: |now| now.subscriptions,
            delivered: 0,
        },
    ]
}

impl Metric {
    fn read(&self, now: &Counters, source_id: &str) -> Reading {
        let value = (self.value)(now);
        let message = match self.kind {
            Kind::Counter => Message::Counter(v2::Counter {
                name: self.name.to_owned(),
                delta: value.saturating_sub(self.delivered),
                // the agent adds the differences up
                total: 0,
            }),
            Kind::Gauge { unit } => {
                let of_it = v2::GaugeValue {
                    unit: unit.to_owned(),
                    value: value as f64,
                };
                Message::Gauge(v2::Gauge {
                    metrics: [(self.name.to_owned(), of_it)].into(),
                })
            }
        };
        let tags = [("origin", ORIGIN), ("metric_version", METRIC_VERSION)]
            .into_iter()
            .chain(self.direction.map(|direction| ("direction", direction)));
        let text = |text: &str| v2::Value {
            data: Some(Data::Text(text.to_owned())),
        };
        let envelope = v2::Envelope {
            timestamp: nanoseconds(),
            source_id: source_id.to_owned(),
            deprecated_tags: tags
                .map(|(key, value)| (key.to_owned(), text(value)))
                .collect(),
            message: Some(message),
            ..v2::Envelope::default()
        };
        Reading {
            value,
            frame: frame(&envelope),
        }
    }
}

/// Now, as envelopes have it.
fn nanoseconds() -> i64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
        })
}

/// An envelope as gRPC sends it: not compressed, its length, its bytes.
fn frame(envelope: &v2::Envelope) -> Bytes {
    let length = envelope.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_slice(&prefix(length));
    envelope.encode(&mut frame).expect("the buffer grows");
    frame.freeze()
}

/// A connection to the agent that has proven itself, and its streams.
struct Link {
    streams: Vec<Stream>,
    /// Moves the connection's bytes. Aborted on drop: an agent that hangs would keep it for ever.
    _driver: AbortOnDropHandle<()>,
}

/// An open `Ingress/Sender` stream.
struct Stream {
    body: SendStream<Bytes>,
    /// The agent answers when it ends the stream.
    answer: Option<ResponseFuture>,
}

impl Link {
    async fn open(address: &str, tls: &config::Tls, streams: usize) -> io::Result<Self> {
        // read anew each time: the files may have been renewed since
        let config = tls::agent_config(tls).map_err(io::Error::other)?;
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from(tls::AGENT_NAME).expect("a valid DNS name");
        let socket = TlsConnector::from(Arc::new(config))
            .connect(name, socket)
            .await?;
        if socket.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it does not speak h2 (ALPN)",
            ));
        }

        let (mut requests, mut connection) = h2::client::handshake(socket).await.map_err(failed)?;
        let mut pings = connection.ping_pong().expect("taken only here");
        let driver = AbortOnDropHandle::new(tokio::spawn(async move {
            // how it ends shows on the streams
            let _ = connection.await;
        }));
        pings.ping(Ping::opaque()).await.map_err(failed)?;

        let mut opened = Vec::with_capacity(streams);
        for _ in 0..streams {
            requests = requests.ready().await.map_err(failed)?;
            let request =
                Request::post(format!("https://{}{}", tls::AGENT_NAME, v2::INGRESS_SENDER))
                    .header(header::CONTENT_TYPE, "application/grpc")
                    .header(header::TE, "trailers")
                    .body(())
                    .expect("a well-formed request");
            let (answer, body) = requests.send_request(request, false).map_err(failed)?;
            opened.push(Stream {
                body,
                answer: Some(answer),
            });
        }
        Ok(Self {
            streams: opened,
            _driver: driver,
        })
    }

    /// Ends the streams and waits for the agent's answers: it has everything then.
    async fn finish(mut self) {
        for stream in &mut self.streams {
            let _ = stream.body.send_data(Bytes::new(), true);
        }
        for stream in &mut self.streams {
            if let Some(answer) = stream.answer.take() {
                let _ = answer.await;
            }
        }
    }
}

impl Stream {
    /// Waits until the agent takes `bytes` more, and makes sure that it has not ended the stream.
    async fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        self.body.reserve_capacity(bytes);
        poll_fn(|context| {
            if let Poll::Ready(reset) = self.body.poll_reset(context) {
                return Poll::Ready(Err(match reset {
                    Ok(reason) => io::Error::other(format!("it has ended the stream: {reason}")),
                    Err(error) => failed(error),
                }));
            }
            if let Some(answer) = &mut self.answer
                && let Poll::Ready(answer) = Pin::new(answer).poll(context)
            {
                self.answer = None;
                let answer = answer.map_err(failed)?;
                if answer.status() != StatusCode::OK || answer.body().is_end_stream() {
                    let reason = refusal(answer.status(), answer.headers());
                    return Poll::Ready(Err(io::Error::other(reason)));
                }
            }
            loop {
                if self.body.capacity() >= bytes {
                    return Poll::Ready(Ok(()));
                }
                match ready!(self.body.poll_capacity(context)) {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Poll::Ready(Err(failed(error))),
                    None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                }
            }
        })
        .await
    }

    fn send(&mut self, frame: Bytes) -> io::Result<()> {
        self.body.send_data(frame, false).map_err(failed)
    }
}

/// An agent's answer that ends a stream, in words.
fn refusal(status: StatusCode, headers: &HeaderMap) -> String {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match header("grpc-status") {
        Some(code) => {
            let message = header("grpc-message").unwrap_or_default();
            format!("it has ended the stream: gRPC status {code} {message:?}")
        }
        None => format!("it has ended the stream: HTTP status {status}"),
    }
}

fn failed(error: h2::Error) -> io::Error {
    if error.is_io() {
        return error
            .into_io()
            .unwrap_or_else(|| io::ErrorKind::Other.into());
    }
    io::Error::other(error)
}

/// Attempts to connect are further and further apart.
#[derive(Default)]
struct Pause {
    length: Duration,
    until: Option<Instant>,
}

impl Pause {
    fn is_over(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn grow(&mut self) {
        self.length = (self.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.until = Some(Instant::now() + self.length);
    }
}
