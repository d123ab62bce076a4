//! A service with the router inside: producers and subscribers are its own threads, there is no
//! network, and the fan-out stage publishes with two workers.
//!
//! ```text
//! cargo run -p router --example embed
//! ```

use std::thread;

use loggregator::{Limits, Message, v2};
use prost::Message as _;
use router::{FanOut, Options, Ordering, Router};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options {
        fanout: Some(FanOut {
            ordering: Ordering::Source,
            ..FanOut::new(2.try_into()?)
        }),
        ..Options::default()
    };
    let (router, repeater) = Router::new(options)?;
    let repeater = repeater.spawn_thread()?;

    // two members of one group share the logs of every source
    let members: Vec<_> = (0..2)
        .map(|member| {
            let request = v2::EgressBatchRequest {
                shard_id: "example".to_owned(),
                selectors: vec![v2::Selector {
                    message: Some(v2::selector::Message::Log(v2::LogSelector {})),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let mut subscription = router.subscribe(&request, format!("member {member}"));
            thread::spawn(move || {
                let mut envelopes = 0;
                while let Some(batch) = subscription.next() {
                    envelopes += batch.len();
                }
                envelopes
            })
        })
        .collect();

    for message in 0..100 {
        let envelope = v2::Envelope {
            source_id: format!("app-{}", message % 10),
            message: Some(v2::envelope::Message::Log(v2::Log {
                payload: format!("message {message}").into_bytes(),
                r#type: v2::log::Type::Out.into(),
            })),
            ..Default::default()
        };
        let batch = v2::EnvelopeBatch {
            batch: vec![envelope; 10],
        };
        router
            .ingress()
            .send(Message::parse(&batch.encode_to_vec(), Limits::default())?)?;
    }
    router.stop();
    repeater.join();

    let shares: Vec<usize> = members
        .into_iter()
        .map(|member| member.join().expect("a member"))
        .collect();
    let counters = router.counters();
    println!("sent {}, members received {shares:?}", counters.ingress);
    assert_eq!(
        shares.iter().sum::<usize>() as u64 + counters.dropped_egress,
        counters.ingress
    );
    Ok(())
}
