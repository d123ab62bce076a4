//! A client of the router's v2 API: what producers and consumers do, one method a call.
//!
//! Beside the typed messages every call takes and gives raw bytes, for load and for tests that
//! must send what no honest client would.
//!
//! ```no_run
//! use lgr::client::{Client, Credentials, Options, every_kind};
//! use loggregator::v2::{EgressBatchRequest, EnvelopeBatch};
//!
//! # async fn example() -> Result<(), lgr::Error> {
//! let credentials = Credentials::from_directory("certs", "agent")?;
//! let client = Client::connect("127.0.0.1:8082", &credentials, &Options::default()).await?;
//!
//! let request = EgressBatchRequest { selectors: every_kind(""), ..Default::default() };
//! let mut subscription = client.batched_receiver(request);
//! let mut sender = client.batch_sender();
//! sender.send(&EnvelopeBatch::default()).await?;
//! sender.finish().await?;
//! while let Some(batch) = subscription.next().await? {
//!     println!("{} envelopes", batch.batch.len());
//! }
//! # Ok(())
//! # }
//! ```

mod codec;
mod connect;
mod v1;

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use loggregator::v2::{self, selector::Message as Kind};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::codec::{Codec, Encoder};
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::Error;
use codec::{ProstEncoder, RawEncoder, RawResponse};
pub use connect::{Credentials, Options};
use connect::{Witness, causes};
pub use v1::{BatchSubscription, Pusher, SingleSubscription};

/// Selectors for all five kinds of envelopes of `source_id`; an empty one means any source.
///
/// ```
/// assert_eq!(lgr::client::every_kind("").len(), 5);
/// ```
pub fn every_kind(source_id: &str) -> Vec<v2::Selector> {
    [
        Kind::Log(v2::LogSelector {}),
        Kind::Counter(v2::CounterSelector::default()),
        Kind::Gauge(v2::GaugeSelector::default()),
        Kind::Timer(v2::TimerSelector {}),
        Kind::Event(v2::EventSelector {}),
    ]
    .map(|kind| v2::Selector {
        source_id: source_id.to_owned(),
        message: Some(kind),
    })
    .to_vec()
}

const BATCH_SENDER: &str = "/loggregator.v2.Ingress/BatchSender";

/// A connection to a router. Clones share the connection; all calls go over it side by side.
///
/// The streams run on the tokio runtime of whoever opens them. See the [module](self) for an
/// example.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    peer: Peer,
    max_receive: usize,
}

impl Client {
    /// Connects to the router at `addr` (`HOST:PORT`), through TLS.
    ///
    /// With TLS 1.3 a router refuses a client's certificate only after the client's handshake is
    /// done: then it is the first call that fails.
    ///
    /// # Errors
    /// [`Error::Address`] or [`Error::Connect`], within [`Options::connect_timeout`].
    pub async fn connect(
        addr: &str,
        credentials: &Credentials,
        options: &Options,
    ) -> Result<Self, Error> {
        let (channel, witness) = connect::connect(addr, credentials, options).await?;
        let peer = Peer {
            addr: addr.into(),
            witness,
            patience: options.answer_timeout,
        };
        Ok(Self {
            channel,
            peer,
            max_receive: options.max_receive,
        })
    }

    /// The address of the router.
    pub fn peer(&self) -> &str {
        &self.peer.addr
    }

    /// Opens an `Ingress/BatchSender` stream.
    pub fn batch_sender(&self) -> BatchSender {
        self.push("Ingress/BatchSender", "/loggregator.v2.Ingress/BatchSender")
    }

    /// Opens an `Ingress/Sender` stream, one envelope a message.
    pub fn sender(&self) -> Sender {
        self.push("Ingress/Sender", "/loggregator.v2.Ingress/Sender")
    }

    /// Sends a whole stream of messages over `Ingress/BatchSender`, through an encoder of the
    /// caller's, and waits for the router's answer however long that takes. The stream is asked
    /// for a message only when the connection has room for one.
    ///
    /// # Errors
    /// [`Error::Call`] with the router's status.
    pub async fn batch_sender_from<S, E>(&self, messages: S, encoder: E) -> Result<Ending, Error>
    where
        S: Stream<Item = E::Item> + Send + 'static,
        E: Encoder<Error = Status> + Clone + Send + 'static,
        E::Item: Send + Sync + 'static,
    {
        let path = PathAndQuery::from_static(BATCH_SENDER);
        match self
            .clone()
            .client_streaming(messages, path, RawResponse(encoder))
            .await
        {
            Ok(_) => Ok(Ending::Response),
            Err(status) if is_eof(&status) => Ok(Ending::Eof),
            Err(status) => Err(self.peer.error("Ingress/BatchSender", status)),
        }
    }

