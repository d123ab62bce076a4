//! Compiles the protobuf descriptions with a compiler written in Rust: no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(
        [
            "proto/envelope.proto",
            "proto/ingress.proto",
            "proto/egress.proto",
            "proto/plumbing.proto",
        ],
        ["proto"],
    )?;
    prost_build::Config::new()
        .btree_map(["."])
        .bytes([".plumbing"])
        .compile_fds(descriptors)?;
    Ok(())
}
