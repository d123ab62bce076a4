//! The pipeline's counters in the Prometheus text format (OpenMetrics), read when scraped.
//!
//! Totals carry the names that the platform's dashboards know; what those cannot say, above all
//! which consumer is slow, is in the `subscription_*` series. `docs/metrics.md` lists them all.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use router::{Router, SubscriptionCounters};

use tokio_util::task::TaskTracker;

use crate::{summed_up::SummedUp, tls};

/// Renders the metrics of one router.
pub(crate) struct Exposition(Registry);

/// Who knows the figures.
pub(crate) struct Sources {
    pub(crate) router: Router,
    pub(crate) capacities: config::Buffers,
    /// One task each.
    pub(crate) connections: TaskTracker,
    pub(crate) refusals: Arc<SummedUp>,
    pub(crate) undecodable: Arc<SummedUp>,
    pub(crate) tls: Arc<tls::Port>,
}

type Label = (&'static str, String);

impl Exposition {
    pub(crate) const CONTENT_TYPE: &str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    pub(crate) fn new(sources: Sources) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(sources));
        Self(registry)
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.0).expect("writing to a string does not fail");
        text
    }
}

impl Collector for Sources {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.totals(&mut out)?;
        self.connections(&mut out)?;
        self.rings(&mut out)?;
        self.subscriptions(&mut out)
    }
}

impl Sources {
    /// What the agent gets, too, and the rest of the conservation law:
    /// `ingress == published + dropped{ingress}`, `matched == egress + dropped{egress}`.
    fn totals(&self, out: &mut Out<'_>) -> fmt::Result {
        let now = self.router.counters();
        out.counter("ingress", "Envelopes accepted", one(now.ingress))?;
        out.counter("published", "Envelopes published", one(now.published))?;
        out.counter(
            "matched",
            "Envelopes matched, by each subscription",
            one(now.matched),
        )?;
        out.counter("egress", "Envelopes that subscribers took", one(now.egress))?;
        out.counter(
            "dropped",
            "Envelopes overwritten in a ring, or left in it when its stream ended",
            [
                (vec![label("direction", "ingress")], now.dropped_ingress),
                (vec![label("direction", "egress")], now.dropped_egress),
            ],
        )?;
        out.counter(
            "ring_dropped",
            "The same by kind of ring",
            [
                (ring("ingress"), now.dropped_ingress),
                (ring("egress_v1"), now.v1.dropped),
                (ring("egress_v2"), now.dropped_egress - now.v1.dropped),
            ],
        )?;
        out.gauge(
            "subscriptions",
            "Open subscription streams",
            one(now.subscriptions),
        )?;
        out.counter(
            "v1_undecodable",
            "Pushed payloads that are no v1 envelopes",
            one(self.undecodable.total()),
        )?;
        out.counter(
            "v1_repaired",
            "v1 envelopes with text that was not UTF-8, repaired for v2 subscribers",
            one(now.v1_repaired),
        )?;
        out.counter(
            "v1_incomplete",
            "v1 forms that were asked for and lack a field that v1 requires",
            one(now.v1_incomplete),
        )?;
        out.counter(
            "publish_panics",
            "Panics contained while publishing",
            one(now.panics),
        )
    }

    /// Who is connected, who was not let in, and with which certificates.
    fn connections(&self, out: &mut Out<'_>) -> fmt::Result {
        out.gauge(
            "connections",
            "Open connections, those in their handshake included",
            one(self.connections.len() as u64),
        )?;
        out.counter(
            "refused_connections",
            "Connections refused in their handshake",
            one(self.refusals.total()),
        )?;
        let (done, failed) = self.tls.reloads();
        out.counter(
            "certificate_reloads",
            "Times that the certificate files were read again",
            [
                (vec![label("result", "done")], done),
                (vec![label("result", "failed")], failed),
            ],
        )
    }

    /// How full the ingress ring is, and what fits into it and into a subscriber's.
    fn rings(&self, out: &mut Out<'_>) -> fmt::Result {
        let now = self.router.counters();
        let sizes = &self.capacities;
        out.gauge(
            "ingress_queued",
            "Envelopes in the ingress ring",
            one(now.ingress_queued),
        )?;
        out.gauge(
            "ingress_queued_bytes",
            "Bytes in the ingress ring",
            one(now.ingress_queued_bytes),
        )?;
        out.gauge(
            "egress_queued_bytes",
            "Bytes in the rings of all subscribers",
            one(now.egress_queued_bytes),
        )?;
        out.gauge(
            "egress_capacity_bytes",
            "Bytes that the rings of all subscribers hold together",
            one(sizes.egress_total_bytes as u64),
        )?;
        out.gauge(
            "fanout_queued",
            "Runs of envelopes that wait for a publishing worker",
            one(now.fanout_queued),
        )?;
        out.gauge(
            "ring_capacity",
            "Envelopes that a ring holds",
            [
                (ring("ingress"), sizes.ingress as u64),
                (ring("egress_v1"), sizes.egress_v1 as u64),
                (ring("egress_v2"), sizes.egress_v2 as u64),
            ],
        )?;
        out.gauge(
            "ring_capacity_bytes",
            "Bytes that a ring holds",
            [
                (ring("ingress"), sizes.ingress_bytes as u64),
                (ring("egress_v1"), sizes.egress_bytes as u64),
                (ring("egress_v2"), sizes.egress_bytes as u64),
            ],
        )
    }

    /// Which consumer is slow.
    fn subscriptions(&self, out: &mut Out<'_>) -> fmt::Result {
        let each = self.router.subscriptions();
        let of_each = |value: fn(&SubscriptionCounters) -> u64| {
            each.iter().map(move |one| (subscription(one), value(one)))
        };
        out.counter(
            "subscription_matched",
            "Envelopes that matched",
            of_each(|one| one.matched),
        )?;
        out.counter(
            "subscription_egress",
            "Envelopes taken",
            of_each(|one| one.egress),
        )?;
        out.counter(
            "subscription_dropped",
            "Envelopes overwritten",
            of_each(|one| one.dropped),
        )?;
        out.gauge(
            "subscription_queued",
            "Envelopes in the ring",
            of_each(|one| one.queued),
        )?;
        out.gauge(
            "subscription_queued_bytes",
            "Bytes in the ring",
            of_each(|one| one.queued_bytes),
        )
    }
}

/// The only series of its family.
fn one(value: u64) -> [(Vec<Label>, u64); 1] {
    [(Vec::new(), value)]
}

fn ring(kind: &'static str) -> Vec<Label> {
    vec![label("ring", kind)]
}

fn label(name: &'static str, value: &str) -> Label {
    (name, value.to_owned())
}

/// Who a subscription is, as labels.
fn subscription(of: &SubscriptionCounters) -> Vec<Label> {
    let info = &of.info;
    vec![
        label("id", &info.id.to_string()),
        label("api", info.api.name()),
        label("peer", &info.peer),
        label("shard_id", &info.shard_id),
        label("deterministic_name", &info.deterministic_name),
        label("selectors", &info.selectors),
    ]
}

struct Out<'a>(DescriptorEncoder<'a>);

impl Out<'_> {
    fn counter(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Vec<Label>, u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, series, ConstCounter::new)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Vec<Label>, u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, series, |value| {
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX))
        })
    }

    fn family<M: EncodeMetric>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        series: impl IntoIterator<Item = (Vec<Label>, u64)>,
        metric: impl Fn(u64) -> M,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in series {
            metric(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

// the labels' type must be one that the encoder knows
const _: fn() = || {
    fn encodes<T: EncodeLabelSet>() {}
    encodes::<Vec<Label>>();
};
