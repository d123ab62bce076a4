//! The protobuf wire format: keys, numbers, lengths, and skipping what isn't known. Everything here
//! works on borrowed bytes, and nothing recurses, however the input is nested.

use smallvec::SmallVec;

use crate::error::{Fault, Flaw};

/// How deep fields may be nested, counted as decoders count: fields of the `EnvelopeBatch` itself
/// are at level 1, fields of an envelope at level 2, and so on.
///
/// The known messages end at level 5; only unknown groups can go deeper. 100 is where most protobuf
/// implementations stop, so whatever is accepted here can be decoded by every consumer. (The
/// reference decodes groups down to 10,000 levels and hands them to consumers that can't.)
pub const MAX_DEPTH: usize = 100;

pub(crate) type Result<T> = std::result::Result<T, Fault>;

pub(crate) const VARINT: u32 = 0;
pub(crate) const FIXED64: u32 = 1;
pub(crate) const LEN: u32 = 2;
pub(crate) const START_GROUP: u32 = 3;
pub(crate) const END_GROUP: u32 = 4;
pub(crate) const FIXED32: u32 = 5;

/// A field's key on the wire: its number and wire type.
pub(crate) const fn key(number: u32, wire_type: u32) -> u32 {
    number << 3 | wire_type
}

/// The high bit of every byte: set in all but the last byte of a varint, and nowhere in ASCII.
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// A reading position in a message. Nested messages are read by cursors over the same bytes that
/// end earlier, so that every offset is one in the whole message.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor over `bytes` from `at` to the end.
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Cursor { bytes, at }
    }

    /// Everything up to this cursor's end; positions are indices into it.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Goes on at `position`, which is not behind the end.
    pub(crate) fn set_position(&mut self, position: usize) {
        debug_assert!(position <= self.bytes.len());
        self.at = position;
    }

    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// What is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    #[cold]
    pub(crate) fn fault(&self, flaw: Flaw) -> Fault {
        Fault {
            flaw,
            offset: self.at,
        }
    }

    /// The next field's key.
    #[inline(always)]
    pub(crate) fn key(&mut self) -> Result<u32> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                if byte < 8 {
                    return Err(self.fault(Flaw::FieldNumber));
                }
                Ok(u32::from(byte))
            }
            _ => self.long_key(),
        }
    }

    #[cold]
    fn long_key(&mut self) -> Result<u32> {
        let start = *self;
        match u32::try_from(self.varint()?) {
            Ok(key) if key >> 3 != 0 => Ok(key),
            _ => Err(start.fault(Flaw::FieldNumber)),
        }
    }

    #[inline(always)]
    pub(crate) fn varint(&mut self) -> Result<u64> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for (i, &byte) in self.rest().iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7F) << (7 * i);
            if byte < 0x80 {
                if i == 9 && byte > 1 {
                    return Err(self.fault(Flaw::Varint));
                }
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(self.bad_varint())
    }

    #[cold]
    fn bad_varint(&self) -> Fault {
        self.fault(if self.rest().len() < 10 {
            Flaw::Truncated
        } else {
            Flaw::Varint
        })
    }

    /// Passes over a varint of any length. Times take nine bytes, so this is worth some care.
    #[inline(always)]
    pub(crate) fn skip_varint(&mut self) -> Result<()> {
        match self.rest().first_chunk::<10>() {
            Some(&[first @ .., ninth, tenth]) => {
                let stops = !u64::from_le_bytes(first) & HIGH_BITS;
                self.at += if stops != 0 {
                    stops.trailing_zeros() as usize / 8 + 1
                } else if ninth < 0x80 {
                    9
                } else if tenth <= 1 {
                    10
                } else {
                    return Err(self.fault(Flaw::Varint));
                };
                Ok(())
            }
            None => self.long_varint().map(drop),
        }
    }

    #[inline(always)]
    fn advance(&mut self, len: usize) -> Result<()> {
        if len > self.bytes.len() - self.at {
            return Err(self.fault(Flaw::Truncated));
        }
        self.at += len;
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn skip_fixed64(&mut self) -> Result<()> {
        self.advance(8)
    }

    /// A length and as many bytes: a cursor over them; this one goes on behind them.
    #[inline(always)]
    pub(crate) fn nested(&mut self) -> Result<Cursor<'a>> {
        let start = *self;
        let len = self.varint()?;
        if len > (self.bytes.len() - self.at) as u64 {
            return Err(start.fault(Flaw::Truncated));
        }
        let inner = Cursor {
            bytes: &self.bytes[..self.at + len as usize],
            at: self.at,
        };
        self.at = inner.bytes.len();
        Ok(inner)
    }

    /// Passes over the value of an unknown field at `level` (see [`MAX_DEPTH`]).
    #[cold]
    pub(crate) fn skip(&mut self, key: u32, level: usize) -> Result<()> {
        match key & 7 {
            START_GROUP => self.skip_group(key >> 3, level),
            _ => self.skip_scalar(key),
        }
    }

    fn skip_scalar(&mut self, key: u32) -> Result<()> {
        match key & 7 {
            VARINT => self.skip_varint(),
            FIXED64 => self.advance(8),
            LEN => self.nested().map(drop),
            FIXED32 => self.advance(4),
            END_GROUP => Err(self.fault(Flaw::EndGroup)),
            other => Err(self.fault(Flaw::WireType(other as u8))),
        }
    }

    /// Groups end by a key of their own, not by a length, so this keeps the numbers of the open
    /// ones: on the heap if there are many, never on the call stack.
    fn skip_group(&mut self, number: u32, level: usize) -> Result<()> {
        let mut open = SmallVec::<[u32; 16]>::from_slice(&[number]);
        while let Some(&innermost) = open.last() {
            let key = self.key()?;
            if key & 7 == END_GROUP {
                if key >> 3 != innermost {
                    return Err(self.fault(Flaw::EndGroup));
                }
                open.pop();
                continue;
            }
            if level + open.len() > MAX_DEPTH {
                return Err(self.fault(Flaw::Depth));
            }
            match key & 7 {
                START_GROUP => open.push(key >> 3),
                _ => self.skip_scalar(key)?,
            }
        }
        Ok(())
    }
}

