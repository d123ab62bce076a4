//! Lost envelopes in the log: how many, in which ring, and whose.
//!
//! A ticker compares the pipeline's counters with what the log has told already and writes the
//! differences, so that the lines' sums are the counters, the last burst included. Nothing is
//! logged where envelopes are lost: that is the hot path, and there may be a million of them.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    sync::Arc,
    time::Duration,
};

use router::{Api, Counters, Router, SubscriptionCounters, SubscriptionInfo};
use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

/// Between two looks, hence at most one line for a subscriber in that time.
const INTERVAL: Duration = Duration::from_secs(1);

/// Subscribers with a line of their own at one look, those with the largest losses first; a log of
/// thousands of lines a second would tell nothing and cost much.
const LINES: usize = 50;

/// Characters of a subscriber's selectors in a line. `/metrics` has them in full.
const SELECTORS: usize = 120;

/// What the log has told.
#[derive(Default)]
pub(crate) struct Drops {
    ingress: u64,
    v1: Subscribers,
    v2: Subscribers,
}

/// What the log has told of the subscribers of one API.
#[derive(Default)]
struct Subscribers {
    /// Of all, the ended ones included.
    all: u64,
    /// Of live ones that have lost something, by id.
    of: BTreeMap<u64, u64>,
}

/// One line: so many envelopes, and where.
#[derive(Debug)]
struct Lost {
    count: u64,
    of: Place,
}

#[derive(Debug)]
enum Place {
    Ingress,
    Subscriber(Arc<SubscriptionInfo>),
    MoreSubscribers(Api, usize),
    /// Overwritten after the last look at a subscriber, or still in its ring when its stream
    /// ended.
    EndedStreams(Api),
}

impl Drops {
    /// Logs what is lost until `end`, and then what was lost since the last look.
    pub(crate) async fn watch(mut self, router: Router, end: CancellationToken) {
        let mut ticks = time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !end.is_cancelled() {
            tokio::select! {
                _ = ticks.tick() => {}
                () = end.cancelled() => {}
            }
            // Totals first: what is lost between the two readings then shows with its subscriber,
            // now or at the next look, and never as that of an ended stream.
            let totals = router.counters();
            for lost in self.since(&totals, || router.subscriptions()) {
                tracing::warn!("{lost}");
            }
        }
    }

    /// What was lost since the last call. What `each` gives must not be older than `totals`.
    fn since(
        &mut self,
        totals: &Counters,
        each: impl FnOnce() -> Vec<SubscriptionCounters>,
    ) -> Vec<Lost> {
        let mut lines = Vec::new();
        let count = totals.dropped_ingress.saturating_sub(self.ingress);
        if count > 0 {
            lines.push(Lost {
                count,
                of: Place::Ingress,
            });
            self.ingress += count;
        }
        let dropped_v2 = totals.dropped_egress - totals.v1.dropped;
        if dropped_v2 > self.v2.all || totals.v1.dropped > self.v1.all {
            let (v1, v2): (Vec<_>, Vec<_>) =
                each().into_iter().partition(|one| one.info.api == Api::V1);
            self.v2.since(Api::V2, dropped_v2, v2, &mut lines);
            self.v1.since(Api::V1, totals.v1.dropped, v1, &mut lines);
        }
        lines
    }
}

impl Subscribers {
    fn since(
        &mut self,
        api: Api,
        total: u64,
        each: Vec<SubscriptionCounters>,
        lines: &mut Vec<Lost>,
    ) {
        let before = std::mem::take(&mut self.of);
        let mut losses = Vec::new();
        for one in each.into_iter().filter(|one| one.dropped > 0) {
            let told = before.get(&one.info.id).copied().unwrap_or(0);
            let count = one.dropped.saturating_sub(told);
            self.all += count;
            self.of.insert(one.info.id, told + count);
            if count > 0 {
                losses.push(Lost {
                    count,
                    of: Place::Subscriber(one.info),
                });
            }
        }
        losses.sort_by_key(|lost| std::cmp::Reverse(lost.count));
        let more = losses.split_off(losses.len().min(LINES));
        lines.append(&mut losses);
        if !more.is_empty() {
            let count = more.iter().map(|lost| lost.count).sum();
            lines.push(Lost {
                count,
                of: Place::MoreSubscribers(api, more.len()),
            });
        }

        let count = total.saturating_sub(self.all);
        if count > 0 {
            lines.push(Lost {
                count,
                of: Place::EndedStreams(api),
            });
            self.all += count;
        }
    }
}

