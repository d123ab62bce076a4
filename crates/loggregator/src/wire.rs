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

/// A reading position in a message: what is left of it. Nested messages are read by cursors of
/// their own.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    /// The offset of the end of `rest`, so that every position is one in the whole input.
    end: usize,
}

impl<'a> Cursor<'a> {
    /// A cursor over `bytes`, whose last byte comes just before the offset `end`.
    pub(crate) fn new(bytes: &'a [u8], end: usize) -> Self {
        Cursor { rest: bytes, end }
    }

    /// What is left.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline(always)]
    pub(crate) fn position(&self) -> usize {
        self.end - self.rest.len()
    }

    #[inline(always)]
    pub(crate) fn end(&self) -> usize {
        self.end
    }

    /// What lies between here and `behind`, a later position of the same message.
    pub(crate) fn until(&self, behind: Self) -> Self {
        let len = self.rest.len() - behind.rest.len();
        Cursor {
            rest: &self.rest[..len],
            end: self.position() + len,
        }
    }

    #[cold]
    pub(crate) fn fault(self, flaw: Flaw) -> Fault {
        Fault {
            flaw,
            offset: self.position(),
        }
    }

    /// The next field's key; `None` at the end. Field number 0 is left for [`skip`](Self::skip) to
    /// refuse, since it is never a known one.
    #[inline(always)]
    pub(crate) fn next_key(&mut self) -> Result<Option<u32>> {
        match *self.rest {
            [key @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(Some(u32::from(key)))
            }
            [] => Ok(None),
            [..] => self.long_key().map(Some),
        }
    }

    #[inline(always)]
    fn long_key(&mut self) -> Result<u32> {
        let start = *self;
        u32::try_from(self.varint()?).map_err(|_| start.fault(Flaw::FieldNumber))
    }

    #[inline(always)]
    pub(crate) fn varint(&mut self) -> Result<u64> {
        // Most numbers are lengths of one or two bytes.
        match *self.rest {
            [first @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(first))
            }
            [first, second @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(first & 0x7F) | u64::from(second) << 7)
            }
            [..] => {
                let (value, rest) = self.long_varint()?;
                self.rest = rest;
                Ok(value)
            }
        }
    }

    /// A varint, and what is behind it. By value, as all that is called out of line, so that the
    /// cursor can live in registers.
    #[inline(never)]
    fn long_varint(self) -> Result<(u64, &'a [u8])> {
        let mut value = 0;
        for (i, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7F) << (7 * i);
            if byte < 0x80 {
                if i == 9 && byte > 1 {
                    return Err(self.fault(Flaw::Varint));
                }
                return Ok((value, &self.rest[i + 1..]));
            }
        }
        Err(self.fault(if self.rest.len() < 10 {
            Flaw::Truncated
        } else {
            Flaw::Varint
        }))
    }

    /// Passes over a varint of any length. Times take nine bytes, so this is worth some care.
    #[inline(always)]
    pub(crate) fn skip_varint(&mut self) -> Result<()> {
        let Some(&[first @ .., ninth, tenth]) = self.rest.first_chunk::<10>() else {
            return self.varint().map(drop);
        };
        let stops = !u64::from_le_bytes(first) & HIGH_BITS;
        let len = if stops != 0 {
            stops.trailing_zeros() as usize / 8 + 1
        } else if ninth < 0x80 {
            9
        } else if tenth <= 1 {
            10
        } else {
            return Err(self.fault(Flaw::Varint));
        };
        self.advance(len)
    }

    /// Passes over `len` bytes.
    #[inline(always)]
    pub(crate) fn advance(&mut self, len: usize) -> Result<()> {
        match self.rest.get(len..) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => Err(self.fault(Flaw::Truncated)),
        }
    }

    /// The next eight bytes.
    pub(crate) fn fixed64(&mut self) -> Result<[u8; 8]> {
        match self.rest.split_first_chunk() {
            Some((value, rest)) => {
                self.rest = rest;
                Ok(*value)
            }
            None => Err(self.fault(Flaw::Truncated)),
        }
    }

    /// A length and as many bytes: a cursor over them; this one goes on behind them.
    #[inline(always)]
    pub(crate) fn nested(&mut self) -> Result<Cursor<'a>> {
        let start = *self;
        let len = self.varint()?;
        // More than fits into a usize is more than there is.
        match self
            .rest
            .split_at_checked(usize::try_from(len).unwrap_or(usize::MAX))
        {
            Some((inner, rest)) => {
                self.rest = rest;
                Ok(Cursor {
                    rest: inner,
                    end: self.position(),
                })
            }
            None => Err(start.fault(Flaw::Truncated)),
        }
    }

    /// Passes over the value of an unknown field at `level` (see [`MAX_DEPTH`]).
    #[inline(always)]
    pub(crate) fn skip(&mut self, key: u32, level: usize) -> Result<()> {
        self.rest = self.skipped(key, level)?;
        Ok(())
    }

    #[inline(never)]
    fn skipped(mut self, key: u32, level: usize) -> Result<&'a [u8]> {
        match key & 7 {
            START_GROUP if key >> 3 != 0 => self.skip_group(key >> 3, level)?,
            _ => self.skip_scalar(key)?,
        }
        Ok(self.rest)
    }

    fn skip_scalar(&mut self, key: u32) -> Result<()> {
        if key >> 3 == 0 {
            return Err(self.fault(Flaw::FieldNumber));
        }
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
    /// ones, and never recurses.
    fn skip_group(&mut self, number: u32, level: usize) -> Result<()> {
        let mut open = SmallVec::<[u32; 16]>::from_slice(&[number]);
        while let Some(&innermost) = open.last() {
            let Some(key) = self.next_key()? else {
                return Err(self.fault(Flaw::Truncated));
            };
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
                START_GROUP if key >> 3 != 0 => open.push(key >> 3),
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
        let mut cursor = Cursor::new(bytes, bytes.len());
        let key = cursor.next_key().ok()??;
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
                let mut cursor = Cursor::new(&padded, padded.len());
                assert_eq!(cursor.varint().unwrap(), value);
                assert_eq!(cursor.position(), bytes.len());
                let mut cursor = Cursor::new(&padded, padded.len());
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
            assert_eq!(Cursor::new(&bytes, 10).varint().is_ok(), fine);
            assert_eq!(Cursor::new(&bytes, 10).skip_varint().is_ok(), fine);
        }
        let endless = [0x80; 12];
        assert_eq!(
            Cursor::new(&endless, 12).varint().unwrap_err().flaw,
            Flaw::Varint
        );
        assert_eq!(
            Cursor::new(&endless, 12).skip_varint().unwrap_err().flaw,
            Flaw::Varint
        );
        assert_eq!(
            Cursor::new(&endless[..9], 9)
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
