//! Bookings of many accounts, done by several workers: in order for each account, although each
//! booking takes its time and some are refused.
//!
//! ```text
//! cargo run -p fanout --example accounts
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fanout::FanoutWriter;

struct Booking {
    account: u64,
    number: u32,
    amount: i64,
}

/// A ledger for each worker and for the writer: no lock is contended while they book.
type Ledgers = Arc<[Mutex<HashMap<u64, (u32, i64)>>]>;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const WORKERS: usize = 3;
    const ACCOUNTS: u64 = 12;

    // a panicking callback is contained; its message would still be printed
    std::panic::set_hook(Box::new(|_| {}));

    let ledgers: Ledgers = (0..WORKERS).map(|_| Mutex::default()).collect();
    let fanout = FanoutWriter::new(WORKERS, {
        let ledgers = ledgers.clone();
        move |worker| {
            let ledgers = ledgers.clone();
            move |booking: Booking| {
                let audit = Instant::now();
                while audit.elapsed() < Duration::from_micros(20) {}
                assert!(booking.amount != 13, "refused");
                let mut ledger = ledgers[worker].lock().unwrap();
                let (last, balance) = ledger.entry(booking.account).or_default();
                assert!(*last < booking.number, "out of order");
                *last = booking.number;
                *balance += booking.amount;
            }
        }
    })?
    // an account always has the same lane, and so, with callbacks on workers only, the same ledger
    .with_lanes(|booking| booking.account)
    .with_caller_runs(false);

    fanout.start()?;
    for number in 1..=1_000 {
        for account in 0..ACCOUNTS {
            let amount = i64::from(number % 100);
            fanout.write(Booking {
                account,
                number,
                amount,
            })?;
        }
    }
    fanout.stop();

    for (worker, ledger) in ledgers.iter().enumerate() {
        let ledger = ledger.lock().unwrap();
        let mut accounts: Vec<_> = ledger.iter().collect();
        accounts.sort();
        for (account, (last, balance)) in accounts {
            println!(
                "account {account:2}: balance {balance}, last booking {last}, worker {worker}"
            );
        }
    }
    println!("{} bookings were refused", fanout.stats().panics);
    Ok(())
}
