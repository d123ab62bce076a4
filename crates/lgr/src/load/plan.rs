//! What a load run is to do: the arguments, checked and worked out.

use std::str::FromStr;
use std::time::Duration;

use loggregator::v1::plumbing as v1;
use loggregator::v2::{self, selector::Message as Selected};

use super::template::{Api, COUNTER, Kind, source_id};
use lgr::client::every_kind;

/// Which kinds of envelopes, and how many of each in proportion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mix(pub(crate) Vec<(Kind, u32)>);

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Vec::new();
        for part in text.split(',') {
            let (name, weight) = part.split_once(':').unwrap_or((part, "1"));
            let kinds: Vec<Kind> = Kind::ALL
                .into_iter()
                .filter(|kind| name == "all" || kind.name() == name)
                .collect();
            if kinds.is_empty() {
                return Err(format!(
                    "kind `{name}` is none of log, counter, gauge, timer, event, all"
                ));
            }
            let weight = match weight.parse() {
                Ok(weight @ 1..=1_000_000) => weight,
                _ => {
                    return Err(format!(
                        "weight `{weight}` is not a number from 1 to 1000000"
                    ));
                }
            };
            mix.extend(kinds.into_iter().map(|kind| (kind, weight)));
        }
        for (position, (kind, _)) in mix.iter().enumerate() {
            if mix[..position].iter().any(|(other, _)| other == kind) {
                return Err(format!("kind `{}` is there twice", kind.name()));
            }
        }
        Ok(Self(mix))
    }
}

/// A group of subscribers that are alike: `[COUNTx]WHAT[:OPTION...]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    /// As the user wrote it.
    pub(crate) text: String,
    pub(crate) count: u32,
    pub(crate) what: What,
    pub(crate) shard: Option<String>,
    pub(crate) named: bool,
    pub(crate) reading: Reading,
    /// Selectors per subscriber that match nothing.
    pub(crate) idle_selectors: u32,
}

/// What a group's subscribers select.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Firehose,
    Kind(Kind),
    /// Counters of a name.
    Counter(String),
    /// Gauges of exactly these metrics.
    Gauge(Vec<String>),
    /// All of one source; `None`: each subscriber has another.
    Source(Option<u32>),
    /// A v1 subscription: to everything, to logs, or to all but logs.
    V1(Option<V1Filter>),
}

/// A v1 subscription's type of envelopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum V1Filter {
    Log,
    Metric,
}

/// How fast a group's subscribers read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reading {
    AtOnce,
    /// With a pause after each message.
    Slowly(Duration),
    Never,
}

impl FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (count, rest) = match text.split_at(digits) {
            ("", rest) => (1, rest),
            (count, rest) => {
                // A star is natural, too, but some shells take it for a file name.
                let Some(rest) = rest.strip_prefix(['x', '*']) else {
                    return Err(format!(
                        "`{text}`: a count is followed by x, as in 10xfirehose"
                    ));
                };
                match count.parse() {
                    Ok(count @ 0..=100_000) => (count, rest),
                    _ => return Err(format!("count `{count}` is not a number up to 100000")),
                }
            }
        };
        let mut parts = rest.split(':');
        let what = parts.next().unwrap_or_default();
        let mut group = Self {
            text: text.to_owned(),
            count,
            what: what.parse()?,
            shard: None,
            named: false,
            reading: Reading::AtOnce,
            idle_selectors: 0,
        };
        for option in parts {
            match option.split_once('=') {
                Some(("shard", id)) if !id.is_empty() => group.shard = Some(id.to_owned()),
                Some(("slow", pause)) => {
                    group.reading = Reading::Slowly(crate::arguments::duration(pause)?);
                }
                Some(("idle", selectors)) => match selectors.parse() {
                    Ok(selectors @ 0..=100_000) => group.idle_selectors = selectors,
                    _ => return Err(format!("idle `{selectors}` is not a number up to 100000")),
                },
                None if option == "named" => group.named = true,
                None if option == "stalled" => group.reading = Reading::Never,
                _ => {
                    return Err(format!(
                        "option `{option}` is none of shard=ID, named, slow=TIME, stalled, idle=N"
                    ));
                }
            }
        }
        if group.api() == Api::V1 && (group.named || group.idle_selectors > 0) {
            return Err("v1 subscribers have neither names nor selectors".to_owned());
        }
        if group.named && group.shard.is_none() {
            return Err("named members are members of a shard: add shard=ID".to_owned());
        }
        Ok(group)
    }
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let what = match (name, value) {
            ("firehose", None) => Self::Firehose,
            ("log", None) => Self::Kind(Kind::Log),
            ("counter", None) => Self::Kind(Kind::Counter),
            ("gauge", None) => Self::Kind(Kind::Gauge),
            ("timer", None) => Self::Kind(Kind::Timer),
            ("event", None) => Self::Kind(Kind::Event),
            ("counter", Some(name)) => Self::Counter(name.to_owned()),
            ("gauge", Some(names)) => Self::Gauge(names.split('+').map(str::to_owned).collect()),
            ("v1", None) => Self::V1(None),
            ("v1-log", None) => Self::V1(Some(V1Filter::Log)),
            ("v1-metric", None) => Self::V1(Some(V1Filter::Metric)),
            ("source", None) => Self::Source(None),
            ("source", Some(index)) => match index.parse() {
                Ok(index) => Self::Source(Some(index)),
                Err(_) => return Err(format!("source `{index}` is not the index of a source")),
            },
            _ => {
                return Err(format!(
                    "`{text}` is none of firehose, log, counter[=NAME], gauge[=NAME+NAME...], \
                     timer, event, source[=INDEX], v1, v1-log, v1-metric"
                ));
            }
        };
        Ok(what)
    }
}

