//! The gRPC methods: what goes into the pipeline and what comes out.

use std::{future::poll_fn, pin::pin, sync::Arc, task::ready};

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use loggregator::{
    Limits, Message,
    v1::{self, Pushed, plumbing::EnvelopeData, plumbing::SubscriptionRequest},
    v2,
};
use router::Router;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::{
    delivery::{self, draining},
    grpc::{self, Messages, Reply},
    pace,
    summed_up::SummedUp,
};

/// The size of a message is checked before it is gathered.
const CHECKED: Limits = Limits { bytes: usize::MAX };

/// Everything a connection's streams need.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) router: Router,
    /// Cancelled when the router begins to drain.
    pub(crate) drain: CancellationToken,
    /// v1 payloads that are no envelopes.
    pub(crate) undecodable: Arc<SummedUp>,
}

impl Services {
    /// Answers one request of the connection from `peer`.
    pub(crate) async fn call(self, peer: Arc<str>, request: Request<Incoming>) -> Response<Reply> {
        let (head, body) = request.into_parts();
        if let Err(answer) = grpc::check(&head.headers) {
            return *answer;
        }
        self.answer(head.uri.path(), Messages::of(body), peer)
            .await
            .unwrap_or_else(|status| grpc::refused(&status))
    }

    async fn answer(
        self,
        method: &str,
        messages: Messages<Incoming>,
        peer: Arc<str>,
    ) -> Result<Response<Reply>, Status> {
        match method {
            v2::INGRESS_BATCH_SENDER => {
                self.each(messages, |bytes| self.ingest(batch(bytes)?))
                    .await
            }
            v2::INGRESS_SENDER => {
                self.each(messages, |bytes| self.ingest(envelope(&bytes)?))
                    .await
            }
            v2::INGRESS_SEND => {
                let message = messages.only().await?;
                poll_fn(pace::poll_turn).await;
                pace::took(message.len());
                self.ingest(batch(message)?)?;
                Ok(grpc::done())
            }
            v2::EGRESS_BATCHED_RECEIVER => {
                let request = decoded(&messages.only().await?)?;
                let subscription = self.router.subscribe(&request, &*peer);
                Ok(grpc::answered(delivery::envelope_batches(subscription)))
            }
            v2::EGRESS_RECEIVER => {
                let request = batched(decoded(&messages.only().await?)?);
                let subscription = self.router.subscribe(&request, &*peer);
                Ok(grpc::answered(delivery::envelopes(subscription)))
            }
            v1::PUSHER => self.each(messages, |bytes| self.push(bytes, &peer)).await,
            v1::BATCH_SUBSCRIBE => {
                let request: SubscriptionRequest = decoded(&messages.only().await?)?;
                let subscription = self.router.subscribe_v1(&request, &*peer);
                Ok(grpc::answered(delivery::payload_batches(subscription)))
            }
            v1::SUBSCRIBE => {
                let request: SubscriptionRequest = decoded(&messages.only().await?)?;
                let subscription = self.router.subscribe_v1(&request, &*peer);
                Ok(grpc::answered(delivery::payloads(subscription)))
            }
            method => Err(Status::new(
                Code::Unimplemented,
                format!("unknown method {method}"),
            )),
        }
    }

    /// Takes a producer's messages until it half-closes, which is answered with OK, or the router
    /// begins to drain.
    async fn each(
        &self,
        mut messages: Messages<Incoming>,
        take: impl Fn(Vec<u8>) -> Result<(), Status>,
    ) -> Result<Response<Reply>, Status> {
        let mut draining_begins = pin!(self.drain.cancelled());
        loop {
            let next = poll_fn(|context| {
                ready!(pace::poll_turn(context));
                messages.poll_next(context)
            });
            let message = tokio::select! {
                // what has arrived already is taken, so that draining loses nothing more
                biased;
                message = next => message,
                () = &mut draining_begins => return Err(draining()),
            };
            let Some(message) = message else {
                return Ok(grpc::done());
            };
            let message = message?;
            pace::took(message.len());
            take(message)?;
        }
    }

    /// Every message goes on the ingress ring, at once and without waiting for anybody.
    fn ingest(&self, message: Message) -> Result<(), Status> {
        let sent = self.router.ingress().send(message);
        sent.map_err(|_| draining())
    }

    /// A payload that is no v1 envelope costs itself only: it is counted, and the stream goes on.
    fn push(&self, bytes: Vec<u8>, peer: &str) -> Result<(), Status> {
        let data = <EnvelopeData as prost::Message>::decode(Bytes::from(bytes));
        let payload = data
            .map_err(|error| malformed("envelope data", error))?
            .payload;
        match Pushed::parse(&payload, CHECKED) {
            Ok(pushed) => {
                let pushed = self.router.ingress().push(pushed);
                pushed.map_err(|_| draining())
            }
            Err(error) => {
                self.undecodable
                    .note(|| format!("v1 envelope from {peer}: {error}"));
                Ok(())
            }
        }
    }
}

fn batch(bytes: Vec<u8>) -> Result<Message, Status> {
    Message::from_vec(bytes, CHECKED).map_err(|error| malformed("envelope batch", error))
}

fn envelope(bytes: &[u8]) -> Result<Message, Status> {
    Message::parse_envelope(bytes, CHECKED).map_err(|error| malformed("envelope", error))
}

/// A small message, as a struct.
fn decoded<T: prost::Message + Default>(bytes: &[u8]) -> Result<T, Status> {
    T::decode(bytes).map_err(|error| malformed("request", error))
}

fn malformed(what: &str, error: impl std::fmt::Display) -> Status {
    Status::internal(format!("malformed {what}: {error}"))
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
