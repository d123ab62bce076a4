//! The v1 API over gRPC: pushing, subscribing, and both together with v2.

mod common;

use common::*;
use lgr::client::Ending;
use loggregator::{
    Limits,
    v1::{
        Envelope, EventType,
        plumbing::{EnvelopeData, Filter, LogFilter, SubscriptionRequest, filter},
    },
};

fn everything() -> SubscriptionRequest {
    SubscriptionRequest::default()
}

fn logs_of(app_id: &str) -> SubscriptionRequest {
    SubscriptionRequest {
        shard_id: String::new(),
        filter: Some(Filter {
            app_id: app_id.to_owned(),
            message: Some(filter::Message::Log(LogFilter {})),
        }),
    }
}

/// A counter event with this origin, and nothing else that is not required.
fn pushed(origin: &[u8]) -> EnvelopeData {
    let mut payload = vec![0x0a, origin.len() as u8];
    payload.extend_from_slice(origin);
    payload.extend_from_slice(&[0x10, EventType::CounterEvent.0 as u8]);
    EnvelopeData {
        payload: payload.into(),
    }
}

fn event_type(payload: &[u8]) -> Option<EventType> {
    let envelope = Envelope::parse(payload, Limits::default()).expect("a complete envelope");
    envelope.event_type
}

#[tokio::test]
async fn v2_envelopes_reach_v1_subscribers() {
    let server = start(&[]);
    let client = client(&server).await;
    let mut batches = client.batch_subscribe(everything());
    let mut logs = client.subscribe_v1(logs_of("a"));
    subscriptions(&server, 2).await;

    let sent = batch([
        counter("a", "requests"),
        log("a", "hello"),
        log("b", "hello"),
    ]);
    client.send(&sent).await.unwrap();

    let mut types = Vec::new();
    while types.len() < 3 {
        let response = batches.next().await.unwrap().expect("the stream lives");
        types.extend(
            response
                .payload
                .iter()
                .map(|payload| event_type(payload).unwrap()),
        );
    }
    let (counter, log) = (EventType::CounterEvent, EventType::LogMessage);
    assert_eq!(types, [counter, log, log]);
    let response = logs.next().await.unwrap().expect("the stream lives");
    assert_eq!(event_type(&response.payload), Some(log));
}

/// Field cases R3 and R4.
#[tokio::test]
async fn bad_payloads_are_counted_and_end_nobodys_stream() {
    const BAD: usize = 10_000;
    let server = start(&[]);
    let client = client(&server).await;
    let mut v1 = client.batch_subscribe(everything());
    let mut v2 = client.batched_receiver(firehose());
    subscriptions(&server, 2).await;

    let mut pusher = client.pusher();
    pusher.send(&pushed(b"first")).await.unwrap();
    for n in 0..BAD {
        // a length that goes beyond the end
        let payload = vec![0x0a, 200, n as u8].into();
        pusher.send(&EnvelopeData { payload }).await.unwrap();
    }
    pusher.send(&pushed(b"\xff\xfe")).await.unwrap();

    let mut payloads = Vec::new();
    while payloads.len() < 2 {
        payloads.extend(v1.next().await.unwrap().expect("the stream lives").payload);
    }
    assert_eq!(
        payloads,
        [pushed(b"first").payload, pushed(b"\xff\xfe").payload]
    );
    let received = receive(&mut v2, 2).await.concat();
    assert_eq!(received[0].tags["origin"], "first");
    assert_eq!(received[1].tags["origin"], "\u{fffd}\u{fffd}");

    let (_, metrics) = get(server.debug_address(), "/metrics").await;
    assert!(
        metrics.contains(&format!("v1_undecodable_total {BAD}\n")),
        "{metrics}"
    );
    assert!(metrics.contains("v1_repaired_total 1\n"), "{metrics}");
    // a half-closed stream ends with OK and a response
    assert_eq!(pusher.finish().await.unwrap(), Ending::Response);
}

#[tokio::test]
async fn a_v1_ring_has_the_size_of_its_own_variable() {
    let server = start(&[("EGRESS_BUFFER_SIZE", "10")]);
    let client = client(&server).await;
    let mut v1 = client.batch_subscribe(everything());
    subscriptions(&server, 1).await;
    assert!(v1.confirmed(PATIENCE).await.unwrap());

    // one message, published in one go before the stream can take any of it
    client
        .send(&batch((0..500).map(|_| log("a", "x"))))
        .await
        .unwrap();
    eventually("all is matched", || {
        server.router().counters().matched == 500
    })
    .await;
    eventually("all is taken or dropped", || {
        let counters = server.router().counters();
        counters.egress + counters.dropped_egress == 500
    })
    .await;
    assert!(server.router().counters().v1.dropped >= 400);
}
