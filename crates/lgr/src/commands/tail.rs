//! `lgr tail`: a subscriber that shows or counts what it gets.
//!
//! Each router has a task that keeps a subscription to it; all hand their batches to one loop,
//! [`Tail::follow`], which prints, counts, and knows when it is time to end.

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use lgr::Error;
use lgr::client::{BatchedReceiver, Client, Credentials, Options, every_kind};
use lgr::numbered::{Number, Tracker};
use loggregator::v2::{self, selector::Message as Kind};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::arguments::{Connection, duration};
use crate::show::{self, Line};
use crate::stop::Stop;

/// Show what a subscriber gets
///
/// Subscribes to one or more routers and prints a line per envelope, until ctrl-c. Without a kind,
/// all five are selected; without a source id, all sources are.
///
/// Examples:
///
///   lgr tail
///   lgr tail --source-id my-app --log
///   lgr tail --counter requests --gauge cpu,memory --json
///   lgr tail --shard-id nozzle          (in two terminals: each gets a part)
///   lgr tail --addr 10.0.0.1:8082 --addr 10.0.0.2:8082
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Share the envelopes with all subscribers of this shard id
    #[arg(long, value_name = "ID", default_value = "")]
    shard_id: String,
    /// Our name within the shard: counters and gauges of a name always go to the same subscriber
    #[arg(long, value_name = "NAME", default_value = "", requires = "shard_id")]
    deterministic_name: String,
    /// Print envelopes as JSON, an object per line (payloads are in base64)
    #[arg(long)]
    json: bool,
    /// Print no envelopes
    #[arg(long, short)]
    quiet: bool,
    /// End after so many envelopes
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End after so long
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// End when nothing has come for so long since the last envelope [with --expect: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    idle_timeout: Option<Duration>,
    /// Watch the numbers that `lgr emit --numbered` gives: what is lost, duplicated or overtaken
    #[arg(long)]
    numbered: bool,
    /// Only count, and end when so many different numbers are here or none come any more
    #[arg(long, value_name = "N", requires = "numbered")]
    expect: Option<u64>,
    /// At the end, print one line of JSON: {"received":N,"messages":N}
    ///
    /// With --numbered also "lost", "duplicated" and "out_of_order" (per source); "received" then
    /// counts different numbers. What is lost after the last one to arrive only --expect knows.
    #[arg(long)]
    json_summary: bool,
    /// Subscribe again when a stream breaks, as a real consumer does; always so with several --addr
    #[arg(long)]
    reconnect: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    connection: Connection,
}

/// Which envelopes.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Selection")]
struct Selection {
    /// Only from this source; may be repeated
    #[arg(long, value_name = "ID")]
    source_id: Vec<String>,
    /// Logs
    #[arg(long)]
    log: bool,
    /// Counters, all or those of one name; may be repeated
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    counter: Vec<String>,
    /// Gauges, all or those that have exactly these metrics; may be repeated
    #[arg(long, value_name = "NAME,NAME,...", num_args = 0..=1, default_missing_value = "")]
    gauge: Vec<String>,
    /// Timers
    #[arg(long)]
    timer: bool,
    /// Events
    #[arg(long)]
    event: bool,
}

impl Selection {
    fn selectors(&self) -> Vec<v2::Selector> {
        let mut kinds = Vec::new();
        if self.log {
            kinds.push(Kind::Log(v2::LogSelector {}));
        }
        for name in &self.counter {
            kinds.push(Kind::Counter(v2::CounterSelector { name: name.clone() }));
        }
        for names in &self.gauge {
            let names = names
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned);
            kinds.push(Kind::Gauge(v2::GaugeSelector {
                names: names.collect(),
            }));
        }
        if self.timer {
            kinds.push(Kind::Timer(v2::TimerSelector {}));
        }
        if self.event {
            kinds.push(Kind::Event(v2::EventSelector {}));
        }
        let any_source = [String::new()];
        let sources = if self.source_id.is_empty() {
            &any_source[..]
        } else {
            &self.source_id
        };
        let selectors = sources.iter().flat_map(|source_id| {
            if kinds.is_empty() {
                return every_kind(source_id);
            }
            let of_kind = |kind: &Kind| v2::Selector {
                source_id: source_id.clone(),
                message: Some(kind.clone()),
            };
            kinds.iter().map(of_kind).collect()
        });
        selectors.collect()
    }
}

/// What a subscription's task tells the loop.
type Received = Result<v2::EnvelopeBatch, Error>;