impl Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, s) = (self.count, if self.count == 1 { "" } else { "s" });
        write!(f, "dropped {count} envelope{s}: ")?;
        match &self.of {
            Place::Ingress => write!(f, "ingress ring overran"),
            Place::Subscriber(info) => {
                // debug formatting: a shard id may hold anything, a line break too
                let (api, shard_id, peer) = (info.api.name(), &info.shard_id, &info.peer);
                write!(
                    f,
                    "{api} subscriber is slow: shard id {shard_id:?}, peer {peer}"
                )?;
                match info.selectors.char_indices().nth(SELECTORS) {
                    None => write!(f, ", selectors {:?}", info.selectors),
                    Some((end, _)) => write!(f, ", selectors {:?}...", &info.selectors[..end]),
                }
            }
            Place::MoreSubscribers(api, 1) => write!(f, "1 more {} subscriber is slow", api.name()),
            Place::MoreSubscribers(api, n) => {
                write!(f, "{n} more {} subscribers are slow", api.name())
            }
            Place::EndedStreams(api) => {
                write!(f, "{} subscriber streams that have ended", api.name())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber(id: u64, dropped: u64) -> SubscriptionCounters {
        SubscriptionCounters {
            info: Arc::new(SubscriptionInfo {
                id,
                api: router::Api::V2,
                peer: "10.0.0.1:4711".to_owned(),
                shard_id: "log\ncache".to_owned(),
                deterministic_name: String::new(),
                selectors: "log of app".to_owned(),
            }),
            matched: dropped,
            egress: 0,
            dropped,
            queued: 0,
            queued_bytes: 0,
        }
    }

    fn totals(dropped_ingress: u64, dropped_egress: u64) -> Counters {
        Counters {
            dropped_ingress,
            dropped_egress,
            ..Counters::default()
        }
    }

    fn lines(lost: &[Lost]) -> Vec<String> {
        lost.iter().map(Lost::to_string).collect()
    }

    #[test]
    fn each_loss_is_told_once() {
        let mut drops = Drops::default();
        let told = drops.since(&totals(5, 3), || vec![subscriber(7, 3), subscriber(8, 0)]);
        assert_eq!(
            lines(&told),
            [
                "dropped 5 envelopes: ingress ring overran",
                "dropped 3 envelopes: v2 subscriber is slow: shard id \"log\\ncache\", \
                 peer 10.0.0.1:4711, selectors \"log of app\"",
            ]
        );
        assert!(
            drops
                .since(&totals(5, 3), || vec![subscriber(7, 3), subscriber(8, 0)])
                .is_empty()
        );

        let told = drops.since(&totals(6, 4), || vec![subscriber(7, 3), subscriber(8, 1)]);
        assert_eq!(
            told.iter().map(|lost| lost.count).collect::<Vec<_>>(),
            [1, 1]
        );
    }

    #[test]
    fn what_an_ended_stream_lost_is_told_too() {
        let mut drops = Drops::default();
        drops.since(&totals(0, 3), || vec![subscriber(7, 3)]);
        // two more overwritten, four left in the ring: the registry has moved them to the totals
        let told = drops.since(&totals(0, 9), Vec::new);
        assert_eq!(
            lines(&told),
            ["dropped 6 envelopes: v2 subscriber streams that have ended"]
        );
        // one that came and went between two looks
        let told = drops.since(&totals(0, 10), Vec::new);
        assert_eq!(
            lines(&told),
            ["dropped 1 envelope: v2 subscriber streams that have ended"]
        );
        assert!(drops.v2.of.is_empty());
    }

    #[test]
    fn losses_between_the_two_readings_are_not_told_twice() {
        let mut drops = Drops::default();
        // the totals are older than the subscriber's own counter
        let told = drops.since(&totals(0, 3), || vec![subscriber(7, 5)]);
        assert_eq!(told.iter().map(|lost| lost.count).collect::<Vec<_>>(), [5]);
        assert!(
            drops
                .since(&totals(0, 5), || vec![subscriber(7, 5)])
                .is_empty()
        );
    }

    #[test]
    fn a_thousand_slow_subscribers_are_not_a_thousand_lines() {
        let each: Vec<_> = (1..=1_000).map(|id| subscriber(id, id)).collect();
        let sum = (1..=1_000).sum();
        let told = Drops::default().since(&totals(0, sum), || each);
        assert_eq!(told.len(), LINES + 1);
        assert_eq!(told[0].count, 1_000);
        assert_eq!(told.iter().map(|lost| lost.count).sum::<u64>(), sum);
        assert!(
            told[LINES]
                .to_string()
                .ends_with("950 more v2 subscribers are slow")
        );
    }

    #[test]
    fn long_selectors_are_cut() {
        let mut one = subscriber(1, 1);
        Arc::make_mut(&mut one.info).selectors = "ä".repeat(1_000);
        let told = Drops::default().since(&totals(0, 1), || vec![one]);
        assert!(
            told[0]
                .to_string()
                .ends_with(&format!("{}\"...", "ä".repeat(SELECTORS)))
        );
    }

    #[test]
    fn the_apis_are_told_apart() {
        let mut of_v1 = subscriber(7, 3);
        Arc::make_mut(&mut of_v1.info).api = Api::V1;
        let mut totals = totals(0, 11);
        totals.v1.dropped = 5;
        let told = Drops::default().since(&totals, || vec![of_v1, subscriber(8, 2)]);
        let starts: Vec<_> = told
            .iter()
            .map(|lost| {
                lost.to_string()
                    .split(" subscriber")
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        assert_eq!(
            starts,
            [
                "dropped 2 envelopes: v2",
                "dropped 4 envelopes: v2",
                "dropped 3 envelopes: v1",
                "dropped 2 envelopes: v1",
            ]
        );
    }
}
