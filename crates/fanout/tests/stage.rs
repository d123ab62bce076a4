//! The life of a stage and what it promises: everything accepted is done before `stop` returns,
//! nothing is accepted afterwards, nothing is done twice, panics are contained, and nobody hangs.
//!
//! Each promise is checked with and without writers doing work themselves, since the item takes
//! different ways.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use fanout::{Error, FanoutWriter, Stats, WriteError};

/// Far beyond what anything here takes: who waits this long hangs.
const HANG: Duration = Duration::from_secs(300);

/// Runs `test` on a thread of its own, so that a hang fails the test instead of stopping it.
fn without_hanging(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    if let Err(RecvTimeoutError::Timeout) = wait.recv_timeout(HANG) {
        panic!("it hangs");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Every way an item can take: workers, lanes or not, writers working or not.
fn every_kind<T: Send + 'static>(
    key: fn(&T) -> u64,
    check: impl Fn(&dyn Fn(FanoutWriter<T>) -> FanoutWriter<T>, usize, &str),
) {
    for workers in [1, 2, 4] {
        for caller_runs in [true, false] {
            for lanes in [false, true] {
                let name = format!("workers {workers}, lanes {lanes}, caller runs {caller_runs}");
                let configure = move |fanout: FanoutWriter<T>| {
                    let fanout = fanout.with_caller_runs(caller_runs);
                    if lanes {
                        fanout.with_lanes(key)
                    } else {
                        fanout
                    }
                };
                check(&configure, workers, &name);
            }
        }
    }
}

/// A place where items arrive.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<u64>>>);

impl Seen {
    fn callback(&self) -> impl FnMut(u64) + Send + use<> {
        let seen = self.0.clone();
        move |item| seen.lock().unwrap().push(item)
    }

    fn factory(&self) -> impl Fn(usize) -> Box<dyn FnMut(u64) + Send> + Send + Sync + use<> {
        let seen = self.clone();
        move |_| Box::new(seen.callback())
    }

    fn sorted(&self) -> Vec<u64> {
        let mut items = self.0.lock().unwrap().clone();
        items.sort_unstable();
        items
    }
}

/// A door that callbacks wait at until it is opened.
#[derive(Clone, Default)]
struct Door(Arc<(Mutex<bool>, Condvar)>);

impl Door {
    fn wait(&self) {
        let open = self.0.0.lock().unwrap();
        let (_open, timeout) = self
            .0
            .1
            .wait_timeout_while(open, HANG, |open| !*open)
            .unwrap();
        assert!(!timeout.timed_out(), "nobody opens the door");
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

fn spin_until(what: &str, condition: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed() < HANG, "never: {what}");
        thread::yield_now();
    }
}

/// Field case F7.
#[test]
fn what_was_accepted_is_done_before_stop_returns() {
    without_hanging(|| {
        every_kind(
            |item: &u64| *item,
            |configure, workers, name| {
                let seen = Seen::default();
                let fanout = FanoutWriter::new(workers, seen.factory())
                    .unwrap()
                    .with_buffer_size(100);
                let fanout = configure(fanout);
                fanout.start().unwrap();
                for item in 0..50 {
                    fanout.write(item).unwrap();
                }
                fanout.stop();
                assert_eq!(seen.sorted(), Vec::from_iter(0..50), "{name}");
                assert_eq!(fanout.stats().queued, 0, "{name}");
            },
        );
    });
}

/// Field case F1.
#[test]
fn nothing_is_lost_and_nothing_is_done_twice() {
    const ITEMS: usize = 2_000_000;
    without_hanging(|| {
        for caller_runs in [true, false] {
            let counts: Arc<[AtomicU64]> = (0..ITEMS).map(|_| AtomicU64::new(0)).collect();
            let fanout = FanoutWriter::new(4, {
                let counts = counts.clone();
                move |_| {
                    let counts = counts.clone();
                    move |item: usize| _ = counts[item].fetch_add(1, SeqCst)
                }
            })
            .unwrap()
            .with_caller_runs(caller_runs)
            .with_buffer_size(if caller_runs { 8 } else { 1000 });
            fanout.start().unwrap();
            thread::scope(|scope| {
                for writer in 0..2 {
                    let fanout = &fanout;
                    scope.spawn(move || {
                        for item in (writer..ITEMS).step_by(2) {
                            fanout.write(item).unwrap();
                        }
                    });
                }
            });
            fanout.stop();
            assert!(counts.iter().all(|count| count.load(SeqCst) == 1));
        }
    });
}

/// Field case F2.
#[test]
fn stop_under_fire() {
    without_hanging(|| {
        let rounds = AtomicUsize::new(0);
        every_kind(
            |item: &u64| *item,
            |configure, workers, name| {
                for round in 0..84 {
                    rounds.fetch_add(1, SeqCst);
                    let seen = Seen::default();
                    let fanout = configure(FanoutWriter::new(workers, seen.factory()).unwrap());
                    fanout.start().unwrap();
                    let go = Barrier::new(3);
                    let accepted: Vec<u64> = thread::scope(|scope| {
                        let write = |from: u64| {
                            let (fanout, go) = (&fanout, &go);
                            scope.spawn(move || {
                                let mut accepted = Vec::new();
                                go.wait();
                                for item in from.. {
                                    match fanout.write(item) {
                                        // the point is the moment of the stop, not the number of items
                                        Ok(()) if accepted.len() > 500 => {
                                            accepted.push(item);
                                            thread::yield_now();
                                        }
                                        Ok(()) => accepted.push(item),
                                        Err(error) => {
                                            assert_eq!(error, WriteError::Stopped(item));
                                            break;
                                        }
                                    }
                                }
                                accepted
                            })
                        };
                        let writers = [write(0), write(1 << 32)];
                        go.wait();
                        for _ in 0..round {
                            thread::yield_now();
                        }
                        fanout.stop();
                        let accepted = writers.map(|writer| writer.join().unwrap());
                        accepted.concat()
                    });
                    assert_eq!(seen.sorted(), accepted, "{name}");
                }
            },
        );
        assert!(rounds.load(SeqCst) >= 1_000);
    });
}

#[test]
fn stop_twice_by_several_at_once_and_before_start() {
    without_hanging(|| {
        every_kind(
            |item: &u64| *item,
            |configure, workers, name| {
                let seen = Seen::default();
                let fanout = configure(FanoutWriter::new(workers, seen.factory()).unwrap());
                fanout.start().unwrap();
                fanout.start().unwrap();
                fanout.write(1).unwrap();
                thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(|| {
                            fanout.stop();
                            assert_eq!(seen.sorted(), [1], "each stop waits, {name}");
                        });
                    }
                });
                fanout.stop();
                assert!(matches!(fanout.start(), Err(Error::Stopped)));

                let fanout = configure(FanoutWriter::new(workers, seen.factory()).unwrap());
                fanout.stop();
                assert_eq!(fanout.write(2), Err(WriteError::Stopped(2)), "{name}");
                assert_eq!(fanout.try_write(3), Err(WriteError::Stopped(3)), "{name}");
                assert!(matches!(fanout.start(), Err(Error::Stopped)));
                assert_eq!(seen.sorted(), [1]);
            },
        );
    });
}

