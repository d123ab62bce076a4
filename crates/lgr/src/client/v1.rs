//! The v1 calls: payloads that are serialized `events.Envelope` messages, pushed and subscribed to.

use http::uri::PathAndQuery;
use loggregator::v1::{
    self,
    plumbing::{BatchResponse, EnvelopeData, Response, SubscriptionRequest},
};

use super::codec::ProstEncoder;
use super::{Client, Push, Subscription};

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
