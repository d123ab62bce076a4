//! What another process has used so far, as the kernel counts it.

use std::fs;
use std::io;
use std::path::Path;

/// Counters of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Processor time in user and kernel mode, in microseconds; in steps of a clock tick.
    pub(crate) cpu: u64,
    /// Resident memory in KiB.
    pub(crate) resident: u64,
    /// Times that its threads waited for something.
    pub(crate) voluntary: u64,
    /// Times that its threads were interrupted while they had work.
    pub(crate) involuntary: u64,
    pub(crate) threads: u64,
}

impl Usage {
    /// Reads the counters of process `pid`.
    pub(crate) fn read(pid: u32) -> io::Result<Self> {
        Self::read_at(Path::new("/proc").join(pid.to_string()).as_path())
    }

    fn read_at(directory: &Path) -> io::Result<Self> {
        let stat = fs::read_to_string(directory.join("stat"))?;
        let ticks = ticks(&stat).ok_or_else(|| odd("stat"))?;
        let status = fs::read_to_string(directory.join("status"))?;
        let mut usage = Self {
            cpu: ticks * 1_000_000 / rustix::param::clock_ticks_per_second(),
            resident: field(&status, "VmRSS:").unwrap_or(0),
            ..Self::default()
        };
        for task in fs::read_dir(directory.join("task"))? {
            // A thread may end while we look; then it has no say any more.
            let Ok(status) = fs::read_to_string(task?.path().join("status")) else {
                continue;
            };
            usage.voluntary += field(&status, "voluntary_ctxt_switches:").unwrap_or(0);
            usage.involuntary += field(&status, "nonvoluntary_ctxt_switches:").unwrap_or(0);
            usage.threads += 1;
        }
        Ok(usage)
    }
}

fn odd(file: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{file} is not as expected"),
    )
}

/// utime and stime, the 14th and 15th field. The second is the program's name in parentheses, which
/// may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_may_be_anything() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 17 25 0 0 20 0 3 0 1 2 3";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("42 (a) S 1"), None);
    }

    #[test]
    fn our_own_process_does_something() {
        let before = Usage::read(std::process::id()).unwrap();
        assert!(before.resident > 0 && before.threads > 0);
        let mut after = before;
        let start = std::time::Instant::now();
        while after.cpu == before.cpu && start.elapsed().as_secs() < 60 {
            after = Usage::read(std::process::id()).unwrap();
        }
        assert!(after.cpu > before.cpu);
        assert!(after.voluntary + after.involuntary > 0);
    }

    #[test]
    fn no_such_process() {
        assert_eq!(
            Usage::read(u32::MAX).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
