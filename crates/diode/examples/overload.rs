//! A dashboard that shows ten pictures a second of sensors that deliver two hundred thousand
//! samples: nobody waits for it, it sees the newest, and every sample is accounted for.
//!
//! ```text
//! cargo run -p diode --example overload
//! ```

use std::thread;
use std::time::{Duration, Instant};

use diode::{ManyToOne, TryNextError};

const SENSORS: u64 = 4;
const RUN: Duration = Duration::from_secs(1);

fn main() -> Result<(), diode::Error> {
    let (writer, mut reader) = ManyToOne::new(1_000)?
        .on_missed(|samples| println!("           {samples:>7} missed"))
        .split();

    let sensors: Vec<_> = (0..SENSORS)
        .map(|sensor| {
            let writer = writer.clone();
            thread::spawn(move || {
                let (began, mut samples) = (Instant::now(), 0);
                while began.elapsed() < RUN {
                    for _ in 0..50 {
                        writer.set((sensor, samples));
                        samples += 1;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                samples
            })
        })
        .collect();
    // only the sensors write: when they have ended, so has the ring
    drop(writer);

    let mut shown = 0;
    loop {
        let before = shown;
        let open = loop {
            match reader.try_next() {
                Ok(_sample) => shown += 1,
                Err(TryNextError::Empty) => break true,
                Err(TryNextError::Closed) => break false,
            }
        };
        println!("a picture of {:>5} samples", shown - before);
        if !open {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }

    let set: u64 = sensors
        .into_iter()
        .map(|sensor| sensor.join().expect("a sensor does not panic"))
        .sum();
    println!("set={set} shown={shown} missed={}", reader.missed());
    assert_eq!(set, shown + reader.missed());
    Ok(())
}
