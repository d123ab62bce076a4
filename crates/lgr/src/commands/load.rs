//! `lgr load`: arguments of a load run; the run itself is in [`crate::load`].

use std::num::NonZeroU32;
use std::time::Duration;

use lgr::Error;
use lgr::client::Options;

use crate::arguments::{Connection, duration, rate};
use crate::load::{Api, Group, Mix, Plan, run as run_plan};
use crate::stop::Stop;

/// Load a router and measure: throughput, loss, latency, and the router's cost
///
/// Producers send numbered envelopes, subscribers count them, so that every lost or duplicated one
/// is known. After a warm-up everything is measured for a while; then producers stop, subscribers
/// get time to receive the rest, and the report comes.
///
/// A group of subscribers is written [COUNTx]WHAT[:OPTION...], where WHAT is one of
///   firehose            everything
///   log, counter, gauge, timer, event
///                       every envelope of that kind
///   counter=NAME        the counter of that name; those of this tool are called `requests`
///   gauge=NAME+NAME     the gauge with exactly these metrics; those of this tool: cpu+memory
///   source=INDEX        everything of one source
///   source              each subscriber another source, in turn
///   v1, v1-log, v1-metric
///                       everything, logs, all but logs, by the v1 API
/// and OPTION is any of
///   shard=ID            members share the envelopes
///   named               members have deterministic names
///   slow=TIME           pause after each message
///   stalled             never read
///   idle=N              N more selectors each, which match nothing
///
/// Examples:
///
///   lgr load --rate 50k --pid $(pgrep router)
///   lgr load --producers 2 --subscribe 10xfirehose --rate 20k
///   lgr load --batch 1 --rate 1000                          (latency of single envelopes)
///   lgr load --sources 20000 --subscribe firehose --subscribe 1000xsource --rate 50k
///   lgr load --subscribe 9xfirehose --subscribe firehose:stalled --rate 50k
///   lgr load --kinds log:8,counter:1,gauge:1 --subscribe 4xcounter:shard=a:named
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Streams that send envelopes
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        help_heading = "Producers"
    )]
    producers: NonZeroU32,
    /// Connections that they share [default: one each]
    #[arg(long, value_name = "N", help_heading = "Producers")]
    connections: Option<NonZeroU32>,
    /// Envelopes per second of all together, also like 50k; as fast as it goes if left out
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Producers")]
    rate: Option<f64>,

    /// Send what is due in bursts, one so often, instead of evenly: many real producers wake up on
    /// a timer, and a router finds that much cheaper
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "rate", help_heading = "Producers")]
    burst: Option<Duration>,
    /// API that they speak
    #[arg(long, value_enum, value_name = "API", default_value_t = Api::V2, help_heading = "Producers")]
    api: Api,
    /// Envelopes per message [default: 100; always 1 with v1]
    #[arg(long, value_name = "N", help_heading = "Producers")]
    batch: Option<NonZeroU32>,
    /// Payload size of logs and events in bytes; 128 makes envelopes of about 330 bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 128,
        help_heading = "Producers"
    )]
    payload: u32,
    /// Number of source ids
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        help_heading = "Producers"
    )]
    sources: NonZeroU32,
    /// Unevenness of sources: the share of the n-th is proportional to 1 / n^SKEW
    #[arg(long, value_name = "SKEW", default_value_t = 0.0, value_parser = skew, help_heading = "Producers")]
    skew: f64,
    /// Kinds with their shares: log, counter, gauge, timer, event, or all
    #[arg(
        long,
        value_name = "KIND[:SHARE],...",
        default_value = "log",
        help_heading = "Producers"
    )]
    kinds: Mix,
    /// A group of subscribers, see above; may be repeated
    #[arg(
        long,
        value_name = "GROUP",
        default_value = "firehose",
        help_heading = "Subscribers"
    )]
    subscribe: Vec<Group>,
    /// Connections that those share that read at once [default: one each, at most 20]
    #[arg(long, value_name = "N", help_heading = "Subscribers")]
    subscriber_connections: Option<NonZeroU32>,
    /// HTTP/2 window of each of their streams in bytes [default: 2 MiB]
    #[arg(long, value_name = "BYTES", help_heading = "Subscribers")]
    window: Option<u32>,
    /// On the side, subscribe to and unsubscribe from a source so many times a second
    #[arg(long, value_name = "R", value_parser = rate, help_heading = "Subscribers")]
    churn: Option<f64>,
    /// Time before measuring begins [default: 1s, none with --count]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Run")]
    warm_up: Option<Duration>,
    /// Time to measure
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration, help_heading = "Run")]
    duration: Duration,
    /// Stop after so many envelopes, if that is sooner
    #[arg(long, value_name = "N", help_heading = "Run")]
    count: Option<u64>,
    /// Time at most for subscribers to receive the rest
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration, help_heading = "Run")]
    drain: Duration,
    /// Threads for the producers
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Run")]
    producer_threads: NonZeroU32,
    /// Threads for the subscribers
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Run")]
    subscriber_threads: NonZeroU32,
    /// Process id of the router, on this machine: report what it costs
    #[arg(long, value_name = "PID", help_heading = "Report")]
    pid: Option<u32>,
    /// Print the report as one line of JSON
    #[arg(long, help_heading = "Report")]
    json: bool,
    /// No progress line
    #[arg(long, short, help_heading = "Report")]
    quiet: bool,
    /// Exit code 1 if a subscriber that reads at once lost an envelope or got one twice
    #[arg(long, help_heading = "Report")]
    strict: bool,
    #[command(flatten)]
    connection: Connection,
}

