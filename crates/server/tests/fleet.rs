//! Several routers that do not know each other: whichever of them an envelope comes by, the
//! consumers that are connected to all of them get it once.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use lgr::client::Client;
use loggregator::v2::{self, envelope::Message};
use server::Server;
use tokio::sync::mpsc;

const ROUTERS: usize = 3;
const PRODUCERS: usize = 6;
const NAMES: usize = 40;
/// Of each name, by each producer.
const ROUNDS: usize = 5;

/// What one consumer gets, whichever router it comes from.
struct Consumer(mpsc::UnboundedReceiver<Vec<v2::Envelope>>);

impl Consumer {
    /// Connects to every router with the same request, as consumers do.
    async fn connect(routers: &[Server], request: v2::EgressBatchRequest) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        for router in routers {
            let client = client(router).await;
            let (sender, request) = (sender.clone(), request.clone());
            tokio::spawn(async move {
                let mut stream = client.batched_receiver(request);
                while let Ok(Some(batch)) = stream.next().await {
                    if sender.send(batch.batch).is_err() {
                        break;
                    }
                }
            });
        }
        Self(receiver)
    }

    /// Everything that has arrived.
    fn take(&mut self) -> Vec<v2::Envelope> {
        let mut all = Vec::new();
        while let Ok(batch) = self.0.try_recv() {
            all.extend(batch);
        }
        all
    }
}

fn member(shard_id: &str, name: &str) -> v2::EgressBatchRequest {
    v2::EgressBatchRequest {
        shard_id: shard_id.to_owned(),
        deterministic_name: name.to_owned(),
        ..firehose()
    }
}

#[tokio::test]
async fn each_envelope_arrives_once_and_each_counter_at_one_consumer() {
    let routers: Vec<_> = (0..ROUTERS).map(|_| start(&[])).collect();
    let mut sharded = [
        Consumer::connect(&routers, member("sharded", "")).await,
        Consumer::connect(&routers, member("sharded", "")).await,
    ];
    let mut deterministic = [
        Consumer::connect(&routers, member("deterministic", "n1")).await,
        Consumer::connect(&routers, member("deterministic", "n2")).await,
    ];
    for router in &routers {
        subscriptions(router, 4).await;
    }

    // each producer has one connection, and the next router's turn
    let mut sent = BTreeSet::new();
    for producer in 0..PRODUCERS {
        let client: Client = client(&routers[producer % ROUTERS]).await;
        let mut stream = client.batch_sender();
        for round in 0..ROUNDS {
            let envelopes = (0..NAMES).map(|name| {
                let mut envelope = counter("app", &format!("counter-{name}"));
                envelope.instance_id = format!("{producer}-{round}");
                envelope
            });
            let batch = batch(envelopes);
            sent.extend(batch.batch.iter().map(identity));
            stream.send(&batch).await.unwrap();
        }
        stream.finish().await.unwrap();
    }
    assert_eq!(sent.len(), PRODUCERS * NAMES * ROUNDS);
    eventually("every router has delivered to both groups", || {
        routers.iter().all(|router| {
            let now = router.router().counters();
            now.egress == 2 * now.ingress
        })
    })
    .await;
    assert_eq!(
        routers
            .iter()
            .map(|router| router.router().counters().ingress)
            .sum::<u64>(),
        sent.len() as u64
    );

    for (group, is_deterministic) in [(&mut sharded, false), (&mut deterministic, true)] {
        let mut received = [Vec::new(), Vec::new()];
        eventually("all received", || {
            for (of_one, consumer) in received.iter_mut().zip(group.iter_mut()) {
                of_one.extend(consumer.take());
            }
            received.iter().map(Vec::len).sum::<usize>() >= sent.len()
        })
        .await;
        let all: Vec<_> = received.concat().iter().map(identity).collect();
        assert_eq!(all.len(), sent.len(), "some arrived twice");
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), sent);
        assert!(
            received.iter().all(|of_one| !of_one.is_empty()),
            "a member got nothing"
        );
        let members = names_by_member(&received);
        let at_both = members
            .values()
            .filter(|members| members.len() == 2)
            .count();
        if is_deterministic {
            assert_eq!(at_both, 0, "{members:?}");
        } else {
            // 30 draws for each of 40 names: that one has all of a name is a matter of 2^-29
            assert_eq!(at_both, NAMES, "{members:?}");
        }
    }
}

/// Which of a counter it is.
fn identity(envelope: &v2::Envelope) -> (String, String) {
    (name(envelope).to_owned(), envelope.instance_id.clone())
}

fn name(envelope: &v2::Envelope) -> &str {
    match &envelope.message {
        Some(Message::Counter(counter)) => &counter.name,
        other => panic!("not a counter: {other:?}"),
    }
}

fn names_by_member(received: &[Vec<v2::Envelope>; 2]) -> BTreeMap<&str, BTreeSet<usize>> {
    let mut members: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (member, of_one) in received.iter().enumerate() {
        for envelope in of_one {
            members.entry(name(envelope)).or_default().insert(member);
        }
    }
    members
}