/// A set of kinds, a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KindSet(u8);

impl KindSet {
    pub(crate) fn only(kind: Kind) -> Self {
        Self(1 << kind as u8)
    }

    pub(crate) fn all_but(kind: Kind) -> Self {
        Self(!Self::only(kind).0)
    }

    pub(crate) fn contains(self, kind: Kind) -> bool {
        self.0 & Self::only(kind).0 != 0
    }
}

/// What a subscriber asks a router for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request {
    V1(v1::SubscriptionRequest),
    V2(v2::EgressBatchRequest),
}

/// Which envelopes a subscriber must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scope {
    Everything,
    Kinds(KindSet),
    Source(u32),
    Nothing,
}

impl Group {
    /// What the group's member `index` asks for, and what it must get of what producers of `api`
    /// send.
    pub(crate) fn request(&self, index: u32, sources: u32, api: Api) -> (Request, Scope) {
        let any = |selected| {
            vec![v2::Selector {
                source_id: String::new(),
                message: Some(selected),
            }]
        };
        let if_ours = |is_ours, kind| {
            if is_ours {
                Scope::Kinds(KindSet::only(kind))
            } else {
                Scope::Nothing
            }
        };
        let (mut selectors, scope) = match &self.what {
            What::V1(filter) => return self.v1_request(*filter),
            What::Firehose => (every_kind(""), Scope::Everything),
            What::Kind(kind) => {
                let selected = match kind {
                    Kind::Log => Selected::Log(v2::LogSelector {}),
                    Kind::Counter => Selected::Counter(v2::CounterSelector::default()),
                    Kind::Gauge => Selected::Gauge(v2::GaugeSelector::default()),
                    Kind::Timer => Selected::Timer(v2::TimerSelector {}),
                    Kind::Event => Selected::Event(v2::EventSelector {}),
                };
                (any(selected), if_ours(true, *kind))
            }
            What::Counter(name) => {
                let selected = Selected::Counter(v2::CounterSelector { name: name.clone() });
                (
                    any(selected),
                    if_ours(name.is_empty() || name == COUNTER, Kind::Counter),
                )
            }
            What::Gauge(names) => {
                let selected = Selected::Gauge(v2::GaugeSelector {
                    names: names.clone(),
                });
                let mut sorted = names.clone();
                sorted.sort();
                (any(selected), if_ours(sorted == api.gauge(), Kind::Gauge))
            }
            What::Source(source) => {
                let source = source.unwrap_or(index % sources);
                let exists = source < sources;
                let scope = if exists {
                    Scope::Source(source)
                } else {
                    Scope::Nothing
                };
                (every_kind(&source_id(source)), scope)
            }
        };
        for idle in 0..self.idle_selectors {
            selectors.push(v2::Selector {
                source_id: format!("idle-{index}-{idle}"),
                message: Some(Selected::Log(v2::LogSelector {})),
            });
        }
        let deterministic_name = if self.named {
            format!("member-{index}")
        } else {
            String::new()
        };
        let request = v2::EgressBatchRequest {
            shard_id: self.shard.clone().unwrap_or_default(),
            selectors,
            deterministic_name,
            ..v2::EgressBatchRequest::default()
        };
        (Request::V2(request), scope)
    }

