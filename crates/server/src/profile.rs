//! CPU profiles of this process, in the format that `go tool pprof` and other pprof viewers read.
//!
//! A timer interrupts whatever runs and notes its call stack; stacks are walked by the unwind
//! tables that the executable carries, so no build needs frame pointers. Nothing of it is there
//! before somebody asks for a profile. Without the cargo feature `cpu-profile` it is left out.

/// Without `seconds`, as Go's profiles.
pub(crate) const USUAL: u64 = 30;

/// Longest profile, in seconds.
pub(crate) const LONGEST: u64 = 300;

/// A profile that can't be had.
#[derive(Debug, thiserror::Error)]
#[allow(dead_code, reason = "which of it can happen depends on the feature")]
pub(crate) enum Error {
    #[error("this router was built without the cargo feature `cpu-profile`")]
    LeftOut,
    #[error("another profile is being taken: one at a time")]
    Busy,
    #[error("can't take a profile: {0}")]
    Failed(String),
}

/// Watches the process for so long. Ends early, without a trace, if the future is dropped.
#[cfg(not(feature = "cpu-profile"))]
pub(crate) async fn cpu(_: std::time::Duration) -> Result<Vec<u8>, Error> {
    Err(Error::LeftOut)
}

#[cfg(feature = "cpu-profile")]
pub(crate) use sampled::cpu;

#[cfg(feature = "cpu-profile")]
mod sampled {
    use std::{
        collections::HashMap,
        time::{Duration, SystemTime},
    };

    use prost::Message as _;
    use rpprof::{Frames, ProfilerGuard, ProfilerGuardBuilder, Symbol};
    use rustix::time::{ClockId, clock_gettime};
    use tokio::{task, time};

