//! The client's calls over a real connection with mutual TLS, and the errors that it gives: each
//! names the peer and says why, and none takes longer than its timeout.

mod support;

use std::time::Duration;

use bytes::Bytes;
use lgr::Error;
use lgr::client::{Client, Credentials, Ending, Options, every_kind};
use loggregator::v2;
use support::{Behaviour, CERTS, FakeRouter, HANG, agent};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::{Code, Status};

fn log(text: &str) -> v2::Envelope {
    v2::Envelope {
        source_id: "app".to_owned(),
        message: Some(v2::envelope::Message::Log(v2::Log {
            payload: text.as_bytes().to_vec(),
            r#type: 0,
        })),
        ..Default::default()
    }
}

fn batch(texts: &[&str]) -> v2::EnvelopeBatch {
    v2::EnvelopeBatch {
        batch: texts.iter().map(|text| log(text)).collect(),
    }
}

fn everything() -> v2::EgressBatchRequest {
    v2::EgressBatchRequest {
        selectors: every_kind(""),
        ..Default::default()
    }
}

/// For machines that do much else.
fn patient() -> Options {
    Options {
        connect_timeout: HANG,
        answer_timeout: HANG,
        ..Options::default()
    }
}

async fn connect(router: &FakeRouter) -> Client {
    Client::connect(&router.addr, &agent(), &patient())
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_by_each_call_arrives() {
    let router = FakeRouter::start(Behaviour::default());
    let client = connect(&router).await;
    let mut subscription = client.batched_receiver(everything());
    assert!(subscription.confirmed(HANG).await.unwrap());

    let mut batches = client.batch_sender();
    batches.send(&batch(&["one", "two"])).await.unwrap();
    assert_eq!(batches.finish().await.unwrap(), Ending::Response);
    let mut single = client.sender();
    single.send(&log("three")).await.unwrap();
    assert_eq!(single.finish().await.unwrap(), Ending::Response);
    client.send(&batch(&["four"])).await.unwrap();

    for expected in [batch(&["one", "two"]), batch(&["three"]), batch(&["four"])] {
        let received = timeout(HANG, subscription.next()).await.unwrap().unwrap();
        assert_eq!(received, Some(expected));
    }
    assert_eq!(router.requests(), [everything()]);
    drop(subscription);
    router.wait_for_subscribers(0);
}

#[tokio::test]
async fn an_empty_batch_is_a_message() {
    let router = FakeRouter::start(Behaviour::default());
    let client = connect(&router).await;
    let mut subscription = client.batched_receiver(everything());
    assert!(subscription.confirmed(HANG).await.unwrap());
    client.send(&v2::EnvelopeBatch::default()).await.unwrap();
    let received = timeout(HANG, subscription.next_raw())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(received, Some(Bytes::new()));
}

/// The ways of the reference: no headers before the first envelope, `EOF` at a half-close.
#[tokio::test]
async fn the_reference_is_understood() {
    let router = FakeRouter::start(Behaviour {
        unconfirmed: true,
        eof: true,
        ..Behaviour::default()
    });
    let client = connect(&router).await;
    let mut subscription = client.batched_receiver(everything());
    assert!(
        !subscription
            .confirmed(Duration::from_millis(50))
            .await
            .unwrap()
    );
    let mut sender = client.batch_sender();
    sender.send(&batch(&["one"])).await.unwrap();
    assert_eq!(sender.finish().await.unwrap(), Ending::Eof);
    let received = timeout(HANG, subscription.next()).await.unwrap().unwrap();
    assert_eq!(received, Some(batch(&["one"])));
}

#[tokio::test]
async fn statuses_come_with_peer_and_call() {
    let status = Status::resource_exhausted("too much");
    let router = FakeRouter::start(Behaviour {
        refuse: Some(status.clone()),
        end: Some((1, status)),
        ..Behaviour::default()
    });
    let client = connect(&router).await;

    let mut sender = client.batch_sender();
    let error = loop {
        if let Err(error) = sender.send(&batch(&["one"])).await {
            break error;
        }
    };
    let expected = format!(
        "Ingress/BatchSender at {} ended with RESOURCE_EXHAUSTED: too much",
        router.addr
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.code(), Some(Code::ResourceExhausted));
    assert_eq!(sender.ended().await.unwrap_err().to_string(), expected);
    assert_eq!(sender.finish().await.unwrap_err().to_string(), expected);

    let mut subscription = client.batched_receiver(everything());
    assert!(subscription.confirmed(HANG).await.unwrap());
    router.publish(&batch(&["one"]));
    assert_eq!(subscription.next().await.unwrap(), Some(batch(&["one"])));
    let error = subscription.next().await.unwrap_err();
    assert!(
        error.to_string().contains("Egress/BatchedReceiver"),
        "{error}"
    );
    assert_eq!(error.code(), Some(Code::ResourceExhausted));
    assert_eq!(subscription.next().await.unwrap(), None);

    let error = client
        .receiver(v2::EgressRequest::default())
        .next()
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(Code::Unimplemented));
}