    fn v1_request(&self, filter: Option<V1Filter>) -> (Request, Scope) {
        let (message, scope) = match filter {
            None => (None, Scope::Everything),
            Some(V1Filter::Log) => (
                Some(v1::filter::Message::Log(v1::LogFilter {})),
                Scope::Kinds(KindSet::only(Kind::Log)),
            ),
            Some(V1Filter::Metric) => (
                Some(v1::filter::Message::Metric(v1::MetricFilter {})),
                Scope::Kinds(KindSet::all_but(Kind::Log)),
            ),
        };
        let filter = message.map(|message| v1::Filter {
            app_id: String::new(),
            message: Some(message),
        });
        let shard_id = self.shard.clone().unwrap_or_default();
        (
            Request::V1(v1::SubscriptionRequest { shard_id, filter }),
            scope,
        )
    }

    /// The API that the group's subscribers speak.
    pub(crate) fn api(&self) -> Api {
        if matches!(self.what, What::V1(_)) {
            Api::V1
        } else {
            Api::V2
        }
    }

    /// Whether the group's loss counts: a subscriber that doesn't keep up loses by intent.
    pub(crate) fn is_prompt(&self) -> bool {
        self.reading == Reading::AtOnce
    }
}

/// How envelopes are numbered: one series for each producer and, as far as needed to know what
/// each subscriber must get, for each kind and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbering {
    pub(crate) producers: u32,
    /// Kinds in the mix if they are told apart, else 1.
    pub(crate) kinds: u32,
    /// Sources if they are told apart, else 1.
    pub(crate) sources: u32,
}

impl Numbering {
    /// Above this, sources are told apart only if somebody selects by them: it costs memory per
    /// subscriber.
    const FINE: u64 = 100_000;

    pub(crate) fn new(producers: u32, mix: &Mix, sources: u32, groups: &[Group]) -> Self {
        // The API makes no difference to which series are needed.
        let scopes = || {
            groups
                .iter()
                .map(|group| group.request(0, sources, Api::V2).1)
        };
        let kinds = if scopes().any(|scope| matches!(scope, Scope::Kinds(_))) {
            mix.0.len() as u32
        } else {
            1
        };
        let fine = u64::from(producers) * u64::from(kinds) * u64::from(sources) <= Self::FINE;
        let by_source = fine || scopes().any(|scope| matches!(scope, Scope::Source(_)));
        Self {
            producers,
            kinds,
            sources: if by_source { sources } else { 1 },
        }
    }

    pub(crate) fn series(&self) -> u64 {
        u64::from(self.producers) * u64::from(self.per_producer())
    }

    pub(crate) fn per_producer(&self) -> u32 {
        self.kinds * self.sources
    }

    /// The series within a producer of the mix's kind `kind` and of `source`.
    pub(crate) fn within(&self, kind: u32, source: u32) -> u32 {
        kind.min(self.kinds - 1) * self.sources + source.min(self.sources - 1)
    }

