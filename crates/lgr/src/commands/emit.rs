//! `lgr emit`: envelopes from lines or out of thin air.
//!
//! A [`Producer`] makes one envelope after the other, no sooner than the rate allows. The loop in
//! [`send`] gathers them into batches as an agent does: a batch goes when it is full, or when its
//! first envelope has waited for a while.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal};
use std::num::NonZeroUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lgr::Error;
use lgr::client::{BatchSender, Client, Sender};
use lgr::numbered::{Number, TAG};
use loggregator::v2::{self, envelope::Message};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::arguments::{Connection, duration, rate, tag};
use crate::stop::Stop;

/// Send envelopes: lines of standard input, or generated ones
///
/// Without --kind every line of standard input becomes a log envelope. With --kind, envelopes of
/// the named kinds are generated, until --count is reached or ctrl-c is pressed.
///
/// Examples:
///
///   my-app 2>&1 | lgr emit --source-id my-app
///   lgr emit --kind counter,gauge --name requests --rate 10
///   lgr emit --kind all --sources 100 --count 100000
#[derive(Clone, Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    /// Generate envelopes of this kind; several by commas, in turn
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    kind: Vec<KindArgument>,
    /// Stop after so many envelopes
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Envelopes per second, also like 50k; as fast as it goes if left out
    #[arg(long, value_name = "R", value_parser = rate)]
    rate: Option<f64>,
    /// Source id; repeat it for several in turn
    #[arg(long, value_name = "ID", default_value = "lgr")]
    source_id: Vec<String>,
    /// Make so many source ids of each, by appending -0, -1, ...
    #[arg(long, value_name = "N")]
    sources: Option<NonZeroUsize>,
    /// Instance id
    #[arg(long, value_name = "ID", default_value = "0")]
    instance_id: String,
    /// A tag for every envelope; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = tag)]
    tag: Vec<(String, String)>,
    /// Name of counters, timers and events; repeat it for gauges with several metrics
    #[arg(long, value_name = "NAME", default_value = "lgr")]
    name: Vec<String>,
    /// Payload size of generated logs, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 128)]
    payload: usize,
    /// Logs are of type ERR instead of OUT
    #[arg(long)]
    err: bool,
    /// Number the envelopes in a tag, for `lgr tail --numbered`
    #[arg(long)]
    numbered: bool,
    /// Envelopes per message, at most
    #[arg(long, value_name = "N", default_value = "100")]
    batch: NonZeroUsize,
    /// How long an envelope may wait for its message to fill up
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    linger: Duration,
    /// Which call to use
    #[arg(long, value_enum, value_name = "CALL", default_value_t = Call::BatchSender)]
    call: Call,
    /// At the end, print one line of JSON: {"sent":N,"messages":N}
    #[arg(long)]
    json_summary: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KindArgument {
    Log,
    Counter,
    Gauge,
    Timer,
    Event,
    /// All five
    All,
}

impl KindArgument {
    const SINGLE: [Self; 5] = [
        Self::Log,
        Self::Counter,
        Self::Gauge,
        Self::Timer,
        Self::Event,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Call {
    /// One stream of batches
    BatchSender,
    /// One stream of single envelopes
    Sender,
    /// A call for each batch
    Send,
}

pub(crate) async fn run(arguments: Arguments, mut stop: Stop) -> Result<(), Error> {
    let clients = tokio::select! {
        clients = arguments.connection.connect() => clients?,
        () = stop.requested() => return Ok(()),
    };
    if arguments.kind.is_empty() && io::stdin().is_terminal() {
        eprintln!("lgr: every line that you type becomes a log envelope; ctrl-d ends it");
    }
    let mut outlets: Vec<Outlet> = clients
        .into_iter()
        .map(|client| Outlet::open(client, arguments.call))
        .collect();
    let mut producer = Producer::new(&arguments);

    let mut sent = Sent::default();
    let mut result = send(
        &arguments,
        &mut producer,
        &mut outlets,
        &mut stop,
        &mut sent,
    )
    .await;
    for outlet in outlets {
        let finished = outlet.finish().await;
        result = result.and(finished);
    }
    let Sent {
        envelopes,
        messages,
    } = sent;
    let peers = arguments.connection.addr.join(", ");
    eprintln!("lgr: sent {envelopes} envelopes in {messages} messages to {peers}");
    if arguments.json_summary {
        super::print(&serde_json::json!({ "sent": envelopes, "messages": messages }))?;
    }
    result
}

/// How long a router that takes nothing is given once we want to stop.
const LAST_CALL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    envelopes: u64,
    messages: u64,
}

/// Gathers and sends until the producer has no more or a stop is requested; routers take turns.
async fn send(
    arguments: &Arguments,
    producer: &mut Producer,
    outlets: &mut [Outlet],
    stop: &mut Stop,
    sent: &mut Sent,
) -> Result<(), Error> {
    let mut batch = Vec::new();
    let mut due = Instant::now();
    let mut turn = 0;
    let (mut more, mut stopped) = (true, false);
    while more {
        let mut flush = false;
        tokio::select! {
            biased;
            () = stop.requested() => (more, stopped) = (false, true),
            () = sleep_until(due), if !batch.is_empty() => flush = true,
            envelope = producer.next() => match envelope? {
                Some(envelope) => {
                    if batch.is_empty() {
                        due = Instant::now() + arguments.linger;
                    }
                    batch.push(envelope);
                }
                None => more = false,
            },
        }
        if batch.len() == arguments.batch.get() || (!batch.is_empty() && (flush || !more)) {
            let count = batch.len() as u64;
            let outlet = &mut outlets[turn];
            turn = (turn + 1) % arguments.connection.addr.len();
            // A router that takes nothing must not keep us from stopping.
            let messages = tokio::select! {
                messages = outlet.send(std::mem::take(&mut batch)) => messages?,
                () = stop.requested() => break,
                () = sleep(LAST_CALL), if stopped => break,
            };
            sent.envelopes += count;
            sent.messages += messages;
        }
    }
    Ok(())
}

/// The way to one router.
enum Outlet {
    BatchSender(BatchSender),
    Sender(Sender),
    Send(Client),
}

impl Outlet {
    fn open(client: Client, call: Call) -> Self {
        match call {
            Call::BatchSender => Self::BatchSender(client.batch_sender()),
            Call::Sender => Self::Sender(client.sender()),
            Call::Send => Self::Send(client),
        }
    }

