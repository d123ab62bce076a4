//! The hash of deterministic routing: CRC-64/XZ, which every router of a fleet must compute alike.

use crc::{CRC_64_XZ, Crc, Table};

/// Sixteen bytes a step; the tables take 32 KiB.
static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_XZ);

pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    CRC.checksum(bytes)
}

#[cfg(test)]
mod tests {
    use super::checksum;

    #[test]
    fn values_of_the_reference() {
        for (input, expected) in [
            ("", 0),
            ("123456789", 0x995D_C9BB_DF19_39FA),
            ("a", 0x3302_8477_2E65_2B05),
            ("requests", 0xBF1D_6F85_6569_22F2),
            ("http.errors", 0x6F06_5B60_2498_6C98),
            ("cpu", 0x2996_17CC_A885_8044),
            ("memory", 0xC902_B4B5_7E02_94A4),
            ("disk", 0x96CD_4867_D779_CA39),
            ("memory_quota", 0x324B_7E28_CE4D_EAE4),
            ("disk_quota", 0xBAC6_183D_9731_152B),
        ] {
            assert_eq!(checksum(input.as_bytes()), expected, "{input:?}");
        }
    }
}