    /// Whether a subscriber with this scope must get the series, and a place for it among those
    /// that it must get.
    pub(crate) fn position(&self, series: u32, scope: Scope, mix: &Mix) -> Option<usize> {
        if u64::from(series) >= self.series() {
            return None;
        }
        let (rest, source) = (series / self.sources, series % self.sources);
        match scope {
            Scope::Everything => Some(series as usize),
            Scope::Nothing => None,
            Scope::Kinds(wanted) => {
                let (kind, _) = mix.0[(rest % self.kinds) as usize];
                wanted.contains(kind).then_some(series as usize)
            }
            Scope::Source(wanted) => (source == wanted).then_some(rest as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> Group {
        text.parse().unwrap()
    }

    #[test]
    fn mixes() {
        assert_eq!("log".parse(), Ok(Mix(vec![(Kind::Log, 1)])));
        assert_eq!(
            "log:8,gauge:2".parse(),
            Ok(Mix(vec![(Kind::Log, 8), (Kind::Gauge, 2)]))
        );
        assert_eq!("all".parse::<Mix>().unwrap().0.len(), 5);
        for text in [
            "", "logs", "log:0", "log:x", "log,log", "all,log", "log:1:2", "log,",
        ] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }

    #[test]
    fn groups() {
        let plain = group("firehose");
        assert_eq!(
            (plain.count, plain.what, plain.reading),
            (1, What::Firehose, Reading::AtOnce)
        );
        let full = group("4xcounter=requests:shard=a:named:slow=50ms:idle=3");
        assert_eq!(full.what, What::Counter("requests".to_owned()));
        assert_eq!(full.shard.as_deref(), Some("a"));
        assert!(full.named && !full.is_prompt());
        assert_eq!(full.reading, Reading::Slowly(Duration::from_millis(50)));
        let (Request::V2(request), scope) = full.request(2, 1, Api::V2) else {
            panic!("not v2")
        };
        assert_eq!(request.selectors.len(), 4);
        assert_eq!(scope, Scope::Kinds(KindSet::only(Kind::Counter)));
        assert_eq!(request.deterministic_name, "member-2");
        assert_eq!(
            group("gauge=memory+cpu").request(0, 1, Api::V2).1,
            Scope::Kinds(KindSet::only(Kind::Gauge))
        );
        let cpu = group("gauge=cpu");
        assert_eq!(cpu.request(0, 1, Api::V2).1, Scope::Nothing);
        assert_eq!(
            cpu.request(0, 1, Api::V1).1,
            Scope::Kinds(KindSet::only(Kind::Gauge))
        );
        assert_eq!(
            group("10*source").request(7, 5, Api::V2).1,
            Scope::Source(2)
        );
        assert_eq!(group("source=9").request(0, 5, Api::V2).1, Scope::Nothing);
        for text in [
            "",
            "fire",
            "xfirehose",
            "-1xfirehose",
            "1000000xfirehose",
            "10 firehose",
            "firehose:fast",
            "firehose:named",
            "firehose:shard=",
            "firehose:slow=x",
            "source=x",
            "firehose=1",
            "v1:idle=1",
            "v1:shard=a:named",
        ] {
            assert!(text.parse::<Group>().is_err(), "{text}");
        }
    }

    #[test]
    fn series_are_no_finer_than_needed() {
        let mix: Mix = "all".parse().unwrap();
        let numbering = |sources, groups: &[&str]| {
            let groups: Vec<_> = groups.iter().map(|text| group(text)).collect();
            let Numbering { kinds, sources, .. } = Numbering::new(2, &mix, sources, &groups);
            (kinds, sources)
        };
        assert_eq!(numbering(10, &["firehose"]), (1, 10));
        assert_eq!(numbering(1_000_000, &["firehose"]), (1, 1));
        assert_eq!(numbering(10, &["counter"]), (5, 10));
        assert_eq!(numbering(1_000_000, &["source", "log"]), (5, 1_000_000));
    }

    #[test]
    fn v1_groups() {
        let (Request::V1(request), scope) = group("2xv1:shard=a").request(1, 1, Api::V1) else {
            panic!("not v1")
        };
        assert_eq!((request.shard_id.as_str(), request.filter), ("a", None));
        assert_eq!(scope, Scope::Everything);
        let scope = |text| group(text).request(0, 1, Api::V1).1;
        let contains = |scope, kind| matches!(scope, Scope::Kinds(set) if set.contains(kind));
        assert!(contains(scope("v1-log"), Kind::Log) && !contains(scope("v1-log"), Kind::Counter));
        let metric = scope("v1-metric");
        assert!(!contains(metric, Kind::Log) && contains(metric, Kind::Gauge));
    }

    /// Every series of a scope has a place of its own there; places that only grow with what the
    /// scope has need no more memory than that.
    #[test]
    fn positions_differ() {
        let mix: Mix = "log,counter:2,event".parse().unwrap();
        let groups = [group("source"), group("log")];
        let numbering = Numbering::new(2, &mix, 5, &groups);
        let scopes = [
            (Scope::Everything, 30, 30),
            (Scope::Kinds(KindSet::only(Kind::Counter)), 10, 30),
            (Scope::Kinds(KindSet::all_but(Kind::Counter)), 20, 30),
            (Scope::Kinds(KindSet::only(Kind::Gauge)), 0, 0),
            (Scope::Source(4), 6, 6),
            (Scope::Nothing, 0, 0),
        ];
        for (scope, count, below) in scopes {
            let mut positions: Vec<_> = (0..40)
                .filter_map(|series| numbering.position(series, scope, &mix))
                .collect();
            positions.sort_unstable();
            positions.dedup();
            assert_eq!(positions.len(), count, "{scope:?}");
            assert!(
                positions.iter().all(|&position| position < below),
                "{scope:?}"
            );
        }
    }
}
