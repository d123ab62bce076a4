//! Envelopes in over gRPC with mutual TLS, and out to subscribers.

mod common;

use std::collections::BTreeSet;

use bytes::Bytes;
use common::*;
use lgr::client::{Ending, Options};
use loggregator::v2;
use prost::Message as _;
use tonic::Code;

#[tokio::test]
async fn a_batch_reaches_its_subscribers_only() {
    let server = start(&[]);
    let client = client(&server).await;
    let mut everything = client.batched_receiver(firehose());
    let mut only_b = client.batched_receiver(v2::EgressBatchRequest {
        selectors: lgr::client::every_kind("b"),
        ..Default::default()
    });
    subscriptions(&server, 2).await;

    let sent = batch([log("a", "1"), counter("a", "requests"), log("b", "2")]);
    let mut producer = client.batch_sender();
    producer.send(&sent).await.unwrap();

    assert_eq!(receive(&mut everything, 3).await.concat(), sent.batch);
    assert_eq!(receive(&mut only_b, 1).await.concat(), sent.batch[2..]);
    assert_eq!(producer.finish().await.unwrap(), Ending::Response);
}

#[tokio::test]
async fn sender_send_and_receiver_work_too() {
    let server = start(&[]);
    let client = client(&server).await;
    let mut receiver = client.receiver(v2::EgressRequest {
        selectors: lgr::client::every_kind(""),
        ..Default::default()
    });
    subscriptions(&server, 1).await;

    let mut sender = client.sender();
    sender.send(&log("a", "one")).await.unwrap();
    assert_eq!(receiver.next().await.unwrap(), Some(log("a", "one")));

    client
        .send(&batch([log("a", "two"), log("a", "three")]))
        .await
        .unwrap();
    assert_eq!(receiver.next().await.unwrap(), Some(log("a", "two")));
    assert_eq!(receiver.next().await.unwrap(), Some(log("a", "three")));
    assert_eq!(sender.finish().await.unwrap(), Ending::Response);
}

/// Field case R5.
#[tokio::test]
async fn unknown_fields_arrive_untouched() {
    let server = start(&[]);
    let client = client(&server).await;
    let mut receiver = client.batched_receiver(firehose());
    subscriptions(&server, 1).await;

    // source id "s", an empty log, and field 15 = "z"
    let envelope = b"\x12\x01s\x22\x00\x7a\x01z";
    let mut sent = vec![0x0a, envelope.len() as u8];
    sent.extend_from_slice(envelope);
    client.send_raw(Bytes::from(sent.clone())).await.unwrap();
    assert_eq!(receiver.next_raw().await.unwrap().unwrap(), sent);
}

#[tokio::test]
async fn a_malformed_message_ends_its_own_stream_only() {
    let server = start(&[]);
    let client = client(&server).await;
    let mut receiver = client.batched_receiver(firehose());
    subscriptions(&server, 1).await;
    let mut good = client.batch_sender();
    good.send(&batch([log("a", "before")])).await.unwrap();
    receive(&mut receiver, 1).await;

    // a source id that is not UTF-8, behind a good envelope
    let mut message = batch([log("a", "same message")]).encode_to_vec();
    message.extend_from_slice(b"\x0a\x04\x12\x02\xff\xfe");
    let mut bad = client.batch_sender();
    bad.send_raw(message.into()).await.unwrap();
    let status = bad.ended().await.unwrap_err();
    assert_eq!(status.code(), Some(Code::Internal));
    assert!(status.to_string().contains("UTF-8"), "{status}");

    good.send(&batch([log("a", "after")])).await.unwrap();
    assert_eq!(
        receive(&mut receiver, 1).await.concat(),
        [log("a", "after")]
    );
}

/// Field case R1.
#[tokio::test]
async fn messages_of_ten_mebibytes_are_the_limit() {
    let server = start(&[]);
    let client = client(&server).await;
    let message_of = |size: usize| {
        let overhead = batch([log("", vec![0; size])]).encoded_len() - size;
        let exact = batch([log("", vec![0; size - overhead])]);
        assert_eq!(exact.encoded_len(), size);
        exact
    };

    let mut producer = client.batch_sender();
    producer
        .send(&batch((0..100).map(|_| log("", vec![0; 61_440]))))
        .await
        .unwrap();
    producer
        .send(&message_of(server::MAX_REQUEST_BYTES - 1024))
        .await
        .unwrap();
    producer
        .send(&message_of(server::MAX_REQUEST_BYTES))
        .await
        .unwrap();
    assert_eq!(producer.finish().await.unwrap(), Ending::Response);
    assert_eq!(server.router().counters().ingress, 102);

    let mut too_large = client.batch_sender();
    too_large
        .send(&message_of(server::MAX_REQUEST_BYTES + 1))
        .await
        .unwrap();
    let status = too_large.ended().await.unwrap_err();
    assert_eq!(status.code(), Some(Code::ResourceExhausted));

    let mut next = client.batch_sender();
    next.send(&batch([log("", "x")])).await.unwrap();
    assert_eq!(next.finish().await.unwrap(), Ending::Response);
    assert_eq!(server.router().counters().ingress, 103);
}