fn skew(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(skew @ 0.0..=10.0) => Ok(skew),
        _ => Err("must be a number from 0 to 10".to_owned()),
    }
}

/// As many as a real consumer opens to one router.
const SUBSCRIBER_CONNECTIONS: u32 = 20;

impl Arguments {
    fn plan(&self) -> Result<Plan, Error> {
        let [addr] = self.connection.addr.as_slice() else {
            return Err(Error::Argument {
                argument: "--addr".to_owned(),
                reason: "load measures one router at a time".to_owned(),
            });
        };
        let batch = match (self.api, self.batch.map(NonZeroU32::get)) {
            (Api::V1, None | Some(1)) => 1,
            (Api::V1, Some(batch)) => {
                return Err(Error::Argument {
                    argument: format!("--batch {batch}"),
                    reason: "a v1 message is one envelope".to_owned(),
                });
            }
            (Api::V2, batch) => batch.unwrap_or(100),
        };
        let readers: u32 = self.subscribe.iter().map(|group| group.count).sum();
        let connections = self.subscriber_connections.map(NonZeroU32::get);
        let producers = self.producers.get();
        Ok(Plan {
            addr: addr.clone(),
            credentials: self.connection.credentials()?,
            options: Options {
                stream_window: self.window,
                ..self.connection.options()
            },
            api: self.api,
            producers,
            connections: self
                .connections
                .map_or(producers, NonZeroU32::get)
                .min(producers),
            rate: self.rate,
            burst: self.burst,
            batch,
            payload: self.payload as usize,
            sources: self.sources.get(),
            skew: self.skew,
            mix: self.kinds.clone(),
            groups: self.subscribe.clone(),
            subscriber_connections: connections
                .unwrap_or_else(|| readers.clamp(1, SUBSCRIBER_CONNECTIONS)),
            churn: self.churn,
            warm_up: self
                .warm_up
                .unwrap_or_else(|| Duration::from_secs(if self.count.is_none() { 1 } else { 0 })),
            duration: self.duration,
            count: self.count,
            drain: self.drain,
            producer_threads: self.producer_threads.get(),
            subscriber_threads: self.subscriber_threads.get(),
            pid: self.pid,
            quiet: self.quiet,
        })
    }
}

pub(crate) async fn run(arguments: Arguments, mut stop: Stop) -> Result<(), Error> {
    let plan = arguments.plan()?;
    let (report, result) = run_plan(plan, &mut stop).await;
    if let Some(report) = &report {
        if arguments.json {
            super::print(&report.json())?;
        } else {
            super::print(report)?;
        }
    }
    result?;
    match report {
        Some(report) if arguments.strict && report.is_flawed() => Err(Error::Argument {
            argument: "--strict".to_owned(),
            reason: "envelopes were lost, duplicated or delivered to the wrong subscriber"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("load").chain(line.split_whitespace());
        CommandLine::try_parse_from(words).map(|line| line.arguments)
    }

    #[test]
    fn a_line_of_everything() {
        let line = "--producers 4 --connections 2 --rate 50k --batch 10 --api v2 --payload 1000 \
                    --sources 100 --skew 1.1 --kinds log:8,counter:2 --subscribe 10xfirehose \
                    --subscribe 2xsource:slow=10ms --churn 100 --window 65536 --warm-up 2s \
                    --duration 1m --count 1000 --drain 3s --pid 1 --json --quiet --strict";
        let arguments = parse(line).unwrap();
        assert_eq!(arguments.subscribe.len(), 2);
        assert_eq!(arguments.kinds.0.len(), 2);
        assert_eq!(arguments.rate, Some(50_000.0));
    }

    #[test]
    fn a_firehose_by_default() {
        let arguments = parse("").unwrap();
        assert_eq!(arguments.subscribe, ["firehose".parse().unwrap()]);
    }

    #[test]
    fn arguments_that_make_no_sense() {
        for line in [
            "--producers 0",
            "--batch 0",
            "--sources 0",
            "--rate 0",
            "--skew -1",
            "--skew nan",
            "--kinds logs",
            "--subscribe everything",
            "--duration soon",
            "--pid self",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
