//! Does a worker stage pay for a callback of this cost? Runs the same work directly and through
//! the stage, in turns, and prints how many times the direct throughput the stage reaches.
//!
//! ```text
//! cargo run --release -p fanout --example gain            # the table
//! cargo run --release -p fanout --example gain -- 2 3000  # two workers, 3000 ns, more rounds
//! ```
//!
//! The work is a fixed number of dependent steps, so its cost is processor time and nothing else.
//! "best" compares the fastest round of each, "median" is that of the ratios of neighbouring
//! rounds; on a machine that does other things, too, the first says more.

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use fanout::FanoutWriter;

#[derive(Clone, Copy)]
enum Hand {
    Plain,
    Lanes,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let steps_per_microsecond = calibrate();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cpus} CPUs, {steps_per_microsecond} steps take a microsecond\n");

    let arguments = std::env::args().skip(1).map(|argument| {
        let number = argument.parse::<NonZeroUsize>();
        number.map_err(|error| {
            format!("{argument:?} is no number of workers or nanoseconds: {error}")
        })
    });
    let arguments: Vec<usize> = arguments
        .map(|number| number.map(usize::from))
        .collect::<Result<_, _>>()?;
    let (workers, costs, rounds): (Vec<usize>, Vec<usize>, usize) = match arguments[..] {
        [] => (vec![1, 2, 4, 8, 16], vec![60, 130, 1_000, 5_000], 8),
        [workers] => (vec![workers], vec![60, 130, 500, 1_000, 5_000, 20_000], 15),
        [workers, cost, ..] => (vec![workers], vec![cost], 40),
    };
    println!("  cost  workers   plain: best median   lanes: best median");
    for cost in costs {
        let steps = (steps_per_microsecond * cost as u64 / 1_000).max(1);
        for &workers in &workers {
            let plain = gain(workers, Hand::Plain, cost, steps, rounds)?;
            let lanes = gain(workers, Hand::Lanes, cost, steps, rounds)?;
            println!(
                "{cost:>6}  {workers:>7}         {:>6.2} {:>6.2}          {:>6.2} {:>6.2}",
                plain.0, plain.1, lanes.0, lanes.1
            );
        }
    }
    Ok(())
}

/// How many times the direct throughput the stage reaches: of the best rounds, and the median.
fn gain(
    workers: usize,
    hand: Hand,
    cost: usize,
    steps: u64,
    rounds: usize,
) -> Result<(f64, f64), fanout::Error> {
    // 60 ms, so that starting and stopping do not count
    let items = (60_000_000 / cost as u64).max(1);
    let mut ratios = Vec::new();
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..rounds {
        let start = Instant::now();
        for item in 0..items {
            work(item, steps);
        }
        let direct = start.elapsed();

        let fanout = FanoutWriter::new(workers, move |_| move |item: u64| work(item, steps))?;
        let fanout = match hand {
            Hand::Plain => fanout,
            // keys as hashes are: all lanes get their share, in no pattern
            Hand::Lanes => fanout.with_lanes(|item| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32),
        };
        fanout.start()?;
        let start = Instant::now();
        for item in 0..items {
            fanout.write(item).expect("it has not been stopped");
        }
        fanout.stop();
        let staged = start.elapsed();

        ratios.push(direct.as_secs_f64() / staged.as_secs_f64());
        best = (best.0.min(direct), best.1.min(staged));
    }
    ratios.sort_by(f64::total_cmp);
    Ok((
        best.0.as_secs_f64() / best.1.as_secs_f64(),
        ratios[ratios.len() / 2],
    ))
}

/// Steps that depend on each other, so that they take the same time whatever runs beside them; and
/// slow ones, so that few branches of their own are mixed with those of what is measured.
#[inline(never)]
fn work(item: u64, steps: u64) {
    let mut state = item as f64;
    for _ in 0..steps {
        state = (state + 2.0).sqrt();
    }
    black_box(state);
}

/// How many steps take a microsecond.
fn calibrate() -> u64 {
    let fastest = (0..50).map(|_| {
        let start = Instant::now();
        work(1, 100_000);
        start.elapsed()
    });
    let fastest = fastest.min().expect("some rounds");
    (100_000_000 / fastest.as_nanos().max(1)).max(1) as u64
}
