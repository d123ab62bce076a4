//! The pipeline's counters in the Prometheus text format (OpenMetrics), read when scraped.
//!
//! Totals carry the names that the platform's dashboards know; what those cannot say, above all
//! which consumer is slow, is in the `subscription_*` series.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};
use router::{Router, SubscriptionCounters};

use crate::refusals::Refusals;

/// Renders the metrics of one router.
pub(crate) struct Exposition(Registry);

struct Pipeline {
    router: Router,
    refusals: Arc<Refusals>,
}

type Label = (&'static str, String);

impl Exposition {
    pub(crate) const CONTENT_TYPE: &str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    pub(crate) fn new(router: Router, refusals: Arc<Refusals>) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Pipeline { router, refusals }));
        Self(registry)
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.0).expect("writing to a string does not fail");
        text
    }
}

impl Collector for Pipeline {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = self.router.counters();
        let mut out = Out(encoder);
        let direction = |value: &str| vec![("direction", value.to_owned())];

        out.counter(
            "ingress",
            "Envelopes accepted from producers",
            [(vec![], now.ingress)],
        )?;
        out.counter(
            "published",
            "Envelopes published",
            [(vec![], now.published)],
        )?;
        out.counter(
            "egress",
            "Envelopes delivered to subscribers",
            [(vec![], now.egress)],
        )?;
        out.counter(
            "dropped",
            "Envelopes lost because a ring overran, or left when a stream ended",
            [
                (direction("ingress"), now.dropped_ingress),
                (direction("egress"), now.dropped_egress),
            ],
        )?;
        out.gauge(
            "subscriptions",
            "Open subscription streams",
            [(vec![], now.subscriptions)],
        )?;
        out.gauge(
            "ingress_queued",
            "Envelopes in the ingress ring",
            [(vec![], now.ingress_queued)],
        )?;
        out.gauge(
            "ingress_queued_bytes",
            "Bytes in the ingress ring",
            [(vec![], now.ingress_queued_bytes)],
        )?;
        out.counter(
            "publish_panics",
            "Panics contained while publishing",
            [(vec![], now.panics)],
        )?;
        out.counter(
            "refused_connections",
            "Connections refused in their handshake",
            [(vec![], self.refusals.total())],
        )?;

        let each = self.router.subscriptions();
        let of_each = |value: fn(&SubscriptionCounters) -> u64| {
            each.iter().map(move |one| (labels(one), value(one)))
        };
        out.counter(
            "subscription_matched",
            "Envelopes that matched",
            of_each(|one| one.matched),
        )?;
        out.counter(
            "subscription_egress",
            "Envelopes delivered",
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

/// Who a subscription is, as labels.
fn labels(of: &SubscriptionCounters) -> Vec<Label> {
    let info = &of.info;
    vec![
        ("id", info.id.to_string()),
        ("api", "v2".to_owned()),
        ("peer", info.peer.clone()),
        ("shard_id", info.shard_id.clone()),
        ("deterministic_name", info.deterministic_name.clone()),
        ("selectors", info.selectors.clone()),
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

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

// the labels' type must be one that the encoder knows
const _: fn() = || {
    fn encodes<T: EncodeLabelSet>() {}
    encodes::<Vec<Label>>();
};
