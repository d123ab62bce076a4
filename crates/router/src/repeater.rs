//! The repeater: the single reader of the ingress ring.
//!
//! It takes what is there and hands it on, to the tree directly or to the fan-out stage. One loop
//! with two drivers: a task, which spares a wake-up across threads for every message, or a thread
//! of its own.

use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::Poll,
    thread::{self, JoinHandle},
};

use diode::weighted;
use fanout::FanoutWriter;

use crate::{
    Error, FanOut, Ordering,
    item::Item,
    pipeline::Core,
    publish::{Lane, Publish},
};

/// Envelopes taken in one turn: enough to spread the cost of taking, few enough that others on the
/// same thread get theirs.
const TURN: usize = 1_000;

/// Turns without a pause for the other tasks of the thread.
const TURNS_AT_ONCE: u32 = 8;

/// Moves runs from the ingress ring to the subscribers until the router has stopped and everything
/// accepted is published.
///
/// # Examples
///
/// See the [crate's documentation](crate).
pub struct Repeater {
    reader: weighted::Reader<Item>,
    turn: Vec<Item>,
    stage: Stage,
    core: Arc<Core>,
}

/// A repeater that runs on a thread of its own.
///
/// # Examples
///
/// ```
/// let (router, repeater) = router::Router::new(Default::default())?;
/// let repeater = repeater.spawn_thread()?;
/// router.stop();
/// repeater.join();
/// # Ok::<(), router::Error>(())
/// ```
#[derive(Debug)]
pub struct RepeaterThread(JoinHandle<()>);

/// What a run is handed on to.
enum Stage {
    Direct(Box<Publish>),
    FanOut(Arc<FanoutWriter<Item>>),
    Lanes(Arc<FanoutWriter<(Lane, Item)>>, u64),
}

impl Repeater {
    pub(crate) fn new(
        reader: weighted::Reader<Item>,
        core: Arc<Core>,
        fanout: Option<FanOut>,
    ) -> Result<Self, Error> {
        let new_publish = {
            let core = core.clone();
            move || Publish::new(core.clone())
        };
        let stage = match fanout {
            None => Stage::Direct(Box::new(new_publish())),
            Some(options) if options.ordering == Ordering::None => {
                let writer = FanoutWriter::new(options.workers.get(), move |_worker| {
                    let mut publish = new_publish();
                    move |mut item: Item| publish.item(&mut item, None)
                })?;
                Stage::FanOut(Arc::new(writer.with_caller_runs(options.caller_runs)))
            }
            Some(options) => {
                let writer = FanoutWriter::new(options.workers.get(), move |_worker| {
                    let mut publish = new_publish();
                    move |(lane, mut item): (Lane, Item)| publish.item(&mut item, Some(lane))
                })?
                .with_lanes(|(lane, _): &(Lane, Item)| lane.index())
                .with_caller_runs(options.caller_runs);
                Stage::Lanes(Arc::new(writer), options.workers.get() as u64)
            }
        };
        match &stage {
            Stage::Direct(_) => {}
            Stage::FanOut(writer) => {
                core.watch_stage(writer);
                writer.start()?;
            }
            Stage::Lanes(writer, _) => {
                core.watch_stage(writer);
                writer.start()?;
            }
        }
        Ok(Self {
            reader,
            turn: Vec::with_capacity(64),
            stage,
            core,
        })
    }

    /// Drives the repeater as a task, on any runtime, until the router has stopped and everything
    /// accepted is published.
    pub async fn run(mut self) {
        let mut turns = 0;
        loop {
            let Self { reader, turn, .. } = &mut self;
            if poll_fn(|context| reader.poll_take_into(context, turn, TURN)).await == 0 {
                return;
            }
            self.hand_on();
            turns += 1;
            if turns == TURNS_AT_ONCE {
                turns = 0;
                yield_now().await;
            }
        }
    }

    /// Drives the repeater on a thread of its own, called `repeater`.
    ///
    /// # Errors
    ///
    /// The thread can't be started.
    pub fn spawn_thread(self) -> Result<RepeaterThread, Error> {
        thread::Builder::new()
            .name("repeater".to_owned())
            .spawn(move || self.run_here())
            .map(RepeaterThread)
            .map_err(Error::Thread)
    }

    /// Drives the repeater on this thread; returns when the router has stopped and everything
    /// accepted is published.
    pub fn run_here(mut self) {
        while let Some(first) = self.reader.next() {
            let room = TURN.saturating_sub(first.envelopes());
            self.turn.push(first);
            if room > 0 {
                self.reader.take_into(&mut self.turn, room);
            }
            self.hand_on();
        }
    }

    fn hand_on(&mut self) {
        for mut item in self.turn.drain(..) {
            match &mut self.stage {
                Stage::Direct(publish) => publish.item(&mut item, None),
                // Only `drop` stops the stage, so it takes what it is given.
                Stage::FanOut(writer) => drop(writer.write(item)),
                Stage::Lanes(writer, lanes) => {
                    for lane in Lane::of(item.run(), *lanes) {
                        drop(writer.write((lane, item.clone())));
                    }
                }
            }
        }
    }
}

impl Drop for Repeater {
    /// Everything accepted is published, then the subscriptions may end.
    fn drop(&mut self) {
        match &self.stage {
            Stage::Direct(_) => {}
            Stage::FanOut(writer) => writer.stop(),
            Stage::Lanes(writer, _) => writer.stop(),
        }
        self.core.registry.close();
    }
}

impl RepeaterThread {
    /// Waits until the router has stopped and everything accepted is published.
    pub fn join(self) {
        if let Err(panic) = self.0.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

impl fmt::Debug for Repeater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeater").finish_non_exhaustive()
    }
}

/// Lets the other tasks of the thread run, on any runtime.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
