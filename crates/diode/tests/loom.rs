//! Models of the rings, explored by loom: every interleaving of a few operations on a tiny ring, and
//! every value that the memory model lets an atomic load return.
//!
//! ```text
//! RUSTFLAGS="--cfg diode_loom" cargo test -p diode --release --test loom
//! ```
//!
//! Each model checks conservation, the order of what is delivered, and by tracked allocations that
//! every value is dropped exactly once. A lost wake-up shows as a deadlock. Each is explored
//! completely up to the number of pre-emptions that it names, where one more takes about ten times as
//! long; all of them take about a minute on two cores. `LOOM_MAX_DURATION` ends each model after
//! so many seconds.

#![cfg(diode_loom)]

use diode::{Limits, ManyToOne, OneToOne, TryNextError, Weigh, Weighted};
use loom::alloc::Track;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use loom::thread;

/// A value whose leak or double drop fails the model.
struct Value(Track<u64>);

impl Value {
    fn new(number: u64) -> Self {
        Self(Track::new(number))
    }

    fn number(&self) -> u64 {
        *self.0.get_ref()
    }
}

impl Weigh for Value {
    fn weight(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        8
    }
}

/// Loom remembers the last access to a word only. So it does not see that one thread's load races with
/// another thread's exchange, if that thread, too, loads the word first. A step on this word before an
/// operation makes it try what comes before and after.
#[derive(Clone)]
struct Steps(Arc<AtomicUsize>);