    /// Calls `Ingress/Send`.
    ///
    /// # Errors
    /// [`Error::Call`] with the router's status, or [`Error::Silent`].
    pub async fn send(&self, batch: &v2::EnvelopeBatch) -> Result<(), Error> {
        self.send_raw(batch.encode_to_vec().into()).await
    }

    /// Calls `Ingress/Send` with bytes that need not be a batch.
    ///
    /// # Errors
    /// [`Error::Call`] with the router's status, or [`Error::Silent`].
    pub async fn send_raw(&self, batch: Bytes) -> Result<(), Error> {
        const CALL: &str = "Ingress/Send";
        let path = PathAndQuery::from_static("/loggregator.v2.Ingress/Send");
        let mut grpc = self.grpc();
        let call = async {
            ready(&mut grpc).await?;
            grpc.unary(Request::new(batch), path, RawResponse(RawEncoder))
                .await
        };
        match tokio::time::timeout(self.peer.patience, call).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) => Err(self.peer.error(CALL, status)),
            Err(_) => Err(self.peer.silent(CALL)),
        }
    }

    /// Opens an `Egress/BatchedReceiver` stream: a subscription.
    pub fn batched_receiver(&self, request: v2::EgressBatchRequest) -> BatchedReceiver {
        let path = PathAndQuery::from_static("/loggregator.v2.Egress/BatchedReceiver");
        self.subscribe(
            "Egress/BatchedReceiver",
            path,
            request,
            ProstEncoder::default(),
        )
    }

    /// Opens an `Egress/BatchedReceiver` stream with bytes that need not be a request.
    pub fn batched_receiver_raw(&self, request: Bytes) -> BatchedReceiver {
        let path = PathAndQuery::from_static("/loggregator.v2.Egress/BatchedReceiver");
        self.subscribe("Egress/BatchedReceiver", path, request, RawEncoder)
    }

    /// Opens an `Egress/Receiver` stream: a subscription with one envelope a message.
    pub fn receiver(&self, request: v2::EgressRequest) -> Receiver {
        let path = PathAndQuery::from_static("/loggregator.v2.Egress/Receiver");
        self.subscribe("Egress/Receiver", path, request, ProstEncoder::default())
    }

    fn grpc(&self) -> Grpc<Channel> {
        Grpc::new(self.channel.clone()).max_decoding_message_size(self.max_receive)
    }

    fn push<M>(&self, call: &'static str, path: &'static str) -> Push<M> {
        let (messages, queue) = mpsc::channel(PUSH_QUEUE);
        let path = PathAndQuery::from_static(path);
        let codec = RawResponse(RawEncoder);
        let response = tokio::spawn(self.clone().client_streaming(Queue(queue), path, codec));
        let peer = self.peer.clone();
        Push {
            messages: Some(messages),
            response,
            ended: None,
            call,
            peer,
            sends: PhantomData,
        }
    }

    async fn client_streaming<S, C>(
        self,
        messages: S,
        path: PathAndQuery,
        codec: C,
    ) -> Result<Response<Bytes>, Status>
    where
        S: Stream<Item = C::Encode> + Send + 'static,
        C: Codec<Decode = Bytes> + Send,
        C::Encode: Send + Sync + 'static,
    {
        let mut grpc = self.grpc();
        ready(&mut grpc).await?;
        grpc.client_streaming(Request::new(messages), path, codec)
            .await
    }

    fn subscribe<M, E>(
        &self,
        call: &'static str,
        path: PathAndQuery,
        request: E::Item,
        encoder: E,
    ) -> Subscription<M>
    where
        E: Encoder<Error = Status> + Clone + Send + 'static,
        E::Item: Send + Sync + 'static,
    {
        let mut grpc = self.grpc();
        let open = async move {
            ready(&mut grpc).await?;
            grpc.server_streaming(Request::new(request), path, RawResponse(encoder))
                .await
        };
        let state = State::Opening(tokio::spawn(open));
        Subscription {
            state,
            call,
            peer: self.peer.clone(),
            receives: PhantomData,
        }
    }
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready()
        .await
        .map_err(|error| Status::from_error(error.into()))
}

