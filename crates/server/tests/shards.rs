//! Shard groups over gRPC, and over several routers at once: every consumer is connected to every
//! router, and each envelope goes to one router.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use lgr::client::every_kind;
use loggregator::v2::{self, envelope::Message};
use server::Server;
use tokio::{sync::mpsc, task::JoinSet, time};

/// Rings that hold whatever these tests send: nothing is dropped, so counts are exact.
const LARGE_RINGS: [(&str, &str); 2] = [
    ("INGRESS_BUFFER_SIZE", "100000"),
    ("ROUTER_EGRESS_V2_BUFFER_SIZE", "100000"),
];

const NAMES: [&str; 3] = ["n1", "n2", "n3"];

/// Field case P9: the mapping depends on nothing but the names, so a second router has it, and a
/// router that was restarted and met its consumers in another order.
#[tokio::test]
async fn a_counter_name_belongs_to_one_consumer_on_every_router() {
    let mut mappings = Vec::new();
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        let router = start(&LARGE_RINGS);
        let mut inbox = Inbox::default();
        for (joined, member) in order.into_iter().enumerate() {
            inbox
                .subscribe(&router, member, request("g", NAMES[member]))
                .await;
            subscriptions(&router, joined as u64 + 1).await;
        }

        let client = client(&router).await;
        // the last five with remainders that are known from the reference
        let known = ["cpu", "memory", "disk", "memory_quota", "disk_quota"].map(str::to_owned);
        let names: Vec<_> = (0..95)
            .map(|n| format!("counter-{n}"))
            .chain(known)
            .collect();
        for _ in 0..20 {
            client
                .send(&batch(names.iter().map(|name| counter("a", name))))
                .await
                .unwrap();
        }
        let mut members_of = BTreeMap::<String, BTreeSet<usize>>::new();
        for (member, envelope) in inbox.take(20 * 100).await {
            members_of
                .entry(counter_name(&envelope))
                .or_default()
                .insert(member);
        }
        assert_eq!(members_of.len(), 100);
        let mapping: BTreeMap<_, _> = members_of
            .into_iter()
            .map(|(name, members)| {
                assert_eq!(members.len(), 1, "{name} went to {members:?}");
                (name, members.into_iter().next())
            })
            .collect();
        for (name, member) in [
            ("cpu", 0),
            ("memory", 2),
            ("disk", 0),
            ("memory_quota", 1),
            ("disk_quota", 1),
        ] {
            assert_eq!(mapping[name], Some(member), "{name}");
        }
        mappings.push(mapping);

        // logs have no name to go by: they spread
        for _ in 0..30 {
            client
                .send(&batch((0..100).map(|n| log("a", format!("{n}")))))
                .await
                .unwrap();
        }
        let mut logs = [0_usize; 3];
        for (member, _) in inbox.take(3_000).await {
            logs[member] += 1;
        }
        assert!(
            logs.iter().all(|count| (800..=1_200).contains(count)),
            "{logs:?}"
        );
        nothing_more(&router);
    }
    assert_eq!(mappings[0], mappings[1]);
    assert_eq!(mappings[0], mappings[2]);
}

/// Field case P10.
#[tokio::test]
async fn members_of_a_shard_share_and_others_get_everything() {
    let router = start(&LARGE_RINGS);
    let mut readers = JoinSet::new();
    for subscriber in 0..8 {
        let shard = if subscriber < 4 { "g" } else { "" };
        let mut stream = client(&router).await.batched_receiver(request(shard, ""));
        assert!(stream.confirmed(PATIENCE).await.unwrap());
        readers.spawn(async move {
            let mut received = 0;
            while let Ok(Some(batch)) = stream.next().await {
                received += batch.batch.len();
            }
            (subscriber, received)
        });
    }

    let mut producer = client(&router).await.batch_sender();
    let logs = batch((0..100).map(|_| log("a", "x")));
    for _ in 0..400 {
        producer.send(&logs).await.unwrap();
    }
    producer.finish().await.unwrap();
    // draining delivers what the rings hold and ends the streams
    let drained = tokio::task::spawn_blocking(|| router.drain());
    let received = time::timeout(PATIENCE, readers.join_all())
        .await
        .expect("all streams end");
    drained.await.unwrap();

    let mut of: Vec<_> = received.into_iter().collect();
    of.sort_unstable();
    let (sharded, others) = of.split_at(4);
    assert_eq!(
        sharded.iter().map(|(_, count)| count).sum::<usize>(),
        40_000
    );
    assert!(
        sharded
            .iter()
            .all(|(_, count)| (9_500..=10_500).contains(count)),
        "{sharded:?}"
    );
    assert!(
        others.iter().all(|(_, count)| *count == 40_000),
        "{others:?}"
    );
}

