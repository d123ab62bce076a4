//! The phases of a load run, and the threads that it runs on.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lgr::Error;
use lgr::client::{Client, Credentials, Options};
use lgr::numbered::Number;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{sleep, sleep_until};

use super::ledger::{Books, Ledger};
use super::plan::{Group, Mix, Numbering, Reading};
use super::process::Usage;
use super::producer::{self, Draws, Orders, Pace, Press, Print};
use super::report::{GroupReport, LedgerReport, ProcessReport, Report, grouped};
use super::subscriber::{self, GroupState, Window, histogram, lock};
use super::template::{Api, Template};
use crate::stop::Stop;

/// Everything that a run is told.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) addr: String,
    pub(crate) credentials: Credentials,
    pub(crate) options: Options,
    /// The API that producers speak.
    pub(crate) api: Api,
    pub(crate) producers: u32,
    /// Connections of the producers.
    pub(crate) connections: u32,
    pub(crate) rate: Option<f64>,
    /// Time from one burst to the next; `None` sends evenly.
    pub(crate) burst: Option<Duration>,
    pub(crate) batch: u32,
    pub(crate) payload: usize,
    pub(crate) sources: u32,
    pub(crate) skew: f64,
    pub(crate) mix: Mix,
    pub(crate) groups: Vec<Group>,
    /// Connections of the subscribers that read at once; the others have one each.
    pub(crate) subscriber_connections: u32,
    pub(crate) churn: Option<f64>,
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    pub(crate) count: Option<u64>,
    pub(crate) drain: Duration,
    pub(crate) producer_threads: u32,
    pub(crate) subscriber_threads: u32,
    pub(crate) pid: Option<u32>,
    pub(crate) quiet: bool,
}

/// Handshakes in progress per thread: a router with two cores can't do a thousand within the time
/// that connecting may take.
const CONNECTING: usize = 16;

/// Nothing new for so long means that nothing more comes, ...
const QUIET: Duration = Duration::from_secs(1);

/// ... or only so long if everything is there, since a duplicate would follow at once.
const LAST_DUPLICATE: Duration = Duration::from_millis(200);

/// What the threads tell the controller.
#[derive(Debug)]
enum Event {
    /// One more subscription stands, or one more producer is connected.
    Ready,
    /// A producer has sent everything and has the router's answer.
    Finished,
    Failed(Error),
}

/// What all threads share.
#[derive(Clone, Debug)]
struct Shared {
    plan: Arc<Plan>,
    events: mpsc::UnboundedSender<Event>,
    /// When producers begin, once that is known.
    start: watch::Receiver<Option<Instant>>,
    stop: Arc<AtomicBool>,
    window: Arc<Window>,
    churned: Arc<AtomicU64>,
}

impl Shared {
    fn tell(&self, event: Event) {
        // When the controller is gone nobody cares any more.
        let _ = self.events.send(event);
    }
}

