//! What several test files share: reading vector files, and the full decoder that the raw view is
//! held against.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod events;
pub mod oracle;
pub mod routing;

use base64::Engine as _;
use serde_json::Value;

/// The cases of a vector file: every line but the first, which explains the file.
pub fn cases(file: &str) -> Vec<Value> {
    let cases: Vec<Value> = file
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).expect("a JSON object"))
        .collect();
    assert!(!cases.is_empty());
    cases
}

/// The bytes of a base64 member of a case.
pub fn bytes(case: &Value, member: &str) -> Vec<u8> {
    decode(
        case[member]
            .as_str()
            .unwrap_or_else(|| panic!("{case} has no {member}")),
    )
}

pub fn decode(base64: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD
        .decode(base64)
        .expect("base64")
}

/// `bytes` with a batch's element header before it.
pub fn element(bytes: &[u8]) -> Vec<u8> {
    let mut element = vec![0x0A];
    prost::encoding::encode_varint(bytes.len() as u64, &mut element);
    element.extend_from_slice(bytes);
    element
}