#[test]
fn before_the_start_items_are_accepted_as_far_as_there_is_room() {
    without_hanging(|| {
        for start in [true, false] {
            every_kind(
                |_: &u64| 0,
                |configure, workers, name| {
                    let seen = Seen::default();
                    let fanout = FanoutWriter::new(workers, seen.factory()).unwrap();
                    let fanout = configure(fanout.with_buffer_size(8 * workers));
                    let mut accepted = 0;
                    let refused = loop {
                        match fanout.write(accepted) {
                            Ok(()) => accepted += 1,
                            Err(refused) => break refused,
                        }
                    };
                    assert_eq!(refused, WriteError::NotStarted(accepted), "{name}");
                    let room = if name.contains("lanes true") {
                        8
                    } else {
                        8 * workers as u64
                    };
                    assert_eq!(accepted, room, "{name}");
                    assert_eq!(
                        fanout.try_write(accepted),
                        Err(WriteError::Full(accepted)),
                        "{name}"
                    );
                    assert_eq!(fanout.stats().queued as u64, room, "{name}");
                    assert_eq!(seen.sorted(), [], "{name}");
                    if start {
                        fanout.start().unwrap();
                    }
                    fanout.stop();
                    assert_eq!(seen.sorted(), Vec::from_iter(0..accepted), "{name}");
                },
            );
        }
    });
}