/// A router's address, and what is known of the connection to it.
#[derive(Clone, Debug)]
struct Peer {
    addr: std::sync::Arc<str>,
    witness: Witness,
    /// How long it may take to answer.
    patience: Duration,
}

impl Peer {
    fn error(&self, call: &'static str, status: Status) -> Error {
        let mut reason = match status.message() {
            "" => "no further reason".to_owned(),
            message => message.to_owned(),
        };
        if let Some(cause) = std::error::Error::source(&status) {
            let causes = causes(cause);
            if !reason.contains(&causes) {
                reason = format!("{reason}: {causes}");
            }
        }
        if let Some(first) = self.witness.first()
            && !reason.contains(&first)
        {
            reason = format!("{reason}: {first}");
        }
        Error::Call {
            peer: self.addr.to_string(),
            call,
            status: Box::new(status),
            reason,
        }
    }

    fn silent(&self, call: &'static str) -> Error {
        Error::Silent {
            peer: self.addr.to_string(),
            call,
            patience: self.patience,
        }
    }
}

/// Messages that wait for the connection to take them, per stream.
const PUSH_QUEUE: usize = 16;

/// A stream of envelope batches into the router: `Ingress/BatchSender`.
pub type BatchSender = Push<v2::EnvelopeBatch>;

/// A stream of envelopes into the router: `Ingress/Sender`.
pub type Sender = Push<v2::Envelope>;

/// An open stream into the router; dropping it cancels it. Made by [`Client::batch_sender`] and
/// [`Client::sender`]; the [module](self) has an example.
#[derive(Debug)]
pub struct Push<M> {
    messages: Option<mpsc::Sender<Bytes>>,
    response: JoinHandle<Result<Response<Bytes>, Status>>,
    /// The status the stream ended with, once it is known.
    ended: Option<Result<(), Status>>,
    call: &'static str,
    peer: Peer,
    sends: PhantomData<fn(M)>,
}

/// How a router ended a stream that the client had half-closed, as [`Push::finish`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With OK and a response, as it should be.
    Response,
    /// With status `UNKNOWN` and the message `EOF`: the reference's way of saying the same.
    Eof,
}

impl<M: Message> Push<M> {
    /// Sends a message; waits while the connection does not take more.
    ///
    /// # Errors
    /// As [`Push::send_raw`].
    pub async fn send(&mut self, message: &M) -> Result<(), Error> {
        self.send_raw(message.encode_to_vec().into()).await
    }
}

impl<M> Push<M> {
    /// Sends bytes that need not be a message.
    ///
    /// # Errors
    /// [`Error::Call`] if the router has ended the stream.
    pub async fn send_raw(&mut self, message: Bytes) -> Result<(), Error> {
        if let Some(messages) = &self.messages
            && messages.send(message).await.is_ok()
        {
            return Ok(());
        }
        self.messages = None;
        match self.outcome().await {
            Err(status) => Err(self.peer.error(self.call, status)),
            Ok(()) => {
                let status = Status::failed_precondition("the stream was ended before");
                Err(self.peer.error(self.call, status))
            }
        }
    }

    /// Half-closes the stream and waits for the router's answer, at most for
    /// [`Options::answer_timeout`]. A router that has
    /// answered has read everything that was sent before.
    ///
    /// # Errors
    /// [`Error::Call`] with the router's status, or [`Error::Silent`].
    pub async fn finish(mut self) -> Result<Ending, Error> {
        self.messages = None;
        match tokio::time::timeout(self.peer.patience, self.outcome()).await {
            Ok(Ok(())) => Ok(Ending::Response),
            Ok(Err(status)) if is_eof(&status) => Ok(Ending::Eof),
            Ok(Err(status)) => Err(self.peer.error(self.call, status)),
            Err(_) => Err(self.peer.silent(self.call)),
        }
    }

    /// Waits until the router ends the stream, with nothing more to be sent for now. Useful to
    /// see a stream's status after a message that must end it.
    ///
    /// # Errors
    /// [`Error::Call`] with the router's status, unless that is OK.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn ended(&mut self) -> Result<(), Error> {
        let outcome = self.outcome().await;
        outcome.map_err(|status| self.peer.error(self.call, status))
    }

    async fn outcome(&mut self) -> Result<(), Status> {
        if self.ended.is_none() {
            let outcome = match (&mut self.response).await {
                Ok(result) => result.map(drop),
                Err(error) => Err(Status::internal(error.to_string())),
            };
            self.ended = Some(outcome);
        }
        self.ended.clone().unwrap_or(Ok(()))
    }
}