pub(crate) async fn run(arguments: Arguments, mut stop: Stop) -> Result<(), Error> {
    let request = v2::EgressBatchRequest {
        shard_id: arguments.shard_id.clone(),
        deterministic_name: arguments.deterministic_name.clone(),
        selectors: arguments.selection.selectors(),
        ..v2::EgressBatchRequest::default()
    };
    let (credentials, options) = (
        arguments.connection.credentials()?,
        arguments.connection.options(),
    );
    let reconnect = arguments.reconnect || arguments.connection.addr.len() > 1;
    let (batches, mut received) = mpsc::channel(16);
    for addr in &arguments.connection.addr {
        let router = Router {
            addr: addr.clone(),
            credentials: credentials.clone(),
            options: options.clone(),
            request: request.clone(),
            batches: batches.clone(),
        };
        if reconnect {
            tokio::spawn(router.follow_for_ever());
        } else {
            tokio::spawn(router.follow_once());
        }
    }
    drop(batches);

    let mut tail = Tail::new(&arguments);
    let result = tail.follow(&mut received, &mut stop).await;
    // A reader that is gone needs no summary either.
    if result.as_ref().is_err_and(Error::is_broken_pipe) {
        return result;
    }
    tail.summary()?;
    result
}

/// The way to one router.
struct Router {
    addr: String,
    credentials: Credentials,
    options: Options,
    request: v2::EgressBatchRequest,
    batches: mpsc::Sender<Received>,
}

impl Router {
    /// One subscription; how it ends goes to the loop.
    async fn follow_once(self) {
        let error = match self.follow().await {
            Follow::Closed => return,
            Follow::Ended(error, _) => error,
        };
        let _ = self.batches.send(Err(error)).await;
    }

    /// Subscribes again and again, with longer and longer pauses while there is no success.
    async fn follow_for_ever(self) {
        const PAUSES: [u64; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
        let mut failures = 0;
        loop {
            let (error, success) = match self.follow().await {
                Follow::Closed => return,
                Follow::Ended(error, success) => (error, success),
            };
            failures = if success { 0 } else { failures + 1 };
            let pause = Duration::from_millis(PAUSES[failures.min(PAUSES.len() - 1)]);
            eprintln!("lgr: {error}; next attempt in {pause:?}");
            tokio::select! {
                () = sleep(pause) => {}
                () = self.batches.closed() => return,
            }
        }
    }

    async fn follow(&self) -> Follow {
        let client = match Client::connect(&self.addr, &self.credentials, &self.options).await {
            Ok(client) => client,
            Err(error) => return Follow::Ended(error, false),
        };
        let mut subscription = client.batched_receiver(self.request.clone());
        match announce(&mut subscription, &self.addr).await {
            Ok(()) => {}
            Err(error) => return Follow::Ended(error, false),
        }
        loop {
            let next = tokio::select! {
                next = subscription.next() => next,
                () = self.batches.closed() => return Follow::Closed,
            };
            let item = match next {
                Ok(Some(batch)) => Ok(batch),
                Ok(None) => {
                    let reason = "the router ended the stream with OK".to_owned();
                    return Follow::Ended(
                        Error::Ended {
                            peer: self.addr.clone(),
                            reason,
                        },
                        true,
                    );
                }
                Err(error) => return Follow::Ended(error, true),
            };
            if self.batches.send(item).await.is_err() {
                return Follow::Closed;
            }
        }
    }
}

/// How a subscription came to its end.
enum Follow {
    /// Nobody listens any more.
    Closed,
    /// It broke, or never began; whether it had begun.
    Ended(Error, bool),
}

/// Says on standard error that the subscription stands, so that whoever waits for it can go on.
async fn announce(subscription: &mut BatchedReceiver, addr: &str) -> Result<(), Error> {
    if subscription.confirmed(Duration::from_secs(1)).await? {
        eprintln!("lgr: subscribed to {addr}");
    } else {
        eprintln!("lgr: subscribed to {addr} (which confirms it with the first envelope only)");
    }
    Ok(())
}

/// The loop's state.
struct Tail {
    output: Option<BufWriter<io::Stdout>>,
    json: bool,
    json_summary: bool,
    count: Option<u64>,
    expect: Option<u64>,
    deadline: Option<Instant>,
    idle_timeout: Option<Duration>,
    tracker: Option<Tracker>,
    received: u64,
    messages: u64,
}

impl Tail {
    fn new(arguments: &Arguments) -> Self {
        let counting = arguments.expect.is_some();
        let quiet = arguments.quiet || counting;
        Self {
            output: (!quiet).then(|| BufWriter::new(io::stdout())),
            json: arguments.json,
            json_summary: arguments.json_summary,
            count: arguments.count,
            expect: arguments.expect,
            deadline: arguments.timeout.map(|timeout| Instant::now() + timeout),
            idle_timeout: arguments
                .idle_timeout
                .or_else(|| counting.then_some(Duration::from_secs(5))),
            tracker: arguments.numbered.then(Tracker::default),
            received: 0,
            messages: 0,
        }
    }