/// Also field case F5, as far as a library goes: while the callbacks are blocked, `try_write` does
/// not wait, and what it did not accept comes back.
#[test]
fn the_buffer_holds_what_it_should_and_a_full_one_makes_writers_wait() {
    without_hanging(|| {
        for lanes in [false, true] {
            let (door, seen) = (Door::default(), Seen::default());
            let running = Arc::new(AtomicUsize::new(0));
            let fanout = FanoutWriter::new(2, {
                let (door, seen, running) = (door.clone(), seen.clone(), running.clone());
                move |_| {
                    let (door, running) = (door.clone(), running.clone());
                    let mut see = seen.callback();
                    move |item| {
                        running.fetch_add(1, SeqCst);
                        door.wait();
                        see(item);
                    }
                }
            })
            .unwrap()
            .with_caller_runs(false)
            .with_buffer_size(6);
            let fanout = if lanes {
                fanout.with_lanes(|item| *item)
            } else {
                fanout
            };
            fanout.start().unwrap();

            // one item for each worker, then six that wait
            for item in 0..2 {
                fanout.write(item).unwrap();
                spin_until("a worker takes it", || {
                    running.load(SeqCst) as u64 == item + 1
                });
            }
            for item in 2..8 {
                fanout.try_write(item).unwrap();
            }
            assert_eq!(fanout.try_write(8), Err(WriteError::Full(8)));
            assert_eq!(
                fanout.stats(),
                Stats {
                    workers: 2,
                    queued: 6,
                    panics: 0
                }
            );

            let written = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    fanout.write(8).unwrap();
                    written.store(true, SeqCst);
                });
                thread::sleep(Duration::from_millis(20));
                assert!(!written.load(SeqCst), "there is no room");
                door.open();
            });
            fanout.stop();
            assert_eq!(seen.sorted(), Vec::from_iter(0..9));
        }
    });
}

#[test]
fn a_writer_that_waits_for_room_gets_its_item_back_when_the_stage_stops() {
    without_hanging(|| {
        let door = Door::default();
        let fanout = FanoutWriter::new(1, {
            let door = door.clone();
            move |_| {
                let door = door.clone();
                move |_: u64| door.wait()
            }
        })
        .unwrap()
        .with_caller_runs(false);
        fanout.start().unwrap();
        fanout.write(0).unwrap();
        thread::scope(|scope| {
            let waiting: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for item in 1.. {
                            if let Err(error) = fanout.write(item) {
                                return (item, error);
                            }
                        }
                        unreachable!()
                    })
                })
                .collect();
            spin_until("the buffer is full", || fanout.stats().queued == 2);
            thread::sleep(Duration::from_millis(20)); // most likely they sleep by now
            scope.spawn(|| fanout.stop());
            for writer in waiting {
                let (item, error) = writer.join().unwrap();
                assert_eq!(error, WriteError::Stopped(item));
            }
            door.open();
        });
    });
}

/// Field case F8.
#[test]
fn a_panicking_callback_costs_only_its_item() {
    quiet_panics();
    without_hanging(|| {
        every_kind(
            |item: &u64| *item,
            |configure, workers, name| {
                let seen = Seen::default();
                let fanout = FanoutWriter::new(workers, {
                    let seen = seen.clone();
                    move |_| {
                        let mut see = seen.callback();
                        let mut half_done = false;
                        move |item: u64| {
                            assert!(
                                !half_done,
                                "the state of a callback that panicked is used again"
                            );
                            half_done = true;
                            if item % 1_000 == 999 {
                                panic!("expected by the test");
                            }
                            see(item);
                            half_done = false;
                        }
                    }
                })
                .unwrap();
                let fanout = configure(fanout);
                fanout.start().unwrap();
                for item in 0..10_000 {
                    fanout.write(item).unwrap();
                }
                fanout.stop();
                let expected: Vec<u64> = (0..10_000).filter(|item| item % 1_000 != 999).collect();
                assert_eq!(seen.sorted(), expected, "{name}");
                assert_eq!(
                    fanout.stats(),
                    Stats {
                        workers,
                        queued: 0,
                        panics: 10
                    },
                    "{name}"
                );
            },
        );
    });
}

