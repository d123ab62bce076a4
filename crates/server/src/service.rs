//! The gRPC methods: what goes into the pipeline and what comes out.

use std::{
    future::{Future, Ready, poll_fn, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_core::Stream;
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use loggregator::{
    Limits, Message, Run,
    v1::{self, Payload, Pushed, plumbing::SubscriptionRequest},
    v2,
};
use router::{Batch, Piece, Router, Subscription};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Status, Streaming,
    body::Body,
    server::{ClientStreamingService, Grpc, ServerStreamingService, UnaryService},
};

use crate::{
    codec::{
        BatchIn, BatchOut, EmptyOut, EnvelopeIn, EnvelopeOut, PayloadIn, PayloadOut, Prost, With,
    },
    pace,
    summed_up::SummedUp,
};

/// Largest request message; one byte more ends that stream with RESOURCE_EXHAUSTED.
pub const MAX_REQUEST_BYTES: usize = 10 * 1024 * 1024;

/// Everything a connection's streams need.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) router: Router,
    /// Cancelled when the router begins to drain.
    pub(crate) drain: CancellationToken,
    /// v1 payloads that are no envelopes.
    pub(crate) undecodable: Arc<SummedUp>,
}

type Reply<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;

impl Services {
    /// Answers one request of the connection from `peer`.
    pub(crate) async fn call(self, peer: Arc<str>, request: Request<Incoming>) -> Response<Body> {
        let is_grpc = request
            .headers()
            .get(header::CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if !is_grpc {
            let mut response =
                Status::invalid_argument("content type is not application/grpc").into_http();
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }

        let response = match request.uri().path() {
            v2::INGRESS_BATCH_SENDER => {
                ingest::<BatchIn>()
                    .client_streaming(Ingest(self), request)
                    .await
            }
            v2::INGRESS_SENDER => {
                ingest::<EnvelopeIn>()
                    .client_streaming(Ingest(self), request)
                    .await
            }
            v2::INGRESS_SEND => ingest::<BatchIn>().unary(Ingest(self), request).await,
            v2::EGRESS_BATCHED_RECEIVER => {
                let codec = With::<Prost<v2::EgressBatchRequest>, BatchOut<Run>>::default();
                let service =
                    Subscribe(move |request| Batches::of(self.router.subscribe(&request, &*peer)));
                Grpc::new(codec).server_streaming(service, request).await
            }
            v2::EGRESS_RECEIVER => {
                let codec = With::<Prost<v2::EgressRequest>, EnvelopeOut>::default();
                let service = Subscribe(move |request| {
                    let request = batched(request);
                    Singles::of(self.router.subscribe(&request, &*peer))
                });
                Grpc::new(codec).server_streaming(service, request).await
            }
            v1::PUSHER => {
                let codec = With::<PayloadIn, EmptyOut>::default();
                let service = Pusher {
                    services: self,
                    peer,
                };
                Grpc::new(codec)
                    .max_decoding_message_size(MAX_REQUEST_BYTES)
                    .client_streaming(service, request)
                    .await
            }
            v1::BATCH_SUBSCRIBE => {
                let codec = With::<Prost<SubscriptionRequest>, BatchOut<Payload>>::default();
                let service = Subscribe(move |request| {
                    Batches::of(self.router.subscribe_v1(&request, &*peer))
                });
                Grpc::new(codec).server_streaming(service, request).await
            }
            v1::SUBSCRIBE => {
                let codec = With::<Prost<SubscriptionRequest>, PayloadOut>::default();
                let service = Subscribe(move |request| {
                    Singles::of(self.router.subscribe_v1(&request, &*peer))
                });
                Grpc::new(codec).server_streaming(service, request).await
            }
            path => Status::new(Code::Unimplemented, format!("unknown method {path}")).into_http(),
        };
        too_large_as_exhausted(response)
    }
}

/// The library calls a message above the limit OUT_OF_RANGE, which no method here uses otherwise;
/// to gRPC clients of all languages it is RESOURCE_EXHAUSTED.
fn too_large_as_exhausted(mut response: Response<Body>) -> Response<Body> {
    if let Some(status) = response.headers_mut().get_mut(Status::GRPC_STATUS)
        && status.as_bytes() == (Code::OutOfRange as i32).to_string().as_bytes()
    {
        *status = (Code::ResourceExhausted as i32).into();
    }
    response
}

fn ingest<D>() -> Grpc<With<D, EmptyOut>>
where
    D: tonic::codec::Decoder<Item = Message, Error = Status> + Default + Send + 'static,
{
    Grpc::new(With::default()).max_decoding_message_size(MAX_REQUEST_BYTES)
}

pub(crate) fn draining() -> Status {
    Status::unavailable("the router is shutting down")
}

/// `Ingress/BatchSender`, `Sender` and `Send`: every message goes on the ingress ring, at once and
/// without waiting for anybody.
struct Ingest(Services);

impl Ingest {
    fn send(&self, message: Message) -> Result<(), Status> {
        self.0
            .router
            .ingress()
            .send(message)
            .map_err(|_| draining())
    }
}

impl ClientStreamingService<Message> for Ingest {
    type Response = ();
    type Future = Reply<()>;