impl<M> Drop for Push<M> {
    fn drop(&mut self) {
        self.response.abort();
    }
}

/// Whether a status is the reference's answer to a half-close.
fn is_eof(status: &Status) -> bool {
    status.code() == Code::Unknown && status.message() == "EOF"
}

/// The receiving end of a channel as a stream.
struct Queue(mpsc::Receiver<Bytes>);

impl Stream for Queue {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(cx)
    }
}

/// A subscription that receives batches: `Egress/BatchedReceiver`.
pub type BatchedReceiver = Subscription<v2::EnvelopeBatch>;

/// A subscription that receives single envelopes: `Egress/Receiver`.
pub type Receiver = Subscription<v2::Envelope>;

/// An open stream out of the router; dropping it unsubscribes. Made by
/// [`Client::batched_receiver`] and [`Client::receiver`]; the [module](self) has an example.
#[derive(Debug)]
pub struct Subscription<M> {
    state: State,
    call: &'static str,
    peer: Peer,
    receives: PhantomData<fn() -> M>,
}

#[derive(Debug)]
enum State {
    /// The request is under way. The reference does not answer it before there is an envelope.
    Opening(JoinHandle<Result<Response<Streaming<Bytes>>, Status>>),
    Open(Box<Streaming<Bytes>>),
    Ended,
}

impl<M: Message + Default> Subscription<M> {
    /// The next message; `None` when the router ended the stream with OK.
    ///
    /// # Errors
    /// As [`Subscription::next_raw`], and [`Error::Malformed`] for bytes that are no message.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<M>, Error> {
        let Some(bytes) = self.next_raw().await? else {
            return Ok(None);
        };
        let message = M::decode(bytes).map_err(|error| Error::Malformed {
            peer: self.peer.addr.to_string(),
            reason: error.to_string(),
        })?;
        Ok(Some(message))
    }
}

impl<M> Subscription<M> {
    /// Waits until the router has confirmed the subscription, at most for `patience`; says whether
    /// it has. A router may stay silent until there is an envelope, as the reference does.
    ///
    /// # Errors
    /// [`Error::Call`] if the router refused.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn confirmed(&mut self, patience: Duration) -> Result<bool, Error> {
        match tokio::time::timeout(patience, std::future::poll_fn(|cx| self.poll_open(cx))).await {
            Ok(result) => result
                .map(|()| true)
                .map_err(|status| self.peer.error(self.call, status)),
            Err(_) => Ok(false),
        }
    }

    /// The bytes of the next message; `None` when the router ended the stream with OK. After the
    /// end or an error there is only `None`.
    ///
    /// # Errors
    /// [`Error::Call`] with the status that the stream ended with.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next_raw(&mut self) -> Result<Option<Bytes>, Error> {
        let next = std::future::poll_fn(|cx| self.poll_next_raw(cx)).await;
        next.transpose()
            .map_err(|status| self.peer.error(self.call, status))
    }

    fn poll_next_raw(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        if let Err(status) = std::task::ready!(self.poll_open(cx)) {
            return Poll::Ready(Some(Err(status)));
        }
        let State::Open(stream) = &mut self.state else {
            return Poll::Ready(None);
        };
        let next = std::task::ready!(Pin::new(stream.as_mut()).poll_next(cx));
        if !matches!(next, Some(Ok(_))) {
            self.state = State::Ended;
        }
        Poll::Ready(next)
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let State::Opening(open) = &mut self.state else {
            return Poll::Ready(Ok(()));
        };
        let opened = match std::task::ready!(Pin::new(open).poll(cx)) {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(status),
            Err(error) => Err(Status::internal(error.to_string())),
        };
        match opened {
            Ok(stream) => {
                self.state = State::Open(Box::new(stream));
                Poll::Ready(Ok(()))
            }
            Err(status) => {
                self.state = State::Ended;
                Poll::Ready(Err(status))
            }
        }
    }
}

impl<M> Drop for Subscription<M> {
    fn drop(&mut self) {
        if let State::Opening(open) = &self.state {
            open.abort();
        }
    }
}