/// All workers still take part after each of them has panicked.
#[test]
fn no_worker_is_lost_to_a_panic() {
    quiet_panics();
    without_hanging(|| {
        const WORKERS: usize = 4;
        let together = Arc::new(Barrier::new(WORKERS));
        let fanout = FanoutWriter::new(WORKERS, move |_| {
            let together = together.clone();
            move |panics: bool| {
                together.wait(); // only if all workers take an item each
                if panics {
                    panic!("expected by the test");
                }
            }
        })
        .unwrap()
        .with_caller_runs(false);
        fanout.start().unwrap();
        for round in 0..100 {
            for _ in 0..WORKERS {
                fanout.write(round % 2 == 0).unwrap();
            }
        }
        fanout.stop();
        assert_eq!(fanout.stats().panics, 50 * WORKERS as u64);
    });
}

#[test]
fn a_factory_that_panics_after_the_start_does_no_harm() {
    quiet_panics();
    without_hanging(|| {
        every_kind(
            |item: &u64| *item,
            |configure, workers, name| {
                let (made, seen) = (Arc::new(AtomicUsize::new(0)), Seen::default());
                let fanout = FanoutWriter::new(workers, {
                    let seen = seen.clone();
                    move |_| {
                        // the workers' callbacks at the start, and no other one
                        assert!(made.fetch_add(1, SeqCst) < workers, "expected by the test");
                        let mut see = seen.callback();
                        move |item| {
                            assert_ne!(item, 5, "expected by the test");
                            see(item);
                        }
                    }
                })
                .unwrap();
                let fanout = configure(fanout);
                fanout.start().unwrap();
                for item in 0..100 {
                    fanout.write(item).unwrap();
                }
                fanout.stop();
                let expected: Vec<u64> = (0..100).filter(|item| *item != 5).collect();
                assert_eq!(seen.sorted(), expected, "{name}");
            },
        );
    });
}

#[test]
fn a_callback_may_write_and_stop() {
    without_hanging(|| {
        every_kind(
            |item: &u64| *item,
            |configure, workers, name| {
                let seen = Seen::default();
                let stage: Arc<Mutex<Option<Arc<FanoutWriter<u64>>>>> = Arc::default();
                let fanout = FanoutWriter::new(workers, {
                    let (stage, seen) = (stage.clone(), seen.clone());
                    move |_| {
                        let stage = stage.clone();
                        let mut see = seen.callback();
                        move |item: u64| {
                            let fanout = stage.lock().unwrap().clone().unwrap();
                            see(item);
                            match item {
                                1_000 => fanout.stop(),
                                0..10 => fanout.write(item + 10).unwrap(),
                                _ => {}
                            }
                        }
                    }
                })
                .unwrap()
                .with_buffer_size(64 * workers);
                let fanout = Arc::new(configure(fanout));
                *stage.lock().unwrap() = Some(fanout.clone());
                fanout.start().unwrap();
                for item in 0..10 {
                    fanout.write(item).unwrap();
                }
                spin_until("the inner items are done", || seen.sorted().len() == 20);
                fanout.write(1_000).unwrap();
                fanout.stop();
                assert_eq!(fanout.write(1), Err(WriteError::Stopped(1)), "{name}");
                assert_eq!(seen.sorted().len(), 21, "{name}");
                *stage.lock().unwrap() = None; // else the stage would keep itself alive
            },
        );
    });
}

#[test]
fn with_caller_runs_off_only_workers_run_callbacks() {
    without_hanging(|| {
        let names = Arc::new(Mutex::new(HashSet::new()));
        let numbers = Arc::new(Mutex::new(HashSet::new()));
        let fanout = FanoutWriter::new(3, {
            let (names, numbers) = (names.clone(), numbers.clone());
            move |worker| {
                let (names, numbers) = (names.clone(), numbers.clone());
                move |_: u64| {
                    let name = thread::current().name().unwrap_or_default().to_owned();
                    assert_eq!(name, format!("fanout-{worker}"));
                    names.lock().unwrap().insert(name);
                    numbers.lock().unwrap().insert(worker);
                }
            }
        })
        .unwrap()
        .with_lanes(|item| *item)
        .with_caller_runs(false);
        fanout.start().unwrap();
        for item in 0..300 {
            fanout.write(item).unwrap();
        }
        fanout.stop();
        assert_eq!(fanout.stats().panics, 0);
        assert_eq!(names.lock().unwrap().len(), 3);
        assert_eq!(*numbers.lock().unwrap(), HashSet::from([0, 1, 2]));
    });
}

