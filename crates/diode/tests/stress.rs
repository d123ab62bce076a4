//! Threads at full speed: nothing is lost uncounted, nothing arrives twice or out of order, nobody
//! sleeps through a value.

mod common;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use common::{HANG, Population, Random, rounds};
use diode::{Limits, ManyToOne, OneToOne, TryNextError, Weigh, Weighted};

/// Checks what one reader gets: each writer's numbers rise, and the sum is right.
#[derive(Default)]
struct Check {
    newest: [Option<u64>; 8],
    delivered: u64,
}

impl Check {
    fn got(&mut self, writer: usize, number: u64) {
        assert!(
            self.newest[writer] < Some(number),
            "order of writer {writer}"
        );
        self.newest[writer] = Some(number);
        self.delivered += 1;
    }
}

struct One(usize, u64);

impl Weigh for One {
    fn weight(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        16
    }
}

fn weighted(weight: usize) -> Weighted<One> {
    let bytes = usize::MAX;
    Weighted::new(Limits { weight, bytes }).unwrap()
}

/// Field case D1: the writers are joined first, then the rest is drained without another set.
macro_rules! many_writers {
    ($ring:expr, $writers:expr) => {{
        let each = rounds(200_000);
        let (writer, mut reader) = $ring.split();
        let threads: Vec<_> = (0..$writers)
            .map(|id| {
                let writer = writer.clone();
                thread::spawn(move || (0..each).for_each(|number| writer.set(One(id, number))))
            })
            .collect();
        let mut check = Check::default();
        while threads.iter().any(|thread| !thread.is_finished()) {
            if let Ok(One(writer, number)) = reader.try_next() {
                check.got(writer, number);
            }
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        while let Ok(One(writer, number)) = reader.try_next() {
            check.got(writer, number);
        }
        assert_eq!(reader.try_next().err(), Some(TryNextError::Empty));
        assert_eq!(check.delivered + reader.missed(), $writers as u64 * each);
        assert_eq!(writer.missed(), reader.missed());
    }};
}

#[test]
fn many_writers_and_a_busy_reader() {
    for capacity in [1, 3, 128] {
        many_writers!(ManyToOne::<One>::new(capacity).unwrap(), 2);
    }
    many_writers!(ManyToOne::<One>::new(128).unwrap(), 5);
    many_writers!(weighted(128), 2);
}

/// Field case D2.
macro_rules! one_fast_reader {
    ($ring:expr) => {
        for _ in 0..50 {
            let sets = rounds(200_000);
            let (mut writer, mut reader) = $ring.split();
            let thread =
                thread::spawn(move || (0..sets).for_each(|number| writer.set(One(0, number))));
            let mut check = Check::default();
            loop {
                match reader.try_next() {
                    Ok(One(_, number)) => check.got(0, number),
                    Err(TryNextError::Empty) => std::hint::spin_loop(),
                    Err(TryNextError::Closed) => break,
                }
            }
            thread.join().unwrap();
            assert_eq!(check.delivered + reader.missed(), sets);
        }
    };
}

#[test]
#[allow(unused_mut, reason = "one of the writers needs it")]
fn one_writer_and_a_fast_reader() {
    one_fast_reader!(OneToOne::<One>::new(16).unwrap());
    one_fast_reader!(ManyToOne::<One>::new(16).unwrap());
    one_fast_reader!(weighted(16));
}

/// Field case D5. The pauses are random, so that each side is first in about half of the rounds.
macro_rules! set_and_next {
    ($ring:expr) => {{
        let (mut writer, mut reader) = $ring.split();
        let (taken, next_round) = mpsc::channel();
        let count = rounds(100_000);
        let waiting = thread::spawn(move || {
            let mut random = Random(3);
            for number in 0..count {
                pause(&mut random);
                assert_eq!(reader.next().map(|One(_, number)| number), Some(number));
                taken.send(()).unwrap();
            }
            assert_eq!(reader.missed(), 0);
        });
        let mut random = Random(5);
        for number in 0..count {
            pause(&mut random);
            writer.set(One(0, number));
            match next_round.recv_timeout(HANG) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => panic!("slept through value {number}"),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        waiting.join().unwrap();
    }};
}

fn pause(random: &mut Random) {
    match random.below(8) {
        0 => thread::yield_now(),
        short => (0..short * 8).for_each(|_| std::hint::spin_loop()),
    }
}

#[test]
#[allow(unused_mut, reason = "one of the writers needs it")]
fn no_wake_up_is_lost() {
    set_and_next!(OneToOne::<One>::new(4).unwrap());
    set_and_next!(ManyToOne::<One>::new(4).unwrap());
    set_and_next!(weighted(4));
}

/// Everything at once: writers come and go, the reader waits, takes several, and leaves early.
#[test]
fn nothing_leaks_when_both_sides_come_and_go() {
    let mut random = Random(7);
    for _ in 0..rounds(2_000) {
        let population = Population::default();
        let capacity = 1 + random.below(20) as usize;
        let (writer, mut reader) = ManyToOne::new(capacity).unwrap().split();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (writer, population) = (writer.clone(), population.clone());
                let sets = random.below(60);
                thread::spawn(move || {
                    (0..sets).for_each(|number| writer.set(population.value(number)));
                    sets
                })
            })
            .collect();
        let mut delivered = 0;
        for _ in 0..random.below(40) {
            delivered += u64::from(reader.try_next().is_ok());
        }
        drop(reader);
        let sets: u64 = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        assert_eq!(delivered + writer.missed(), sets);
        drop(writer);
        assert_eq!(population.alive(), 0);
    }
    for _ in 0..rounds(2_000) {
        let population = Population::default();
        let capacity = 1 + random.below(20) as usize;
        let (mut writer, mut reader) = OneToOne::new(capacity).unwrap().split();
        let sets = random.below(200);
        let born = population.clone();
        let thread = thread::spawn(move || {
            (0..sets).for_each(|number| writer.set(born.value(number)));
            writer
        });
        let (mut delivered, mut batch) = (0, Vec::new());
        for _ in 0..random.below(40) {
            delivered += u64::from(reader.try_next().is_ok());
            delivered += reader.take_into(&mut batch, random.below(5) as usize) as u64;
        }
        batch.clear();
        drop(reader);
        let writer = thread.join().unwrap();
        assert_eq!(delivered + writer.missed(), sets);
        drop(writer);
        assert_eq!(population.alive(), 0);
    }
}