    /// Sends a batch; returns how many messages that took.
    async fn send(&mut self, batch: Vec<v2::Envelope>) -> Result<u64, Error> {
        match self {
            Self::BatchSender(stream) => stream.send(&v2::EnvelopeBatch { batch }).await?,
            Self::Sender(stream) => {
                for envelope in &batch {
                    stream.send(envelope).await?;
                }
                return Ok(batch.len() as u64);
            }
            Self::Send(client) => client.send(&v2::EnvelopeBatch { batch }).await?,
        }
        Ok(1)
    }

    /// Waits until the router has read everything.
    async fn finish(self) -> Result<(), Error> {
        match self {
            Self::BatchSender(stream) => stream.finish().await.map(drop),
            Self::Sender(stream) => stream.finish().await.map(drop),
            Self::Send(_) => Ok(()),
        }
    }
}

/// Makes envelopes.
struct Producer {
    /// Lines of standard input; `None` to generate envelopes.
    lines: Option<mpsc::Receiver<io::Result<Vec<u8>>>>,
    kinds: Vec<KindArgument>,
    sources: Vec<String>,
    template: v2::Envelope,
    names: Vec<String>,
    payload: usize,
    log_type: v2::log::Type,
    /// The run of numbered envelopes.
    run: Option<u32>,
    made: u64,
    count: u64,
    start: Instant,
    rate: Option<f64>,
}

impl Producer {
    fn new(arguments: &Arguments) -> Self {
        let mut kinds = Vec::new();
        for kind in &arguments.kind {
            match kind {
                KindArgument::All => kinds.extend(KindArgument::SINGLE),
                kind => kinds.push(*kind),
            }
        }
        let sources = arguments
            .source_id
            .iter()
            .flat_map(|id| match arguments.sources {
                Some(sources) => (0..sources.get())
                    .map(|index| format!("{id}-{index}"))
                    .collect(),
                None => vec![id.clone()],
            });
        Self {
            lines: kinds.is_empty().then(read_lines),
            kinds,
            sources: sources.collect(),
            template: v2::Envelope {
                instance_id: arguments.instance_id.clone(),
                tags: arguments.tag.iter().cloned().collect(),
                ..v2::Envelope::default()
            },
            names: arguments.name.clone(),
            payload: arguments.payload,
            log_type: if arguments.err {
                v2::log::Type::Err
            } else {
                v2::log::Type::Out
            },
            run: arguments.numbered.then(Number::random_run),
            made: 0,
            count: arguments.count.unwrap_or(u64::MAX),
            start: Instant::now(),
            rate: arguments.rate,
        }
    }

    /// The next envelope, when it is time for it. Cancel safe: what is cancelled was not made.
    async fn next(&mut self) -> Result<Option<v2::Envelope>, Error> {
        if self.made == self.count {
            return Ok(None);
        }
        if let Some(rate) = self.rate {
            sleep_until(self.start + Duration::from_secs_f64(self.made as f64 / rate)).await;
        }
        let line = match &mut self.lines {
            None => None,
            Some(lines) => match lines.recv().await {
                None => return Ok(None),
                Some(Ok(line)) => Some(line),
                Some(Err(source)) => {
                    return Err(Error::Standard {
                        stream: "input",
                        source,
                    });
                }
            },
        };
        let envelope = self.make(line, now());
        self.made += 1;
        Ok(Some(envelope))
    }

    /// Sources take turns, and when all have had theirs, kinds do.
    fn make(&self, line: Option<Vec<u8>>, timestamp: i64) -> v2::Envelope {
        let sources = self.sources.len() as u64;
        let (round, source) = (self.made / sources, self.made % sources);
        let message = match line {
            Some(payload) => self.log(payload),
            None => self.generate(
                self.kinds[round as usize % self.kinds.len()],
                round,
                timestamp,
            ),
        };
        let mut envelope = v2::Envelope {
            timestamp,
            source_id: self.sources[source as usize].clone(),
            message: Some(message),
            ..self.template.clone()
        };
        if let Some(run) = self.run {
            let number = Number {
                run,
                series: source as u32,
                sequence: round,
            };
            envelope.tags.insert(TAG.to_owned(), number.to_string());
        }
        envelope
    }

