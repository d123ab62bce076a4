//! The gRPC methods: what goes into the pipeline and what comes out.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use loggregator::{Message, Run, v2};
use router::{Batch, Router, Subscription};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Status, Streaming,
    body::Body,
    server::{ClientStreamingService, Grpc, ServerStreamingService, UnaryService},
};

use crate::codec::{BatchIn, BatchOut, EmptyOut, EnvelopeIn, EnvelopeOut, Prost, With};

/// Largest request message; one byte more ends that stream with RESOURCE_EXHAUSTED.
pub const MAX_REQUEST_BYTES: usize = 10 * 1024 * 1024;

/// Everything a connection's streams need.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) router: Router,
    /// Cancelled when the router begins to drain.
    pub(crate) drain: CancellationToken,
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
                let codec = With::<Prost<v2::EgressBatchRequest>, BatchOut>::default();
                Grpc::new(codec)
                    .server_streaming(BatchedReceiver(self, peer), request)
                    .await
            }
            v2::EGRESS_RECEIVER => {
                let codec = With::<Prost<v2::EgressRequest>, EnvelopeOut>::default();
                Grpc::new(codec)
                    .server_streaming(Receiver(self, peer), request)
                    .await
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
        let mut messages = request.into_inner();
        Box::pin(async move {
            let drain = service.0.drain.clone();
            let mut draining_begins = std::pin::pin!(drain.cancelled());
            loop {
                let message = tokio::select! {
                    // what has arrived already is taken, so that draining loses nothing more
                    biased;
                    message = messages.message() => message?,
                    () = &mut draining_begins => return Err(draining()),
                };
                match message {
                    Some(message) => service.send(message)?,
                    None => return Ok(tonic::Response::new(())),
                }
            }
        })
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

/// `Egress/BatchedReceiver`.
struct BatchedReceiver(Services, Arc<str>);

impl ServerStreamingService<v2::EgressBatchRequest> for BatchedReceiver {
    type Response = Batch;
    type ResponseStream = Batches;
    type Future = Reply<Batches>;

    fn call(&mut self, request: tonic::Request<v2::EgressBatchRequest>) -> Reply<Batches> {
        let subscription = self.0.router.subscribe(&request.into_inner(), &*self.1);
        Box::pin(async move {
            Ok(tonic::Response::new(Batches {
                subscription,
                ended: false,
            }))
        })
    }
}

/// A subscription as a gRPC stream. It ends only when the router does, and then never with OK: a
/// client that sees an error connects elsewhere.
struct Batches {
    subscription: Subscription,
    ended: bool,
}

impl Stream for Batches {
    type Item = Result<Batch, Status>;

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

/// `Egress/Receiver`: one envelope per message, for clients that ask for it.
struct Receiver(Services, Arc<str>);

impl ServerStreamingService<v2::EgressRequest> for Receiver {
    type Response = Run;
    type ResponseStream = Envelopes;
    type Future = Reply<Envelopes>;

    fn call(&mut self, request: tonic::Request<v2::EgressRequest>) -> Reply<Envelopes> {
        let request = request.into_inner();
        let request = v2::EgressBatchRequest {
            shard_id: request.shard_id,
            legacy_selector: request.legacy_selector,
            use_preferred_tags: request.use_preferred_tags,
            selectors: request.selectors,
            deterministic_name: request.deterministic_name,
        };
        let subscription = self.0.router.subscribe(&request, &*self.1);
        let batches = Batches {
            subscription,
            ended: false,
        };
        Box::pin(async move {
            Ok(tonic::Response::new(Envelopes {
                batches,
                runs: Vec::new(),
            }))
        })
    }
}

/// Batches taken apart again.
struct Envelopes {
    batches: Batches,
    /// What is left of the current batch, last run first.
    runs: Vec<Run>,
}

impl Stream for Envelopes {
    type Item = Result<Run, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(run) = self.runs.pop() {
                if run.len() == 1 {
                    return Poll::Ready(Some(Ok(run)));
                }
                let (first, rest) = run.split_at(1);
                self.runs.push(rest);
                return Poll::Ready(Some(Ok(first)));
            }
            match ready!(Pin::new(&mut self.batches).poll_next(context)) {
                Some(Ok(batch)) => self.runs.extend(batch.runs().iter().rev().cloned()),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
    }
}