/// A writer whose callbacks take all its time gets help: an item runs on a worker.
#[test]
fn a_busy_writer_hands_out() {
    without_hanging(|| {
        for lanes in [false, true] {
            let on_workers = Arc::new(AtomicU64::new(0));
            let fanout = FanoutWriter::new(2, {
                let on_workers = on_workers.clone();
                move |worker| {
                    let on_workers = on_workers.clone();
                    move |_: u64| {
                        thread::sleep(Duration::from_micros(200));
                        on_workers.fetch_add(u64::from(worker < 2), SeqCst);
                    }
                }
            })
            .unwrap();
            let fanout = if lanes {
                fanout.with_lanes(|item| *item)
            } else {
                fanout
            };
            fanout.start().unwrap();
            for item in 0..100 {
                fanout.write(item).unwrap();
            }
            fanout.stop();
            assert!(on_workers.load(SeqCst) > 0, "lanes {lanes}: {on_workers:?}");
        }
    });
}

#[test]
fn dropping_the_stage_stops_it_and_frees_everything() {
    without_hanging(|| {
        every_kind(
            |_: &Arc<()>| 3,
            |configure, workers, name| {
                let (item, state) = (Arc::new(()), Arc::new(()));
                let fanout = FanoutWriter::new(workers, {
                    let state = state.clone();
                    move |_| {
                        let state = state.clone();
                        move |_item: Arc<()>| assert!(Arc::strong_count(&state) > 1)
                    }
                })
                .unwrap();
                let fanout = configure(fanout);
                fanout.start().unwrap();
                for _ in 0..100 {
                    fanout.write(item.clone()).unwrap();
                }
                drop(fanout);
                assert_eq!(Arc::strong_count(&item), 1, "{name}");
                assert_eq!(Arc::strong_count(&state), 1, "{name}");
            },
        );
    });
}

/// It can be shared, whatever it carries.
#[test]
fn a_stage_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<FanoutWriter<std::cell::Cell<u8>>>();
}

#[test]
fn a_stage_is_configured_before_it_is_used() {
    quiet_panics();
    let used = FanoutWriter::new(1, |_| |_: u64| {}).unwrap();
    used.write(1).unwrap();
    let late = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| used.with_buffer_size(5)));
    assert!(late.is_err());
}

/// A thread that can't be started is an error, and no worker is left running.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_that_cannot_be_started_is_an_error() {
    use std::fs;
    use std::process::Command;

    const CHILD: &str = "FANOUT_TEST_FEW_THREADS";
    if std::env::var_os(CHILD).is_some() {
        let fanout = FanoutWriter::new(1_000, |_| |_: u64| {}).unwrap();
        assert!(matches!(fanout.start(), Err(Error::Spawn { .. })));
        assert_eq!(fanout.write(7), Err(WriteError::Stopped(7)));
        let workers = || {
            let tasks = fs::read_dir("/proc/self/task").unwrap();
            // one that ends meanwhile has no name any more
            let names =
                tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.filter(|name| name.starts_with("fanout-")).count()
        };
        // a thread that has been joined may be listed for a moment longer
        spin_until("no worker is left", || workers() == 0);
        return;
    }
    // A stack of 1 GiB each, and address space for a few of them.
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 20000000 && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "a_thread_that_cannot_be_started_is_an_error"])
        .env("RUST_MIN_STACK", (1 << 30).to_string())
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The panics that these tests provoke would fill the output.
fn quiet_panics() {
    use std::sync::Once;

    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let message = info.payload_as_str().unwrap_or_default();
            if !message.contains("expected by the test") && !message.contains("configure a fan-out")
            {
                usual(info);
            }
        }));
    });
}