    /// Takes batches until there is a reason to end.
    async fn follow(
        &mut self,
        batches: &mut mpsc::Receiver<Received>,
        stop: &mut Stop,
    ) -> Result<(), Error> {
        // The idle time counts from the first envelope on.
        let mut idle: Option<Instant> = None;
        while !self.is_complete() {
            tokio::select! {
                biased;
                () = stop.requested() => break,
                () = at(self.deadline) => break,
                batch = batches.recv() => match batch {
                    Some(batch) => self.take(&batch?)?,
                    None => break,
                },
                () = at(idle) => break,
            }
            idle = self
                .idle_timeout
                .filter(|_| self.messages > 0)
                .map(|idle| Instant::now() + idle);
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        let reached = |limit: Option<u64>, value| limit.is_some_and(|limit| value >= limit);
        let different = self.tracker.as_ref().map_or(0, Tracker::received);
        reached(self.count, self.received) || reached(self.expect, different)
    }

    fn take(&mut self, batch: &v2::EnvelopeBatch) -> Result<(), Error> {
        self.messages += 1;
        for envelope in &batch.batch {
            if self.is_complete() {
                break;
            }
            self.received += 1;
            if let (Some(tracker), Some(number)) = (&mut self.tracker, Number::of(envelope)) {
                tracker.record(number);
            }
            if let Some(output) = &mut self.output {
                let written = if self.json {
                    writeln!(output, "{}", show::json(envelope))
                } else {
                    writeln!(output, "{}", Line(envelope))
                };
                written.map_err(unwritten)?;
            }
        }
        // A line is worth seeing when it comes, not when the next one does.
        self.output
            .as_mut()
            .map_or(Ok(()), Write::flush)
            .map_err(unwritten)
    }

    fn summary(&mut self) -> Result<(), Error> {
        let Self {
            received, messages, ..
        } = *self;
        let mut object = serde_json::json!({ "received": received, "messages": messages });
        let mut text = format!("received {received} envelopes in {messages} messages");
        if let Some(tracker) = &self.tracker {
            let different = tracker.received();
            let lost = match self.expect {
                Some(expect) => expect.saturating_sub(different),
                None => tracker.missing(),
            };
            let (duplicated, out_of_order) = (tracker.duplicated(), tracker.out_of_order());
            text.push_str(&format!(
                "; {different} different numbers, {lost} lost, {duplicated} duplicated, \
                 {out_of_order} out of order"
            ));
            object = serde_json::json!({
                "received": different,
                "messages": messages,
                "lost": lost,
                "duplicated": duplicated,
                "out_of_order": out_of_order,
            });
        }
        eprintln!("lgr: {text}");
        if self.json_summary {
            super::print(&object)
        } else {
            Ok(())
        }
    }
}

fn unwritten(source: io::Error) -> Error {
    Error::Standard {
        stream: "output",
        source,
    }
}

/// Returns at an instant; never without one.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
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
        let words = std::iter::once("tail").chain(line.split_whitespace());
        CommandLine::try_parse_from(words).map(|line| line.arguments)
    }

    fn selectors(line: &str) -> Vec<v2::Selector> {
        parse(line).unwrap().selection.selectors()
    }

    fn selector(source_id: &str, kind: Kind) -> v2::Selector {
        v2::Selector {
            source_id: source_id.to_owned(),
            message: Some(kind),
        }
    }

    fn counter(name: &str) -> Kind {
        Kind::Counter(v2::CounterSelector {
            name: name.to_owned(),
        })
    }

    fn gauge(names: &[&str]) -> Kind {
        Kind::Gauge(v2::GaugeSelector {
            names: names.iter().map(|&name| name.to_owned()).collect(),
        })
    }

    #[test]
    fn everything_by_default() {
        assert_eq!(selectors(""), every_kind(""));
        assert_eq!(selectors("--source-id a"), every_kind("a"));
    }

    #[test]
    fn names_are_optional() {
        assert_eq!(
            selectors("--counter --gauge --log"),
            [
                selector("", Kind::Log(v2::LogSelector {})),
                selector("", counter("")),
                selector("", gauge(&[]))
            ]
        );
        assert_eq!(
            selectors("--counter a --counter b --gauge cpu,memory --gauge disk"),
            [
                selector("", counter("a")),
                selector("", counter("b")),
                selector("", gauge(&["cpu", "memory"])),
                selector("", gauge(&["disk"]))
            ]
        );
    }

    #[test]
    fn each_source_with_each_kind() {
        assert_eq!(
            selectors("--source-id a --source-id b --timer --event"),
            [
                selector("a", Kind::Timer(v2::TimerSelector {})),
                selector("a", Kind::Event(v2::EventSelector {})),
                selector("b", Kind::Timer(v2::TimerSelector {})),
                selector("b", Kind::Event(v2::EventSelector {})),
            ]
        );
    }

    #[test]
    fn arguments_that_make_no_sense() {
        for line in [
            "--expect 5",
            "--count x",
            "--timeout soon",
            "--counter a b",
            "stray",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("--deterministic-name n").is_err());
        assert!(parse("--deterministic-name n --shard-id s").is_ok());
    }
}