#[tokio::test]
async fn messages_may_be_malformed_in_both_directions() {
    let garbage = Bytes::from_static(b"\xff\xff");
    let router = FakeRouter::start(Behaviour {
        first: Some(garbage.clone()),
        ..Behaviour::default()
    });
    let client = connect(&router).await;
    let mut subscription = client.batched_receiver(everything());
    let error = subscription.next().await.unwrap_err();
    assert!(matches!(error, Error::Malformed { .. }), "{error}");
    assert!(error.to_string().contains(&router.addr), "{error}");

    let mut sender = client.batch_sender();
    sender.send_raw(garbage.clone()).await.unwrap();
    sender.finish().await.unwrap();
    assert_eq!(
        subscription.next_raw().await.unwrap(),
        Some(garbage.clone())
    );

    let error = client
        .batched_receiver_raw(garbage)
        .next()
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(Code::Internal));
}

#[tokio::test]
async fn received_messages_can_be_limited() {
    let router = FakeRouter::start(Behaviour::default());
    let options = Options {
        max_receive: 100,
        ..patient()
    };
    let client = Client::connect(&router.addr, &agent(), &options)
        .await
        .unwrap();
    let mut subscription = client.batched_receiver(everything());
    assert!(subscription.confirmed(HANG).await.unwrap());
    router.publish(&batch(&[&"x".repeat(200)]));
    let error = subscription.next().await.unwrap_err();
    assert_eq!(error.code(), Some(Code::OutOfRange), "{error}");
}

#[tokio::test]
async fn a_large_message_is_refused_by_the_router() {
    let router = FakeRouter::start(Behaviour::default());
    let client = connect(&router).await;
    let mut sender = client.batch_sender();
    sender
        .send_raw(vec![0; (10 << 20) + 1].into())
        .await
        .unwrap();
    let error = timeout(HANG, sender.ended()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(Code::OutOfRange), "{error}");
}

#[tokio::test]
async fn a_refused_connection() {
    let addr = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let error = Client::connect(&addr, &agent(), &patient())
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&addr) && text.contains("refused"), "{text}");
}

#[tokio::test]
async fn a_peer_that_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let options = Options {
        connect_timeout: Duration::from_millis(100),
        ..patient()
    };
    let credentials = agent();
    let connect = Client::connect(&addr, &credentials, &options);
    let text = timeout(HANG, connect)
        .await
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(
        text.contains(&addr) && text.contains("no connection within 100ms"),
        "{text}"
    );
}

#[tokio::test]
async fn a_half_closed_stream_that_is_not_answered() {
    let router = FakeRouter::start(Behaviour {
        silent: true,
        ..Behaviour::default()
    });
    let options = Options {
        answer_timeout: Duration::from_millis(100),
        ..patient()
    };
    let client = Client::connect(&router.addr, &agent(), &options)
        .await
        .unwrap();
    let error = timeout(HANG, client.batch_sender().finish())
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::Silent { .. }), "{error}");
    assert!(error.to_string().contains(&router.addr), "{error}");
}

#[tokio::test]
async fn addresses_that_are_none() {
    for addr in ["", "localhost", ":80", "localhost:http", "localhost:70000"] {
        let error = Client::connect(addr, &agent(), &patient())
            .await
            .unwrap_err();
        assert!(matches!(error, Error::Address { .. }), "{addr}: {error}");
    }
}

#[tokio::test]
async fn a_router_of_another_name() {
    let router = FakeRouter::start(Behaviour::default());
    let options = Options {
        server_name: "metron".to_owned(),
        ..patient()
    };
    let error = Client::connect(&router.addr, &agent(), &options)
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&router.addr) && text.contains("not valid for name"),
        "{text}"
    );
}

/// The router refuses: with TLS 1.3 that shows at the first call.
#[tokio::test]
async fn a_certificate_that_the_router_refuses() {
    let router = FakeRouter::start(Behaviour::default());
    let foreign = Credentials::from_directory(CERTS.foreign(), "agent").unwrap();
    let error = match Client::connect(&router.addr, &foreign, &patient()).await {
        Ok(client) => timeout(HANG, client.send(&batch(&["one"])))
            .await
            .unwrap()
            .unwrap_err(),
        Err(error) => error,
    };
    let text = error.to_string();
    assert!(
        text.contains(&router.addr) && text.contains("fatal alert"),
        "{text}"
    );
}

#[tokio::test]
async fn a_router_that_goes_away() {
    let mut router = FakeRouter::start(Behaviour::default());
    let client = connect(&router).await;
    let mut subscription = client.batched_receiver(everything());
    assert!(subscription.confirmed(HANG).await.unwrap());
    router.stop();
    let error = timeout(HANG, subscription.next())
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains(&router.addr), "{error}");
    let error = timeout(HANG, client.send(&batch(&["one"])))
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.to_string().contains(&router.addr), "{error}");
}