    use super::{
        Error,
        format::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType},
    };

    /// Interrupts a second of CPU time, at most: the kernel's clock is coarser, and several busy
    /// CPUs share one timer.
    const FREQUENCY: i32 = 100;

    /// Watches the process for so long. Ends early, without a trace, if the future is dropped.
    pub(crate) async fn cpu(duration: Duration) -> Result<Vec<u8>, Error> {
        // reads the executable's tables: off this thread, which has others to serve
        let guard =
            task::spawn_blocking(|| ProfilerGuardBuilder::default().frequency(FREQUENCY).build());
        let guard = guard
            .await
            .map_err(|error| Error::Failed(error.to_string()))?;
        let guard = guard.map_err(|error| match error {
            rpprof::Error::Running => Error::Busy,
            error => Error::Failed(error.to_string()),
        })?;
        let (begun, cpu_before) = (SystemTime::now(), cpu_time());
        time::sleep(duration).await;
        let cpu = cpu_time().saturating_sub(cpu_before);
        let encoded = task::spawn_blocking(move || {
            let stacks = stacks(guard)?;
            let mut profile = Builder::default().profile(&stacks, cpu);
            profile.time_nanos = nanoseconds(
                begun
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default(),
            );
            profile.duration_nanos = nanoseconds(duration);
            Ok(profile.encode_to_vec())
        });
        encoded
            .await
            .map_err(|error| Error::Failed(error.to_string()))?
    }

    /// Every stack that was seen, and how often. Symbols are looked up after the last sample.
    fn stacks(guard: ProfilerGuard<'_>) -> Result<Vec<(Frames, u64)>, Error> {
        let report = guard
            .report()
            .build_unresolved()
            .map_err(|error| Error::Failed(error.to_string()))?;
        drop(guard);
        let counted = report.data.into_iter();
        Ok(counted
            .map(|(frames, count)| (Frames::from(frames), u64::try_from(count).unwrap_or(0)))
            .collect())
    }

    /// What this process has used of all CPUs.
    fn cpu_time() -> Duration {
        Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
    }

    fn nanoseconds(duration: Duration) -> i64 {
        i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
    }

    /// Numbers strings, functions and locations as the format wants them.
    #[derive(Default)]
    struct Builder {
        strings: HashMap<String, i64>,
        functions: HashMap<(String, String), u64>,
        locations: HashMap<Vec<(u64, u32)>, u64>,
        profile: Profile,
    }

    impl Builder {
        /// Each sample stands for the same share of the CPU time that was really used: with
        /// several busy CPUs there are fewer interrupts than the frequency promises.
        fn profile(mut self, stacks: &[(Frames, u64)], cpu: Duration) -> Profile {
            self.string("");
            let samples: u64 = stacks.iter().map(|(_, count)| count).sum();
            let period = nanoseconds(cpu) / i64::try_from(samples.max(1)).unwrap_or(i64::MAX);
            let thread = self.string("thread");
            for (frames, count) in stacks {
                let count = i64::try_from(*count).unwrap_or(i64::MAX);
                let location_id = frames
                    .frames
                    .iter()
                    .map(|symbols| self.location(symbols))
                    .collect();
                let label = Label {
                    key: thread,
                    str: self.string(&frames.thread_name),
                };
                let value = vec![count, count.saturating_mul(period)];
                self.profile.sample.push(Sample {
                    location_id,
                    value,
                    label: vec![label],
                });
            }

            let counts = ValueType {
                r#type: self.string("samples"),
                unit: self.string("count"),
            };
            let time = ValueType {
                r#type: self.string("cpu"),
                unit: self.string("nanoseconds"),
            };
            self.profile.sample_type = vec![counts, time.clone()];
            self.profile.period_type = Some(time);
            self.profile.period = period;
            let executable = std::env::current_exe().unwrap_or_default();
            self.profile.mapping = vec![Mapping {
                id: 1,
                filename: self.string(&executable.to_string_lossy()),
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            }];
            let mut strings: Vec<_> = self.strings.into_iter().collect();
            strings.sort_by_key(|(_, index)| *index);
            self.profile.string_table = strings.into_iter().map(|(string, _)| string).collect();
            self.profile
        }

        fn string(&mut self, string: &str) -> i64 {
            if let Some(index) = self.strings.get(string) {
                return *index;
            }
            let index = self.strings.len() as i64;
            self.strings.insert(string.to_owned(), index);
            index
        }

        /// A place in the code: the function that was inlined last comes first.
        fn location(&mut self, symbols: &[Symbol]) -> u64 {
            let lines: Vec<_> = symbols
                .iter()
                .map(|symbol| (self.function(symbol), symbol.lineno()))
                .collect();
            if let Some(id) = self.locations.get(&lines) {
                return *id;
            }
            let id = self.locations.len() as u64 + 1;
            let line = lines
                .iter()
                .map(|&(function_id, line)| Line {
                    function_id,
                    line: line.into(),
                })
                .collect();
            self.profile.location.push(Location {
                id,
                mapping_id: 1,
                line,
            });
            self.locations.insert(lines, id);
            id
        }

        fn function(&mut self, symbol: &Symbol) -> u64 {
            let key = (symbol.name(), symbol.filename().into_owned());
            if let Some(id) = self.functions.get(&key) {
                return *id;
            }
            let id = self.functions.len() as u64 + 1;
            let (name, filename) = (self.string(&key.0), self.string(&key.1));
            let system_name = self.string(&symbol.sys_name());
            self.profile.function.push(Function {
                id,
                name,
                system_name,
                filename,
            });
            self.functions.insert(key, id);
            id
        }
    }
}

/// The parts of `perftools.profiles.Profile` that we fill. Texts are indices into the string
/// table, whose first entry is empty.
#[cfg(feature = "cpu-profile")]
mod format {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub(super) sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub(super) sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub(super) mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub(super) location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub(super) function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub(super) string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub(super) time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub(super) duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub(super) period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub(super) period: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct ValueType {
        #[prost(int64, tag = "1")]
        pub(super) r#type: i64,
        #[prost(int64, tag = "2")]
        pub(super) unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub(super) location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub(super) value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub(super) label: Vec<Label>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Label {
        #[prost(int64, tag = "1")]
        pub(super) key: i64,
        #[prost(int64, tag = "2")]
        pub(super) str: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Mapping {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(int64, tag = "5")]
        pub(super) filename: i64,
        #[prost(bool, tag = "7")]
        pub(super) has_functions: bool,
        #[prost(bool, tag = "8")]
        pub(super) has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub(super) has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub(super) has_inline_frames: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Location {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(uint64, tag = "2")]
        pub(super) mapping_id: u64,
        #[prost(message, repeated, tag = "4")]
        pub(super) line: Vec<Line>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Line {
        #[prost(uint64, tag = "1")]
        pub(super) function_id: u64,
        #[prost(int64, tag = "2")]
        pub(super) line: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Function {
        #[prost(uint64, tag = "1")]
        pub(super) id: u64,
        #[prost(int64, tag = "2")]
        pub(super) name: i64,
        #[prost(int64, tag = "3")]
        pub(super) system_name: i64,
        #[prost(int64, tag = "4")]
        pub(super) filename: i64,
    }
}
