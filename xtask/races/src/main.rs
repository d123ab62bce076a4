//! Writers and readers of diode's lock-free rings, for the thread sanitizer to watch: `cargo xtask
//! sanitize thread` builds and runs it.
//!
//! The standard library isn't built with the sanitizer, which then can't see how libtest, scoped
//! threads and channels synchronise, and reports races that are none. So this is a plain `main` that
//! spawns and joins, and nothing more. The weighted ring isn't here for the same reason: it is values
//! behind a lock of the standard library's, whose slow path the sanitizer can't see. loom checks it.
//!
//! On the way it checks conservation: whatever was set was delivered or counted as missed.

#![forbid(unsafe_code)]

use std::thread;

use diode::{ManyToOne, OneToOne, TryNextError};

/// Values per writer and round.
const VALUES: u64 = 20_000;
/// Rounds per ring.
const ROUNDS: u64 = 5;
/// Small, so that writers overrun the reader all the time.
const CAPACITY: usize = 8;

fn main() {
    for round in 0..ROUNDS {
        many_to_one(2, round);
        many_to_one(3, round);
        one_to_one(round);
        closed_from_the_other_end();
    }
    println!("{ROUNDS} rounds of each ring: everything that was set was delivered or missed");
}

/// A value on the heap: freed by whoever takes it or overwrites it.
fn value(writer: u64, number: u64) -> Box<[u64; 2]> {
    Box::new([writer, number])
}

/// Takes everything, in turn by blocking and by asking; the sum of what was delivered.
fn drain<R>(
    mut reader: R,
    next: impl Fn(&mut R) -> Option<Box<[u64; 2]>>,
    try_next: impl Fn(&mut R) -> Result<Box<[u64; 2]>, TryNextError>,
) -> (R, u64) {
    let mut delivered = 0;
    loop {
        match try_next(&mut reader) {
            Ok(value) => delivered += u64::from(value[1] < VALUES),
            Err(TryNextError::Closed) => return (reader, delivered),
            Err(TryNextError::Empty) => match next(&mut reader) {
                Some(value) => delivered += u64::from(value[1] < VALUES),
                None => return (reader, delivered),
            },
        }
    }
}

fn many_to_one(writers: u64, round: u64) {
    let (writer, reader) = ManyToOne::new(CAPACITY).expect("room").split();
    let reading = thread::spawn(move || drain(reader, |r| r.next(), |r| r.try_next()));
    let writing: Vec<_> = (0..writers)
        .map(|id| {
            let writer = writer.clone();
            thread::spawn(move || {
                for number in 0..VALUES {
                    writer.set(value(id, number));
                    if number % 1000 == round {
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    drop(writer);
    for thread in writing {
        thread.join().expect("a writer");
    }
    let (reader, delivered) = reading.join().expect("the reader");
    assert_eq!(delivered + reader.missed(), writers * VALUES);
}

fn one_to_one(round: u64) {
    let (mut writer, reader) = OneToOne::new(CAPACITY).expect("room").split();
    let reading = thread::spawn(move || drain(reader, |r| r.next(), |r| r.try_next()));
    let writing = thread::spawn(move || {
        for number in 0..VALUES {
            writer.set(value(0, number));
            if number % 1000 == round {
                thread::yield_now();
            }
        }
    });
    writing.join().expect("the writer");
    let (reader, delivered) = reading.join().expect("the reader");
    assert_eq!(delivered + reader.missed(), VALUES);
}

/// Readers that leave while writers write.
fn closed_from_the_other_end() {
    let (writer, mut reader) = ManyToOne::new(CAPACITY).expect("room").split();
    let writing = thread::spawn(move || {
        let mut number = 0;
        while !writer.is_closed() {
            writer.set(value(0, number));
            number += 1;
        }
    });
    for _ in 0..100 {
        let _ = reader.next();
    }
    drop(reader);
    writing.join().expect("the writer");
}
