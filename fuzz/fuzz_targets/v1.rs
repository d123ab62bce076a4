//! Any bytes as a pushed v1 envelope: the verdict, required fields included, and the content equal
//! those of another codec; what is accepted converts to v2 and back, and nothing panics.
#![no_main]

#[allow(dead_code, reason = "shared with the other target")]
#[path = "../../crates/loggregator/tests/support/oracle.rs"]
mod oracle;

#[path = "../../crates/loggregator/tests/support/events.rs"]
mod events;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| events::check(bytes));
