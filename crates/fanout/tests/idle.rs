//! An idle stage runs nothing at all: its threads are not scheduled once while nothing is written.
//! In a process of its own, so that no other test's threads are counted.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fanout::FanoutWriter;

const HANG: Duration = Duration::from_secs(300);

/// For each worker's thread: how often it has run, as the scheduler counts it.
fn times_run() -> Vec<(String, u64)> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // a thread that ends meanwhile can't be read any more
    let mut counts: Vec<_> = tasks
        .filter_map(|task| times_run_by(&task.ok()?.path()))
        .collect();
    counts.retain(|(name, _)| name.starts_with("fanout-"));
    counts.sort();
    counts
}

fn times_run_by(task: &Path) -> Option<(String, u64)> {
    let name = fs::read_to_string(task.join("comm")).ok()?;
    let status = fs::read_to_string(task.join("status")).ok()?;
    let switches = status
        .lines()
        .filter(|line| line.contains("ctxt_switches:"));
    let switches = switches.map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
    Some((name.trim().to_owned(), switches.sum::<Option<u64>>()?))
}

#[test]
fn sixteen_idle_workers_take_no_cpu() {
    for lanes in [false, true] {
        let (done, wait) = mpsc::channel();
        let fanout = FanoutWriter::new(16, move |_| {
            let done = done.clone();
            move |item: u64| done.send(item).unwrap()
        })
        .unwrap()
        .with_caller_runs(false);
        let fanout = if lanes {
            fanout.with_lanes(|item| *item)
        } else {
            fanout
        };
        fanout.start().unwrap();
        let use_it = || {
            for item in 0..1_000 {
                fanout.write(item).unwrap();
            }
            for _ in 0..1_000 {
                wait.recv_timeout(HANG).unwrap();
            }
        };

        use_it();
        // All have started, and fall asleep in their own time; then they stay asleep.
        let start = Instant::now();
        loop {
            let before = times_run();
            thread::sleep(Duration::from_millis(300));
            let after = times_run();
            if before.len() == 16 && after == before {
                break;
            }
            assert!(
                start.elapsed() < HANG,
                "they keep running: {before:?}, {after:?}"
            );
        }
        // and they are there when they are needed
        use_it();
        fanout.stop();
    }
}