    fn log(&self, payload: Vec<u8>) -> Message {
        Message::Log(v2::Log {
            payload,
            r#type: self.log_type.into(),
        })
    }

    fn generate(&self, kind: KindArgument, round: u64, timestamp: i64) -> Message {
        let name = || self.names[0].clone();
        match kind {
            KindArgument::Counter => Message::Counter(v2::Counter {
                name: name(),
                delta: 1,
                total: round + 1,
            }),
            KindArgument::Gauge => {
                let metrics = self.names.iter().enumerate().map(|(index, name)| {
                    let value = ((round + index as u64) % 100) as f64;
                    (
                        name.clone(),
                        v2::GaugeValue {
                            unit: "percentage".to_owned(),
                            value,
                        },
                    )
                });
                Message::Gauge(v2::Gauge {
                    metrics: metrics.collect::<BTreeMap<_, _>>(),
                })
            }
            KindArgument::Timer => {
                let took = 1_000_000 * (1 + round % 100) as i64;
                Message::Timer(v2::Timer {
                    name: name(),
                    start: timestamp - took,
                    stop: timestamp,
                })
            }
            KindArgument::Event => Message::Event(v2::Event {
                title: name(),
                body: format!("event {round} of lgr"),
            }),
            KindArgument::Log | KindArgument::All => {
                let mut payload = format!("log {round} of lgr ").into_bytes();
                payload.resize(self.payload, b'.');
                self.log(payload)
            }
        }
    }
}

fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Reads standard input on a thread of its own, which nobody waits for: it may sit in a read that
/// never returns.
fn read_lines() -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (lines, receiver) = mpsc::channel(1000);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        loop {
            let mut line = Vec::new();
            let item = match input.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => {
                    line.pop_if(|last| *last == b'\n');
                    Ok(line)
                }
                Err(error) => Err(error),
            };
            let failed = item.is_err();
            if lines.blocking_send(item).is_err() || failed {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("emit").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.arguments)
    }

    fn make(line: &str, count: u64) -> Vec<v2::Envelope> {
        let mut producer = Producer::new(&parse(line).unwrap());
        let mut envelopes = Vec::new();
        while producer.made < count {
            envelopes.push(producer.make(None, 1_000_000_000));
            producer.made += 1;
        }
        envelopes
    }

    #[test]
    fn sources_take_turns_then_kinds() {
        let envelopes = make(
            "--kind log,counter --source-id a --source-id b --sources 2",
            8,
        );
        let sources: Vec<_> = envelopes
            .iter()
            .map(|envelope| &envelope.source_id)
            .collect();
        assert_eq!(
            sources,
            ["a-0", "a-1", "b-0", "b-1", "a-0", "a-1", "b-0", "b-1"]
        );
        for (position, envelope) in envelopes.iter().enumerate() {
            let is_log = matches!(envelope.message, Some(Message::Log(_)));
            assert_eq!(is_log, position < 4, "{position}");
        }
    }

    #[test]
    fn each_source_is_a_series() {
        let envelopes = make("--kind all --sources 3 --numbered", 30);
        let numbers: Vec<_> = envelopes
            .iter()
            .map(|envelope| Number::of(envelope).unwrap())
            .collect();
        for (position, number) in (0_u64..).zip(&numbers) {
            assert_eq!(
                (u64::from(number.series), number.sequence),
                (position % 3, position / 3)
            );
            assert_eq!(number.run, numbers[0].run);
        }
    }

    #[test]
    fn what_was_asked_for_is_in_the_envelope() {
        let line = "--kind log --payload 10 --err --instance-id 3 --tag a=b --tag c=d";
        let envelope = make(line, 1).remove(0);
        assert_eq!(envelope.instance_id, "3");
        assert_eq!(
            envelope.tags,
            BTreeMap::from(
                [("a", "b"), ("c", "d")]
                    .map(|(name, value)| { (name.to_owned(), value.to_owned()) })
            )
        );
        let Some(Message::Log(log)) = envelope.message else {
            panic!("no log")
        };
        assert_eq!((log.payload.len(), log.r#type()), (10, v2::log::Type::Err));

        let envelope = make("--kind gauge --name cpu --name memory", 1).remove(0);
        let Some(Message::Gauge(gauge)) = envelope.message else {
            panic!("no gauge")
        };
        assert_eq!(gauge.metrics.keys().collect::<Vec<_>>(), ["cpu", "memory"]);
    }

    #[test]
    fn arguments_that_make_no_sense() {
        for line in [
            "--kind logs",
            "--rate 0",
            "--rate fast",
            "--batch 0",
            "--sources 0",
            "--tag novalue",
            "--count -1",
            "--cert a.crt",
            "--cert a.crt --key a.key --ca ca.crt --certs certs",
            "--call push",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