    fn call(&mut self, request: tonic::Request<Streaming<Message>>) -> Reply<()> {
        let service = Self(self.0.clone());
        let drain = self.0.drain.clone();
        Box::pin(each(request.into_inner(), drain, move |message| {
            let bytes = message.byte_len();
            service.send(message).map(|()| bytes)
        }))
    }
}

/// Takes a producer's messages until it half-closes, which is answered with OK, or the router
/// begins to drain. `take` says how many bytes it was.
async fn each<T>(
    mut messages: Streaming<T>,
    drain: CancellationToken,
    mut take: impl FnMut(T) -> Result<usize, Status>,
) -> Result<tonic::Response<()>, Status> {
    let mut draining_begins = std::pin::pin!(drain.cancelled());
    loop {
        let next = poll_fn(|context| {
            ready!(pace::poll_turn(context));
            Pin::new(&mut messages).poll_next(context)
        });
        let message = tokio::select! {
            // what has arrived already is taken, so that draining loses nothing more
            biased;
            message = next => message,
            () = &mut draining_begins => return Err(draining()),
        };
        match message {
            Some(message) => pace::took(take(message?)?),
            None => return Ok(tonic::Response::new(())),
        }
    }
}

/// `DopplerIngestor/Pusher`. A payload that is no v1 envelope costs itself only: it is counted, and
/// the stream goes on.
struct Pusher {
    services: Services,
    peer: Arc<str>,
}

impl ClientStreamingService<Bytes> for Pusher {
    type Response = ();
    type Future = Reply<()>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Reply<()> {
        let (services, peer) = (self.services.clone(), self.peer.clone());
        let drain = services.drain.clone();
        // its size was checked before it was gathered
        let limits = Limits { bytes: usize::MAX };
        Box::pin(each(request.into_inner(), drain, move |payload| {
            match Pushed::parse(&payload, limits) {
                Ok(pushed) => {
                    let pushed = services.router.ingress().push(pushed);
                    pushed.map_err(|_| draining())?;
                }
                Err(error) => {
                    services
                        .undecodable
                        .note(|| format!("v1 envelope from {peer}: {error}"));
                }
            }
            Ok(payload.len())
        }))
    }
}

impl UnaryService<Message> for Ingest {
    type Response = ();
    type Future = Reply<()>;

    fn call(&mut self, request: tonic::Request<Message>) -> Reply<()> {
        let sent = self.send(request.into_inner());
        Box::pin(async move { sent.map(tonic::Response::new) })
    }
}

/// The methods that stream to a subscriber: they differ in what a request makes of the router.
struct Subscribe<F>(F);

impl<R, T, S, F> ServerStreamingService<R> for Subscribe<F>
where
    F: Fn(R) -> S,
    S: Stream<Item = Result<T, Status>> + Send + 'static,
{
    type Response = T;
    type ResponseStream = S;
    type Future = Ready<Result<tonic::Response<S>, Status>>;

    fn call(&mut self, request: tonic::Request<R>) -> Self::Future {
        ready(Ok(tonic::Response::new(self.0(request.into_inner()))))
    }
}

/// Both requests say the same.
fn batched(request: v2::EgressRequest) -> v2::EgressBatchRequest {
    v2::EgressBatchRequest {
        shard_id: request.shard_id,
        legacy_selector: request.legacy_selector,
        use_preferred_tags: request.use_preferred_tags,
        selectors: request.selectors,
        deterministic_name: request.deterministic_name,
    }
}

/// A subscription as a stream of batches. It ends only when the router does, and then never with
/// OK: a client that sees an error connects elsewhere.
struct Batches<T: Piece> {
    subscription: Subscription<T>,
    ended: bool,
}

impl<T: Piece> Batches<T> {
    fn of(subscription: Subscription<T>) -> Self {
        Self {
            subscription,
            ended: false,
        }
    }
}

impl<T: Piece + Unpin> Stream for Batches<T> {
    type Item = Result<Batch<T>, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(match ready!(self.subscription.poll_next(context)) {
            Some(batch) => Ok(batch),
            None => {
                self.ended = true;
                Err(draining())
            }
        }))
    }
}

/// A subscription as a stream of single envelopes, for clients that ask for them.
struct Singles<T: Piece> {
    batches: Batches<T>,
    /// What is left of the current batch, last piece first.
    pieces: Vec<T>,
}

impl<T: Piece> Singles<T> {
    fn of(subscription: Subscription<T>) -> Self {
        Self {
            batches: Batches::of(subscription),
            pieces: Vec::new(),
        }
    }
}

impl<T: Piece + Unpin> Stream for Singles<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(piece) = self.pieces.pop() {
                let (first, rest) = piece.split(1, usize::MAX);
                self.pieces.extend(rest);
                return Poll::Ready(Some(Ok(first)));
            }
            match ready!(Pin::new(&mut self.batches).poll_next(context)) {
                Some(Ok(batch)) => self.pieces.extend(batch.pieces().iter().rev().cloned()),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
    }
}