impl Steps {
    fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(0)))
    }

    fn step(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn model(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// What a reader got, to be compared with what was set.
#[derive(Default)]
struct Got(Vec<u64>);

impl Got {
    /// In tens: the writer; in ones: the how-manieth.
    fn push(&mut self, value: Value) {
        let number = value.number();
        let before = self.0.iter().rfind(|before| **before / 10 == number / 10);
        assert!(
            before.is_none_or(|before| *before < number),
            "order of a writer"
        );
        self.0.push(number);
    }

    fn conserves(&self, set: u64, missed: u64) {
        assert_eq!(
            self.0.len() as u64 + missed,
            set,
            "got {:?}, missed {missed}",
            self.0
        );
    }
}

/// The reader may go to sleep before the first value, between the two, and before the end.
fn wait_for_two(mut set: impl FnMut(Value) + Send + 'static, reader: impl Iterator<Item = Value>) {
    let thread = thread::spawn(move || {
        set(Value::new(0));
        set(Value::new(1));
    });
    let mut got = Got::default();
    reader.for_each(|value| got.push(value));
    assert_eq!(got.0, [0, 1]);
    thread.join().unwrap();
}

mod many_to_one {
    use super::*;
    use diode::many_to_one::{Reader, Writer};
    use std::task::{Context, Waker};

    /// Tickets shortly before positions wrap.
    const WRAP: u64 = (u64::MAX >> 4) - 1;

    /// A ring whose reader has slept before, so that writers look for its mark from the start. How it
    /// comes to that is for `wait_and_wake` and `wait_for_the_first_time`.
    fn slept_on(capacity: usize) -> (Writer<Value>, Reader<Value>) {
        let (writer, mut reader) = ManyToOne::new(capacity).unwrap().split();
        let poll = reader.poll_next(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        (writer, reader)
    }

    #[test]
    fn set_and_set() {
        model(4, || {
            let (writer, mut reader) = ManyToOne::new(2).unwrap().split();
            let other = writer.clone();
            let thread = thread::spawn(move || other.set(Value::new(10)));
            writer.set(Value::new(20));
            thread.join().unwrap();
            let mut got = Got::default();
            while let Ok(value) = reader.try_next() {
                got.push(value);
            }
            got.conserves(2, 0);
            assert_eq!(reader.missed(), 0);
        });
    }

    /// One of the writers may stop in the middle of a copy, and be lapped.
    #[test]
    fn set_and_set_around_the_ring() {
        model(4, || {
            let (writer, mut reader) = ManyToOne::new(2).unwrap().split();
            let other = writer.clone();
            let thread = thread::spawn(move || other.set(Value::new(10)));
            writer.set(Value::new(20));
            writer.set(Value::new(21));
            writer.set(Value::new(22));
            thread.join().unwrap();
            drop(writer);
            let mut got = Got::default();
            while let Ok(value) = reader.try_next() {
                got.push(value);
            }
            assert_eq!(
                reader.try_next().err(),
                Some(TryNextError::Closed),
                "nothing is stranded"
            );
            got.conserves(4, reader.missed());
        });
    }

    #[test]
    fn three_writers() {
        model(3, || {
            let (writer, mut reader) = ManyToOne::new(1).unwrap().split();
            let threads = [10, 20].map(|number| {
                let writer = writer.clone();
                thread::spawn(move || writer.set(Value::new(number)))
            });
            writer.set(Value::new(30));
            for thread in threads {
                thread.join().unwrap();
            }
            let mut got = Got::default();
            while let Ok(value) = reader.try_next() {
                got.push(value);
            }
            assert!(got.0.len() <= 1);
            got.conserves(3, reader.missed());
        });
    }

    /// With everybody else gone each slot takes values again, whatever was given up before.
    fn is_whole(writer: &Writer<Value>, reader: &mut Reader<Value>, capacity: u64) {
        let missed = reader.missed();
        for _ in 0..2 {
            (90..90 + capacity).for_each(|number| writer.set(Value::new(number)));
            for number in 90..90 + capacity {
                assert_eq!(
                    reader.try_next().ok().map(|value| value.number()),
                    Some(number)
                );
            }
        }
        assert_eq!(reader.missed(), missed);
    }

    /// The writer may come around while the reader is in the middle of a copy, and more than once.
    #[test]
    fn set_and_take() {
        for (capacity, sets, preemptions) in [(1, 3, 3), (2, 3, 3), (2, 5, 2)] {
            model(preemptions, move || {
                let (writer, mut reader) = ManyToOne::new(capacity).unwrap().split();
                let (other, steps) = (writer.clone(), Steps::new());
                let others_steps = steps.clone();
                let thread = thread::spawn(move || {
                    for number in 0..sets {
                        others_steps.step();
                        other.set(Value::new(number));
                    }
                });
                let mut got = Got::default();
                for _ in 0..2 {
                    steps.step();
                    reader
                        .try_next()
                        .into_iter()
                        .for_each(|value| got.push(value));
                }
                thread.join().unwrap();
                while let Ok(value) = reader.try_next() {
                    got.push(value);
                }
                got.conserves(sets, reader.missed());
                is_whole(&writer, &mut reader, capacity as u64);
            });
        }
    }

    /// Both writers may come around while the reader is in the middle of a copy, and give up in any
    /// order.
    #[test]
    fn two_writers_go_around_the_reader() {
        model(2, || {
            let (writer, mut reader) = ManyToOne::new(2).unwrap().split();
            writer.set(Value::new(30));
            writer.set(Value::new(31));
            let threads = [10, 20].map(|number| {
                let writer = writer.clone();
                thread::spawn(move || {
                    writer.set(Value::new(number));
                    writer.set(Value::new(number + 1));
                    writer.set(Value::new(number + 2));
                })
            });
            let mut got = Got::default();
            reader
                .try_next()
                .into_iter()
                .for_each(|value| got.push(value));
            for thread in threads {
                thread.join().unwrap();
            }
            while let Ok(value) = reader.try_next() {
                got.push(value);
            }
            got.conserves(8, reader.missed());
            is_whole(&writer, &mut reader, 2);
        });
    }

    #[test]
    fn wrap_around() {
        model(4, || {
            let (writer, mut reader) = ManyToOne::new(1).unwrap().starting_at(WRAP).split();
            let thread = thread::spawn(move || {
                for number in 0..3 {
                    writer.set(Value::new(number));
                }
            });
            let mut got = Got::default();
            reader
                .try_next()
                .into_iter()
                .for_each(|value| got.push(value));
            thread.join().unwrap();
            while let Ok(value) = reader.try_next() {
                got.push(value);
            }
            got.conserves(3, reader.missed());
        });
    }

    #[test]
    fn wait_and_wake() {
        model(2, || {
            let (writer, reader) = slept_on(2);
            wait_for_two(move |value| writer.set(value), reader);
        });
    }

    /// The reader may meet a writer that does not look for its mark.
    #[test]
    fn wait_for_the_first_time() {
        model(2, || {
            let (writer, reader) = ManyToOne::new(2).unwrap().split();
            wait_for_two(move |value| writer.set(value), reader);
        });
    }

    #[test]
    fn two_writers_wake_one_reader() {
        model(1, || {
            let (writer, mut reader) = slept_on(2);
            let threads = [10, 20].map(|number| {
                let writer = writer.clone();
                thread::spawn(move || writer.set(Value::new(number)))
            });
            let mut got = Got::default();
            for _ in 0..2 {
                got.push(reader.next().unwrap());
            }
            for thread in threads {
                thread.join().unwrap();
            }
            got.conserves(2, reader.missed());
        });
    }

    /// The reader waits for a ticket that is overrun meanwhile.
    #[test]
    fn overrun_while_waiting() {
        model(2, || {
            let (writer, mut reader) = slept_on(1);
            let thread = thread::spawn(move || {
                for number in 0..3 {
                    writer.set(Value::new(number));
                }
            });
            let mut got = Got::default();
            got.push(reader.next().unwrap());
            thread.join().unwrap();
            while let Some(value) = reader.next() {
                got.push(value);
            }
            got.conserves(3, reader.missed());
        });
    }

    /// A writer stops in the middle of a copy, so that the one a lap later gives its ticket up, and
    /// the reader waits for that ticket.
    #[test]
    fn abandoned_while_waiting() {
        model(1, || {
            let (writer, mut reader) = slept_on(1);
            let other = writer.clone();
            let thread = thread::spawn(move || other.set(Value::new(10)));
            let second = thread::spawn(move || {
                writer.set(Value::new(20));
                writer.set(Value::new(21));
            });
            let mut got = Got::default();
            // All three may be lost: two to newer tickets, the newest to the busy slot.
            reader.next().into_iter().for_each(|value| got.push(value));
            thread.join().unwrap();
            second.join().unwrap();
            while let Some(value) = reader.next() {
                got.push(value);
            }
            got.conserves(3, reader.missed());
        });
    }

    #[test]
    fn close_and_set_and_wait() {
        model(2, || {
            let (writer, mut reader) = ManyToOne::new(2).unwrap().split();
            let other = writer.clone();
            let close = thread::spawn(move || other.close());
            let set = thread::spawn(move || {
                writer.set(Value::new(0));
                writer
            });
            let mut got = Got::default();
            while let Some(value) = reader.next() {
                got.push(value);
            }
            close.join().unwrap();
            let writer = set.join().unwrap();
            got.conserves(1, writer.missed());
            assert!(reader.next().is_none(), "the end stays the end");
        });
    }

    #[test]
    fn the_reader_leaves_while_writers_set() {
        model(4, || {
            let (writer, reader) = ManyToOne::new(1).unwrap().split();
            let thread = thread::spawn(move || {
                for number in 0..3 {
                    writer.set(Value::new(number));
                }
                writer
            });
            drop(reader);
            assert_eq!(thread.join().unwrap().missed(), 3);
        });
    }
}

mod one_to_one {
    use super::*;

    /// Tickets shortly before positions wrap.
    const WRAP: u64 = (u64::MAX >> 2) - 1;

    /// From the first set to the eviction of blocks that the reader may be about to claim.
    fn set_and_take(capacity: usize, start: u64, sets: u64, preemptions: usize) {
        model(preemptions, move || {
            let ring = OneToOne::new(capacity).unwrap().starting_at(start);
            let (mut writer, mut reader) = ring.split();
            let thread = thread::spawn(move || {
                for number in 0..sets {
                    writer.set(Value::new(number));
                }
            });
            let mut got = Got::default();
            for _ in 0..3 {
                reader
                    .try_next()
                    .into_iter()
                    .for_each(|value| got.push(value));
            }
            thread.join().unwrap();
            while let Ok(value) = reader.try_next() {
                got.push(value);
            }
            assert_eq!(reader.try_next().err(), Some(TryNextError::Closed));
            assert_eq!(got.0.last(), Some(&(sets - 1)), "the newest is never lost");
            got.conserves(sets, reader.missed());
        });
    }

    #[test]
    fn set_and_take_in_blocks_of_one() {
        set_and_take(1, 0, 5, 3);
    }

    #[test]
    fn set_and_take_in_blocks_of_two() {
        set_and_take(2, 0, 9, 2);
    }

    #[test]
    fn set_and_take_several() {
        model(3, || {
            let (mut writer, mut reader) = OneToOne::new(2).unwrap().split();
            let thread = thread::spawn(move || {
                for number in 0..7 {
                    writer.set(Value::new(number));
                }
            });
            let (mut got, mut batch) = (Got::default(), Vec::new());
            reader.take_into(&mut batch, 2);
            thread.join().unwrap();
            reader.take_into(&mut batch, 9);
            batch.into_iter().for_each(|value| got.push(value));
            got.conserves(7, reader.missed());
        });
    }

    #[test]
    fn wrap_around() {
        set_and_take(1, WRAP, 5, 2);
        set_and_take(2, WRAP, 7, 2);
    }

    #[test]
    fn wait_and_wake() {
        model(3, || {
            let (mut writer, reader) = OneToOne::new(2).unwrap().split();
            wait_for_two(move |value| writer.set(value), reader);
        });
    }

    #[test]
    fn overrun_while_waiting() {
        model(2, || {
            let (mut writer, mut reader) = OneToOne::new(1).unwrap().split();
            let thread = thread::spawn(move || {
                for number in 0..4 {
                    writer.set(Value::new(number));
                }
            });
            let mut got = Got::default();
            while let Some(value) = reader.next() {
                got.push(value);
            }
            got.conserves(4, reader.missed());
            thread.join().unwrap();
        });
    }

    #[test]
    fn the_reader_closes_while_the_writer_sets() {
        model(4, || {
            let (mut writer, mut reader) = OneToOne::new(1).unwrap().split();
            let thread = thread::spawn(move || {
                for number in 0..4 {
                    writer.set(Value::new(number));
                }
                writer
            });
            reader.close();
            let mut got = Got::default();
            while let Some(value) = reader.next() {
                got.push(value);
            }
            let writer = thread.join().unwrap();
            got.conserves(4, writer.missed());
        });
    }

    #[test]
    fn the_reader_leaves_while_the_writer_sets() {
        model(4, || {
            let (mut writer, reader) = OneToOne::new(1).unwrap().split();
            let thread = thread::spawn(move || {
                for number in 0..5 {
                    writer.set(Value::new(number));
                }
                writer
            });
            drop(reader);
            assert_eq!(thread.join().unwrap().missed(), 5);
        });
    }
}

mod weighted {
    use super::*;

    const LIMITS: Limits = Limits {
        weight: 1,
        bytes: 100,
    };

    #[test]
    fn set_and_set_and_wait() {
        model(2, || {
            let (writer, mut reader) = Weighted::new(LIMITS).unwrap().split();
            let threads = [10, 20].map(|number| {
                let writer = writer.clone();
                thread::spawn(move || writer.set(Value::new(number)))
            });
            drop(writer);
            let mut got = Got::default();
            while let Some(value) = reader.next() {
                got.push(value);
            }
            got.conserves(2, reader.missed());
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn close_and_leave() {
        model(3, || {
            let (writer, reader) = Weighted::new(LIMITS).unwrap().split();
            let thread = thread::spawn(move || {
                writer.set_all([Value::new(0), Value::new(1)]);
                writer
            });
            drop(reader);
            assert_eq!(thread.join().unwrap().missed(), 2);
        });
    }
}
