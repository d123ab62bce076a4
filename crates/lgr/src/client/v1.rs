//! The v1 calls: payloads that are serialized `events.Envelope` messages, pushed and subscribed to.

use http::uri::PathAndQuery;
use loggregator::v1::{
    self,
    plumbing::{BatchResponse, EnvelopeData, Response, SubscriptionRequest},
};

use tonic::codec::Encoder;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Code, Status};

use super::codec::{ProstEncoder, RawResponse};
use super::{Client, Ending, Push, Subscription};
use crate::Error;

/// A stream of v1 envelopes into the router: `DopplerIngestor/Pusher`.
pub type Pusher = Push<EnvelopeData>;

/// A v1 subscription that receives batches: `Doppler/BatchSubscribe`.
pub type BatchSubscription = Subscription<BatchResponse>;

/// A v1 subscription that receives single envelopes: `Doppler/Subscribe`.
pub type SingleSubscription = Subscription<Response>;

impl Client {
    /// Opens a `DopplerIngestor/Pusher` stream.
    pub fn pusher(&self) -> Pusher {
        self.push("DopplerIngestor/Pusher", v1::PUSHER)
    }

    /// Sends a whole stream of messages over `DopplerIngestor/Pusher`, through an encoder of the
    /// caller's; otherwise as [`Client::batch_sender_from`].
    ///
    /// # Errors
    /// [`Error::Call`] with the router's status.
    pub async fn pusher_from<S, E>(&self, messages: S, encoder: E) -> Result<Ending, Error>
    where
        S: Stream<Item = E::Item> + Send + 'static,
        E: Encoder<Error = Status> + Clone + Send + 'static,
        E::Item: Send + Sync + 'static,
    {
        let path = PathAndQuery::from_static(v1::PUSHER);
        match self
            .clone()
            .client_streaming(messages, path, RawResponse(encoder))
            .await
        {
            Ok(_) => Ok(Ending::Response),
            Err(status) if is_empty_answer(&status) => Ok(Ending::Eof),
            Err(status) => Err(self.peer.error("DopplerIngestor/Pusher", status)),
        }
    }

    /// Opens a `Doppler/BatchSubscribe` stream.
    pub fn batch_subscribe(&self, request: SubscriptionRequest) -> BatchSubscription {
        let path = PathAndQuery::from_static(v1::BATCH_SUBSCRIBE);
        let encoder = ProstEncoder::default();
        self.subscribe("Doppler/BatchSubscribe", path, request, encoder)
    }

    /// Opens a `Doppler/Subscribe` stream.
    pub fn subscribe_v1(&self, request: SubscriptionRequest) -> SingleSubscription {
        let path = PathAndQuery::from_static(v1::SUBSCRIBE);
        self.subscribe("Doppler/Subscribe", path, request, ProstEncoder::default())
    }
}

/// Whether a status is what becomes of the reference's answer to a half-close: OK without a response
/// message, which the gRPC library finds fault with.
fn is_empty_answer(status: &Status) -> bool {
    status.code() == Code::Internal && status.message() == "Missing response message."
}