/// How many bytes `value` takes as a varint.
pub(crate) fn varint_len(value: u64) -> usize {
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// Appends `value` as a varint.
pub(crate) fn put_varint(buf: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buf.push(value as u8 | 0x80);
        value >>= 7;
    }
    buf.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(bytes: &[u8]) -> Option<usize> {
        let mut cursor = Cursor::new(bytes, 0);
        let key = cursor.key().ok()?;
        cursor.skip(key, 2).ok()?;
        Some(cursor.position())
    }

    #[test]
    fn varints_by_length() {
        for value in [
            0,
            1,
            127,
            128,
            16_383,
            16_384,
            u64::from(u32::MAX),
            u64::MAX >> 1,
            u64::MAX,
        ] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(bytes.len(), varint_len(value));
            for padding in [0, 20] {
                let mut padded = bytes.clone();
                padded.resize(bytes.len() + padding, 0xFF);
                let mut cursor = Cursor::new(&padded, 0);
                assert_eq!(cursor.varint().unwrap(), value);
                assert_eq!(cursor.position(), bytes.len());
                let mut cursor = Cursor::new(&padded, 0);
                cursor.skip_varint().unwrap();
                assert_eq!(cursor.position(), bytes.len());
            }
        }
    }

    #[test]
    fn varints_beyond_64_bits() {
        for last in [0, 1, 2, 0x7F] {
            let mut bytes = vec![0x80; 9];
            bytes.push(last);
            let fine = last <= 1;
            assert_eq!(Cursor::new(&bytes, 0).varint().is_ok(), fine);
            assert_eq!(Cursor::new(&bytes, 0).skip_varint().is_ok(), fine);
        }
        let endless = [0x80; 12];
        assert_eq!(
            Cursor::new(&endless, 0).varint().unwrap_err().flaw,
            Flaw::Varint
        );
        assert_eq!(
            Cursor::new(&endless, 0).skip_varint().unwrap_err().flaw,
            Flaw::Varint
        );
        assert_eq!(
            Cursor::new(&endless[..9], 0)
                .skip_varint()
                .unwrap_err()
                .flaw,
            Flaw::Truncated
        );
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        assert_eq!(skipped(&[0x78, 0xFF, 0x01]), Some(3));
        assert_eq!(skipped(&[0x79, 1, 2, 3, 4, 5, 6, 7, 8]), Some(9));
        assert_eq!(skipped(&[0x7A, 2, 1, 2]), Some(4));
        assert_eq!(skipped(&[0x7D, 1, 2, 3, 4]), Some(5));
        assert_eq!(skipped(&[0x7B, 0x7B, 0x08, 1, 0x7C, 0x7C]), Some(6));
        assert_eq!(skipped(&[0x7B, 0x74]), None, "the end of another group");
        assert_eq!(skipped(&[0x7B, 0x08, 1]), None, "no end");
        assert_eq!(skipped(&[0x7E]), None);
        assert_eq!(skipped(&[0x7F]), None);
    }

    #[test]
    fn deep_groups_end_at_the_limit_and_cost_no_stack() {
        let nested = |depth: usize| {
            let mut bytes = vec![0x7B; depth];
            bytes.extend(vec![0x7C; depth]);
            skipped(&bytes)
        };
        assert_eq!(
            nested(MAX_DEPTH - 1),
            Some(2 * (MAX_DEPTH - 1)),
            "levels 2 to 100"
        );
        assert_eq!(nested(MAX_DEPTH), None);
        assert_eq!(nested(5_000_000), None);
    }
}