/// A small fleet: three routers, a producer at each, and two groups of two consumers that are
/// connected to all three.
#[tokio::test]
async fn a_fleet_delivers_each_envelope_once() {
    const EACH: usize = 2_000;

    let routers = [
        start(&LARGE_RINGS),
        start(&LARGE_RINGS),
        start(&LARGE_RINGS),
    ];
    // a consumer's index is the same at every router: it reads three streams
    let (mut sharded, mut deterministic) = (Inbox::default(), Inbox::default());
    for router in &routers {
        for (consumer, name) in NAMES.into_iter().take(2).enumerate() {
            sharded
                .subscribe(router, consumer, request("sharded", ""))
                .await;
            deterministic
                .subscribe(router, consumer, request("deterministic", name))
                .await;
        }
    }

    let sent: Vec<Vec<_>> = (0..routers.len())
        .map(|producer| {
            (0..EACH)
                .map(|n| match n % 2 {
                    0 => log(&format!("source-{producer}"), format!("{n}")),
                    // each name is counted at all routers
                    _ => v2::Envelope {
                        source_id: format!("source-{producer}"),
                        instance_id: n.to_string(),
                        ..counter("", &format!("counter-{}", n % 50))
                    },
                })
                .collect()
        })
        .collect();
    let mut producers = JoinSet::new();
    for (router, envelopes) in routers.iter().zip(sent.clone()) {
        let mut producer = client(router).await.batch_sender();
        producers.spawn(async move {
            for some in envelopes.chunks(100) {
                producer.send(&batch(some.to_vec())).await.unwrap();
            }
            producer.finish().await.unwrap();
        });
    }
    producers.join_all().await;

    let sent = sorted(sent.into_iter().flatten());
    let received = sharded.take(sent.len()).await;
    assert!((0..2).all(|consumer| received.iter().any(|(member, _)| *member == consumer)));
    assert_eq!(
        sorted(received.into_iter().map(|(_, envelope)| envelope)),
        sent
    );

    let received = deterministic.take(sent.len()).await;
    let mut consumer_of = BTreeMap::new();
    for (consumer, envelope) in &received {
        if matches!(envelope.message, Some(Message::Counter(_))) {
            let name = counter_name(envelope);
            let first = consumer_of.entry(name.clone()).or_insert(*consumer);
            assert_eq!(first, consumer, "{name} is at two consumers");
        }
    }
    assert_eq!(consumer_of.len(), 25);
    assert!((0..2).all(|consumer| consumer_of.values().any(|of| *of == consumer)));
    assert_eq!(
        sorted(received.into_iter().map(|(_, envelope)| envelope)),
        sent
    );
    for router in &routers {
        nothing_more(router);
    }
}

/// What several streams receive, each envelope with the index of its consumer.
struct Inbox {
    sender: mpsc::UnboundedSender<(usize, v2::Envelope)>,
    received: mpsc::UnboundedReceiver<(usize, v2::Envelope)>,
    readers: JoinSet<()>,
}

impl Default for Inbox {
    fn default() -> Self {
        let (sender, received) = mpsc::unbounded_channel();
        Self {
            sender,
            received,
            readers: JoinSet::new(),
        }
    }
}

impl Inbox {
    async fn subscribe(
        &mut self,
        router: &Server,
        consumer: usize,
        request: v2::EgressBatchRequest,
    ) {
        let mut stream = client(router).await.batched_receiver(request);
        assert!(stream.confirmed(PATIENCE).await.unwrap());
        let sender = self.sender.clone();
        self.readers.spawn(async move {
            while let Ok(Some(batch)) = stream.next().await {
                for envelope in batch.batch {
                    // the test may be over
                    let _ = sender.send((consumer, envelope));
                }
            }
        });
    }

    async fn take(&mut self, count: usize) -> Vec<(usize, v2::Envelope)> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let next = time::timeout(PATIENCE, self.received.recv()).await;
            let next = next.unwrap_or_else(|_| panic!("{} of {count}", taken.len()));
            taken.push(next.expect("a sender is kept"));
        }
        taken
    }
}

fn request(shard_id: &str, deterministic_name: &str) -> v2::EgressBatchRequest {
    v2::EgressBatchRequest {
        shard_id: shard_id.to_owned(),
        deterministic_name: deterministic_name.to_owned(),
        selectors: every_kind(""),
        ..Default::default()
    }
}

/// Everything that was delivered has been taken, and nothing was lost.
fn nothing_more(router: &Server) {
    let counters = router.router().counters();
    assert_eq!(counters.egress, counters.matched, "{counters:?}");
    assert_eq!(
        (counters.dropped_ingress, counters.dropped_egress),
        (0, 0),
        "{counters:?}"
    );
}

fn counter_name(envelope: &v2::Envelope) -> String {
    match &envelope.message {
        Some(Message::Counter(counter)) => counter.name.clone(),
        other => panic!("not a counter: {other:?}"),
    }
}

/// Comparable as a set with repetitions.
fn sorted(envelopes: impl IntoIterator<Item = v2::Envelope>) -> Vec<Vec<u8>> {
    use prost::Message as _;

    let mut encoded: Vec<_> = envelopes
        .into_iter()
        .map(|envelope| envelope.encode_to_vec())
        .collect();
    encoded.sort_unstable();
    encoded
}
