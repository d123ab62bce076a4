//! A hash for deterministic picks.
//!
//! The hashes of the tree differ from tree to tree, on purpose. What picks the member of a shard
//! group must be the same wherever the group has members.

use std::hash::{Hash, Hasher};

/// Hashes `value` alike in every process and on every platform: 64-bit FNV-1a.
///
/// For [`Event::shard_hash`](crate::Event::shard_hash), so that every publisher picks the same
/// member of a group. It depends on how `value` implements `Hash`; integers, strings and what is
/// derived from them stay as they are. It does not resist keys that are chosen to collide: such
/// events land on one member, no more.
///
/// ```
/// use pubsub::stable_hash;
///
/// assert_eq!(stable_hash("requests"), stable_hash(&String::from("requests")));
/// assert_ne!(stable_hash("requests"), stable_hash("responses"));
/// ```
pub fn stable_hash<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    value.hash(&mut hasher);
    hasher.finish()
}

struct Fnv(u64);

macro_rules! little_endian {
    ($($write:ident($number:ty))*) => {$(
        fn $write(&mut self, number: $number) {
            self.write(&number.to_le_bytes());
        }
    )*};
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    // Whatever the byte order of the platform. The signed ones go through these.
    little_endian! { write_u16(u16) write_u32(u32) write_u64(u64) write_u128(u128) }

    // And whatever its word size.
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as i64 as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_bytes(bytes: &[u8]) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        hasher.write(bytes);
        hasher.finish()
    }

    /// The published test vectors of FNV-1a.
    #[test]
    fn it_is_fnv() {
        assert_eq!(of_bytes(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of_bytes(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of_bytes(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn values_are_hashed_the_same_everywhere() {
        assert_eq!(stable_hash("a"), of_bytes(b"a\xff"));
        assert_eq!(stable_hash(&0x0102_0304_u32), of_bytes(&[4, 3, 2, 1]));
        assert_eq!(stable_hash(&-2_i16), of_bytes(&[0xfe, 0xff]));
        assert_eq!(
            stable_hash(&-2_isize),
            of_bytes(&[0xfe, 255, 255, 255, 255, 255, 255, 255])
        );
        assert_eq!(
            stable_hash(&[1_u8, 2]),
            of_bytes(&[2, 0, 0, 0, 0, 0, 0, 0, 1, 2])
        );
    }
}
