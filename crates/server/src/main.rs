//! To come.
#![forbid(unsafe_code)]
fn main() {}
