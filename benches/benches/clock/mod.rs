//! Time as the scheduler grants it: the processor time of the thread that measures. On a machine
//! that others use, too, it says what the code costs, where wall time says how long it took.
//! For code that runs on one thread and never waits.

use criterion::Throughput;
use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Measures the calling thread's processor time.
pub struct ThreadTime;

impl Measurement for ThreadTime {
    type Intermediate = Timespec;
    /// Nanoseconds.
    type Value = f64;

    fn start(&self) -> Timespec {
        clock_gettime(ClockId::ThreadCPUTime)
    }

    fn end(&self, start: Timespec) -> f64 {
        let end = clock_gettime(ClockId::ThreadCPUTime);
        (end.tv_sec - start.tv_sec) as f64 * 1e9 + (end.tv_nsec - start.tv_nsec) as f64
    }

    fn add(&self, left: &f64, right: &f64) -> f64 {
        left + right
    }

    fn zero(&self) -> f64 {
        0.0
    }

    fn to_f64(&self, value: &f64) -> f64 {
        *value
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &Nanoseconds
    }
}

/// Prints as wall time is printed, since both are in nanoseconds.
struct Nanoseconds;

impl ValueFormatter for Nanoseconds {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    fn scale_throughputs(
        &self,
        typical: f64,
        throughput: &Throughput,
        values: &mut [f64],
    ) -> &'static str {
        WallTime
            .formatter()
            .scale_throughputs(typical, throughput, values)
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}
