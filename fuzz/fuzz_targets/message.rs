//! Any bytes as a received `EnvelopeBatch`: the raw view's verdict and facts equal those of a full
//! decoder, and nothing panics. `cargo test -p loggregator` does the same for a fixed number of
//! inputs.
#![no_main]

#[path = "../../crates/loggregator/tests/support/oracle.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| oracle::check(bytes));