/// A thread that connects, and serves streams over its connections until it is dropped.
#[derive(Debug)]
struct Worker {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The streams over one connection.
#[derive(Debug, Default)]
struct Connection(Vec<Stream>);

#[derive(Debug)]
enum Stream {
    Producer {
        press: Arc<Mutex<Press>>,
        index: u32,
    },
    Subscriber {
        state: Arc<GroupState>,
        index: usize,
    },
    Churn {
        rate: f64,
    },
}

impl Worker {
    fn start(name: &str, connections: Vec<Connection>, shared: Shared) -> Result<Self, Error> {
        let failed = |source| Error::Runtime { source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let (end, ended) = oneshot::channel();
        let body = move || {
            runtime.block_on(async {
                let connecting = Arc::new(Semaphore::new(CONNECTING));
                for connection in connections {
                    tokio::spawn(connection.serve(shared.clone(), Arc::clone(&connecting)));
                }
                let _ = ended.await;
            });
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(failed)?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Connection {
    async fn serve(self, shared: Shared, connecting: Arc<Semaphore>) {
        let Plan {
            addr,
            credentials,
            options,
            sources,
            ..
        } = &*shared.plan;
        let connected = {
            let _permit = connecting.acquire().await;
            Client::connect(addr, credentials, options).await
        };
        let client = match connected {
            Ok(client) => client,
            Err(error) => return shared.tell(Event::Failed(error)),
        };
        for stream in self.0 {
            let (client, shared) = (client.clone(), shared.clone());
            match stream {
                Stream::Producer { press, index } => {
                    tokio::spawn(produce(client, press, index, shared));
                }
                Stream::Subscriber { state, index } => {
                    tokio::spawn(async move {
                        let window = Arc::clone(&shared.window);
                        let ready = || shared.tell(Event::Ready);
                        let followed =
                            subscriber::follow(state, index, client, window, ready).await;
                        if let Err(error) = followed {
                            shared.tell(Event::Failed(error));
                        }
                    });
                }
                Stream::Churn { rate } => {
                    let (sources, done) = (*sources, Arc::clone(&shared.churned));
                    shared.tell(Event::Ready);
                    let failed = move |error| shared.tell(Event::Failed(error));
                    tokio::spawn(subscriber::churn(client, rate, sources, done, failed));
                }
            }
        }
    }
}

async fn produce(client: Client, press: Arc<Mutex<Press>>, index: u32, mut shared: Shared) {
    shared.tell(Event::Ready);
    let start = match shared.start.wait_for(Option::is_some).await {
        Ok(start) => start.unwrap_or_else(Instant::now),
        Err(_) => return,
    };
    let plan = &shared.plan;
    let interval = plan.rate.map(|rate| {
        Duration::from_secs_f64(f64::from(plan.batch) * f64::from(plan.producers) / rate)
    });
    let pace = Pace {
        batch: plan.batch,
        interval,
        burst: plan.burst,
        // Producers take turns rather than all send at the same moment.
        start: start + interval.unwrap_or_default() * index / plan.producers,
        count: plan.count.map(|count| {
            let (producers, index) = (u64::from(plan.producers), u64::from(index));
            count / producers + u64::from(index < count % producers)
        }),
    };
    let orders = match Orders::new(pace, Arc::clone(&shared.stop)) {
        Ok(orders) => orders,
        Err(source) => return shared.tell(Event::Failed(Error::Runtime { source })),
    };
    let answer = match plan.api {
        Api::V1 => client.pusher_from(orders, Print(press)).await,
        Api::V2 => client.batch_sender_from(orders, Print(press)).await,
    };
    match answer {
        Ok(_) => shared.tell(Event::Finished),
        Err(error) => shared.tell(Event::Failed(error)),
    }
}

/// Runs the plan. The report is there even if an error or the user ended the run early; it is
/// missing only if nothing was sent.
pub(crate) async fn run(plan: Plan, stop: &mut Stop) -> (Option<Report>, Result<(), Error>) {
    match Run::set_up(plan) {
        Ok(mut run) => run.through(stop).await,
        Err(error) => (None, Err(error)),
    }
}

/// Why a phase is over.
#[derive(Debug)]
enum Over {
    /// What it waited for has come.
    Done,
    Interrupted,
    Failed(Error),
}

struct Run {
    plan: Arc<Plan>,
    shared: Shared,
    start: watch::Sender<Option<Instant>>,
    events: mpsc::UnboundedReceiver<Event>,
    presses: Vec<Arc<Mutex<Press>>>,
    groups: Vec<Arc<GroupState>>,
    finished: u32,
    // Last, so that the threads end before anything of theirs is dropped.
    workers: Vec<Worker>,
}

/// Totals at one moment.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    at: Instant,
    sent: u64,
    received: u64,
    router: Option<Usage>,
    tool: Option<Usage>,
}

impl Run {
    fn set_up(plan: Plan) -> Result<Self, Error> {
        let plan = Arc::new(plan);
        check(&plan)?;
        let numbering = Numbering::new(plan.producers, &plan.mix, plan.sources, &plan.groups);
        let run = Number::random_run();
        let books = Books {
            run,
            numbering,
            mix: Arc::new(plan.mix.clone()),
        };
        if u32::try_from(numbering.series()).is_err() {
            return Err(Error::Argument {
                argument: "--producers, --kinds and --sources".to_owned(),
                reason:
                    "their product must be below 2^32, since somebody selects by source or kind"
                        .to_owned(),
            });
        }
        let draws = Arc::new(Draws::new(&plan.mix, plan.sources, plan.skew));
        let templates: Vec<_> = plan
            .mix
            .0
            .iter()
            .map(|&(kind, _)| Template::new(plan.api, kind, plan.payload, run))
            .collect();
        let presses = (0..plan.producers)
            .map(|producer| Press::new(producer, &templates, &draws, numbering))
            .collect();
        let groups = plan
            .groups
            .iter()
            .map(|group| GroupState::new(group, plan.sources, plan.api, &books))
            .collect();

        let (sender, events) = mpsc::unbounded_channel();
        let (start, started) = watch::channel(None);
        let shared = Shared {
            plan: Arc::clone(&plan),
            events: sender,
            start: started,
            stop: Arc::default(),
            window: Arc::default(),
            churned: Arc::default(),
        };
        Ok(Self {
            plan,
            shared,
            start,
            events,
            presses,
            groups,
            finished: 0,
            workers: Vec::new(),
        })
    }

    async fn through(&mut self, stop: &mut Stop) -> (Option<Report>, Result<(), Error>) {
        if let Some(pid) = self.plan.pid
            && let Err(error) = Usage::read(pid)
        {
            let reason = format!("cannot read the counters of this process: {error}");
            return (
                None,
                Err(Error::Argument {
                    argument: format!("--pid {pid}"),
                    reason,
                }),
            );
        }
        match self.connect(stop).await {
            Ok(Over::Done) => {}
            Ok(Over::Interrupted) => return (None, Ok(())),
            Ok(Over::Failed(error)) | Err(error) => return (None, Err(error)),
        }

        let mut before = self.snapshot();
        let warm = before.at + self.plan.warm_up;
        if self.plan.warm_up.is_zero() {
            self.shared.window.begin();
        }
        self.start.send_replace(Some(before.at));
        let mut over = self
            .wait(Some(warm), stop, "warming up", Self::all_finished)
            .await;
        // What ends during the warm-up is reported as a whole.
        if matches!(over, Over::Done) && !self.all_finished() {
            before = self.snapshot();
            self.shared.window.begin();
            let end = Some(before.at + self.plan.duration);
            over = self.wait(end, stop, "measuring", Self::all_finished).await;
        }
        let after = self.snapshot();
        self.shared.window.end();
        self.shared.stop.store(true, Relaxed);

        let interrupted = matches!(over, Over::Interrupted);
        if !matches!(over, Over::Failed(_)) {
            // A second interruption ends the waiting.
            over = self.finish(stop).await;
        }
        if matches!(over, Over::Done) {
            over = self.drain(stop).await;
        }
        let report = self.report(before, after, interrupted);
        let result = match over {
            Over::Failed(error) => Err(error),
            Over::Done | Over::Interrupted => Ok(()),
        };
        (Some(report), result)
    }

    /// All subscriptions stand before the first producer connects.
    async fn connect(&mut self, stop: &mut Stop) -> Result<Over, Error> {
        let plan = Arc::clone(&self.plan);
        let mut shared_ones: Vec<Connection> = Vec::new();
        shared_ones.resize_with(plan.subscriber_connections as usize, Connection::default);
        let mut own = Vec::new();
        let mut subscriptions = 0;
        let mut turn = 0;
        for state in &self.groups {
            for index in 0..state.members.len() {
                let stream = Stream::Subscriber {
                    state: Arc::clone(state),
                    index,
                };
                subscriptions += 1;
                // One that doesn't read holds up everything on its connection.
                if state.group.reading == Reading::AtOnce {
                    shared_ones[turn].0.push(stream);
                    turn = (turn + 1) % shared_ones.len();
                } else {
                    own.push(Connection(vec![stream]));
                }
            }
        }
        shared_ones.retain(|connection| !connection.0.is_empty());
        shared_ones.append(&mut own);
        if let Some(rate) = plan.churn {
            shared_ones.push(Connection(vec![Stream::Churn { rate }]));
            subscriptions += 1;
        }
        self.work("subscribers", shared_ones, plan.subscriber_threads)?;
        let over = self.ready(subscriptions, stop).await;
        if !matches!(over, Over::Done) {
            return Ok(over);
        }

        let mut connections: Vec<Connection> = Vec::new();
        connections.resize_with(plan.connections as usize, Connection::default);
        for (index, press) in (0..).zip(&self.presses) {
            let press = Arc::clone(press);
            connections[(index % plan.connections) as usize]
                .0
                .push(Stream::Producer { press, index });
        }
        self.work("producers", connections, plan.producer_threads)?;
        Ok(self.ready(plan.producers, stop).await)
    }

    /// Deals connections out to threads.
    fn work(
        &mut self,
        name: &str,
        connections: Vec<Connection>,
        threads: u32,
    ) -> Result<(), Error> {
        let mut hands: Vec<Vec<Connection>> = Vec::new();
        hands.resize_with(threads as usize, Vec::new);
        for (position, connection) in connections.into_iter().enumerate() {
            hands[position % threads as usize].push(connection);
        }
        hands.retain(|hand| !hand.is_empty());
        for hand in hands {
            self.workers
                .push(Worker::start(name, hand, self.shared.clone())?);
        }
        Ok(())
    }

    /// Waits for `count` streams to be ready.
    async fn ready(&mut self, count: u32, stop: &mut Stop) -> Over {
        let mut ready = 0;
        while ready < count {
            tokio::select! {
                biased;
                () = stop.requested() => return Over::Interrupted,
                event = self.events.recv() => match event {
                    Some(Event::Failed(error)) => return Over::Failed(error),
                    _ => ready += 1,
                },
            }
        }
        Over::Done
    }

    fn all_finished(&self) -> bool {
        self.finished == self.plan.producers
    }

    /// Waits for an instant, if given, or until `enough`; with a progress line in between.
    async fn wait(
        &mut self,
        until: Option<Instant>,
        stop: &mut Stop,
        phase: &str,
        enough: impl Fn(&Self) -> bool,
    ) -> Over {
        let mut last = self.snapshot();
        let progress = Progress::new(self.plan.quiet);
        while !enough(self) {
            tokio::select! {
                biased;
                () = stop.requested() => return Over::Interrupted,
                () = at(until) => return Over::Done,
                event = self.events.recv() => match event {
                    Some(Event::Failed(error)) => return Over::Failed(error),
                    Some(Event::Finished) => self.finished += 1,
                    Some(Event::Ready) | None => {}
                },
                () = sleep_until((last.at + Duration::from_secs(1)).into()) => {
                    let now = self.totals();
                    progress.show(phase, &last, &now);
                    last = now;
                }
            }
        }
        Over::Done
    }

    /// Producers half-close their streams; the router's answers say that it has read everything.
    async fn finish(&mut self, stop: &mut Stop) -> Over {
        let deadline = Instant::now() + self.plan.options.answer_timeout;
        match self
            .wait(Some(deadline), stop, "stopping", Self::all_finished)
            .await
        {
            Over::Done if !self.all_finished() => Over::Failed(Error::Silent {
                peer: self.plan.addr.clone(),
                call: match self.plan.api {
                    Api::V1 => "DopplerIngestor/Pusher",
                    Api::V2 => "Ingress/BatchSender",
                },
                patience: self.plan.options.answer_timeout,
            }),
            over => over,
        }
    }

    /// Gives those who read at once time to get everything.
    async fn drain(&mut self, stop: &mut Stop) -> Over {
        let sent = self.sent();
        let mut missing: Vec<(Arc<Mutex<Ledger>>, u64)> = self
            .groups
            .iter()
            .filter(|state| state.group.is_prompt())
            .flat_map(|state| state.ledgers())
            .map(|ledger| {
                let expected = lock(&ledger).expected(&sent);
                (ledger, expected)
            })
            .collect();
        let deadline = Instant::now() + self.plan.drain;
        let (mut received, mut quiet_since) = (self.totals().received, Instant::now());
        loop {
            missing.retain(|(ledger, expected)| lock(ledger).received < *expected);
            let now = Instant::now();
            let patience = if missing.is_empty() {
                LAST_DUPLICATE
            } else {
                QUIET
            };
            if now >= deadline || now >= quiet_since + patience {
                return Over::Done;
            }
            tokio::select! {
                biased;
                () = stop.requested() => return Over::Interrupted,
                event = self.events.recv() => if let Some(Event::Failed(error)) = event {
                    return Over::Failed(error);
                },
                () = sleep(Duration::from_millis(20)) => {}
            }
            let total = self.totals().received;
            if total != received {
                (received, quiet_since) = (total, Instant::now());
            }
        }
    }

    /// How many envelopes of each series were sent.
    fn sent(&self) -> Vec<u64> {
        let sequences = self
            .presses
            .iter()
            .flat_map(|press| producer::lock(press).sequences.clone());
        sequences.collect()
    }

    fn totals(&self) -> Snapshot {
        Snapshot {
            at: Instant::now(),
            sent: self
                .presses
                .iter()
                .map(|press| producer::lock(press).envelopes)
                .sum(),
            received: self.groups.iter().map(|state| state.envelopes()).sum(),
            router: None,
            tool: None,
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            router: self.plan.pid.and_then(|pid| Usage::read(pid).ok()),
            tool: Usage::read(std::process::id()).ok(),
            ..self.totals()
        }
    }

    fn report(&self, before: Snapshot, after: Snapshot, interrupted: bool) -> Report {
        let sent = self.sent();
        let mut latency = histogram();
        let groups = self.groups.iter().map(|state| {
            let ledgers = state.ledgers();
            let of_group = lock(&state.latency).clone();
            if state.group.is_prompt() {
                // The bounds are the same, so this can't fail.
                let _ = latency.add(&of_group);
            }
            GroupReport {
                text: state.group.text.clone(),
                subscribers: state.group.count,
                prompt: state.group.is_prompt(),
                messages: state
                    .members
                    .iter()
                    .map(|member| member.messages.load(Relaxed))
                    .sum(),
                ledgers: ledgers
                    .iter()
                    .map(|ledger| account(&lock(ledger), &sent, &state.group))
                    .collect(),
                latency: of_group,
            }
        });
        let groups = groups.collect();
        let process = |pid: Option<u32>, before: Option<Usage>, after: Option<Usage>| {
            Some(ProcessReport {
                pid: pid?,
                before: before?,
                after: after?,
            })
        };
        Report {
            window: after.at - before.at,
            sent: after.sent - before.sent,
            received: after.received - before.received,
            sent_total: sent.iter().sum(),
            messages_total: self
                .presses
                .iter()
                .map(|press| producer::lock(press).messages)
                .sum(),
            rate: self.plan.rate,
            groups,
            latency,
            churned: self.plan.churn.map(|_| self.shared.churned.load(Relaxed)),
            router: process(self.plan.pid, before.router, after.router),
            tool: process(Some(std::process::id()), before.tool, after.tool),
            interrupted,
        }
    }
}

/// Only what has exactly one form in both APIs can be counted across them.
fn check(plan: &Plan) -> Result<(), Error> {
    let translated = plan.api == Api::V1 || plan.groups.iter().any(|group| group.api() == Api::V1);
    if !translated {
        return Ok(());
    }
    match plan
        .mix
        .0
        .iter()
        .find(|&&(kind, _)| !plan.api.translates(kind))
    {
        None => Ok(()),
        Some((kind, _)) => {
            let kinds = match plan.api {
                Api::V1 => "producers of v1 make log, counter and gauge only",
                Api::V2 => "between v2 and v1, log and counter only have one form in each",
            };
            let (argument, reason) = (format!("--kinds {}", kind.name()), kinds.to_owned());
            Err(Error::Argument { argument, reason })
        }
    }
}

fn account(ledger: &Ledger, sent: &[u64], group: &Group) -> LedgerReport {
    LedgerReport {
        expected: ledger.expected(sent),
        received: ledger.received,
        duplicated: ledger.duplicated,
        out_of_order: group.shard.is_none().then_some(ledger.out_of_order),
        unexpected: ledger.unexpected,
        foreign: ledger.foreign,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant.into()).await,
        None => std::future::pending().await,
    }
}

/// A line about the last second on standard error; on a terminal, always the same line.
#[derive(Debug)]
struct Progress {
    quiet: bool,
    terminal: bool,
}

impl Progress {
    fn new(quiet: bool) -> Self {
        Self {
            quiet,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn show(&self, phase: &str, last: &Snapshot, now: &Snapshot) {
        if self.quiet {
            return;
        }
        let seconds = (now.at - last.at).as_secs_f64().max(1e-9);
        let rate = |last: u64, now: u64| grouped(((now - last) as f64 / seconds) as u64);
        let (sent, received) = (rate(last.sent, now.sent), rate(last.received, now.received));
        let mut stderr = std::io::stderr().lock();
        let line = format!("lgr: {phase}: sent {sent}/s, received {received}/s");
        let _ = if self.terminal {
            write!(stderr, "\r{line}\x1b[K")
        } else {
            writeln!(stderr, "{line}")
        };
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal && !self.quiet {
            eprint!("\r\x1b[K");
        }
    }
}