/// Field case R2.
#[tokio::test]
async fn batches_are_bounded_by_bytes_too() {
    let server = start(&[]);
    let options = Options {
        max_receive: 4 << 20,
        ..Options::default()
    };
    let client = client_with(&server, options).await;
    let mut receiver = client.batched_receiver(firehose());
    subscriptions(&server, 1).await;

    for _ in 0..2 {
        client
            .send(&batch((0..50).map(|_| log("a", vec![b'x'; 200_000]))))
            .await
            .unwrap();
    }
    receive(&mut receiver, 100).await;
}

/// Field case R12.
#[tokio::test]
async fn lone_envelopes_go_at_once_and_bursts_in_batches_of_at_most_100() {
    let server = start(&[]);
    let client = client(&server).await;
    let mut receiver = client.batched_receiver(firehose());
    subscriptions(&server, 1).await;

    // nothing follows that could push it out
    client.send(&batch([log("a", "alone")])).await.unwrap();
    assert_eq!(receive(&mut receiver, 1).await.len(), 1);

    client
        .send(&batch((0..250).map(|_| log("a", "burst"))))
        .await
        .unwrap();
    let batches = receive(&mut receiver, 250).await;
    assert!(batches.iter().all(|batch| (1..=100).contains(&batch.len())));
}

/// Field case P8.
#[tokio::test]
async fn a_request_without_usable_selectors_stays_open_and_silent() {
    let server = start(&[]);
    let client = client(&server).await;
    let typeless = v2::Selector {
        source_id: "a".to_owned(),
        message: None,
    };
    let mut none = client.batched_receiver(v2::EgressBatchRequest::default());
    let mut only_typeless = client.batched_receiver(v2::EgressBatchRequest {
        selectors: vec![typeless],
        ..Default::default()
    });
    let mut receiver = client.batched_receiver(firehose());
    subscriptions(&server, 3).await;

    client.send(&batch([log("a", "x")])).await.unwrap();
    receive(&mut receiver, 1).await;
    for silent in [&mut none, &mut only_typeless] {
        let got = tokio::time::timeout(std::time::Duration::from_millis(50), silent.next()).await;
        assert!(got.is_err(), "{got:?}");
    }
    assert_eq!(server.router().counters().matched, 1);
}

/// Field case R6.
#[tokio::test]
async fn a_subscriber_that_does_not_read_costs_the_others_nothing() {
    let server = start(&[("ROUTER_EGRESS_V2_BUFFER_SIZE", "1000")]);
    let client = client(&server).await;
    let mut slow = client.batched_receiver(firehose());
    let mut fast = client.batched_receiver(firehose());
    subscriptions(&server, 2).await;
    assert!(slow.confirmed(PATIENCE).await.unwrap());

    let mut producer = client.batch_sender();
    let mut seen = BTreeSet::new();
    for round in 0..200u32 {
        producer
            .send(&batch(
                (0..100).map(|n| log("a", format!("{:0200}", round * 100 + n))),
            ))
            .await
            .unwrap();
        for envelope in receive(&mut fast, 100).await.concat() {
            seen.insert(payload(&envelope).to_vec());
        }
    }
    assert_eq!(seen.len(), 20_000);

    let of_slow = &server.router().subscriptions()[0];
    assert!(of_slow.dropped > 0, "{of_slow:?}");
    // as soon as it reads, new data comes through
    client.send(&batch([log("a", "new")])).await.unwrap();
    let mut last = Vec::new();
    while last != b"new" {
        last = payload(receive(&mut slow, 1).await.concat().last().unwrap()).to_vec();
    }
}

/// Field case R11.
#[tokio::test]
async fn cancelled_streams_leave_nothing_behind() {
    let server = start(&[]);
    let client = client(&server).await;
    for _ in 0..1_000 {
        let mut receiver = client.batched_receiver(firehose());
        assert!(receiver.confirmed(PATIENCE).await.unwrap());
    }
    subscriptions(&server, 0).await;

    // and with connections of their own
    for _ in 0..20 {
        let client = common::client(&server).await;
        let mut receiver = client.batched_receiver(firehose());
        assert!(receiver.confirmed(PATIENCE).await.unwrap());
    }
    subscriptions(&server, 0).await;
    let counters = server.router().counters();
    assert_eq!(counters.matched, counters.egress + counters.dropped_egress);
}
