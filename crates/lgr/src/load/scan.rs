//! A look at received batches that is cheaper than decoding: per envelope only its number and its
//! timestamp are read.
//!
//! Most routers forward an envelope's bytes as they came, so the number is where it was in the
//! envelope before. [`Scanner`] looks there first, and walks the fields only if it isn't.

use lgr::numbered::{Number, TAG};

use super::template::Api;

/// What is known of one envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) timestamp: i64,
    pub(crate) number: Option<Number>,
}

/// Not a batch of envelopes, as far as was looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// How the tag with the number begins: the entry's key, and the header of its value.
const MARK: [u8; 2 + TAG.len() + 2] = {
    let mut mark = [0; 2 + TAG.len() + 2];
    mark[0] = 0x0A;
    mark[1] = TAG.len() as u8;
    let mut position = 0;
    while position < TAG.len() {
        mark[2 + position] = TAG.as_bytes()[position];
        position += 1;
    }
    mark[2 + TAG.len()] = 0x12;
    mark[3 + TAG.len()] = Number::LEN as u8;
    mark
};

/// Length of the whole entry.
const ENTRY: usize = MARK.len() + Number::LEN;

/// Knows an API's fields, and remembers where the number and the timestamp were.
#[derive(Clone, Debug)]
pub(crate) struct Scanner {
    timestamp_field: u64,
    tags_field: u64,
    /// Where the timestamp's field began.
    timestamp: usize,
    /// Where the tag with the number began.
    entry: usize,
}

impl Scanner {
    pub(crate) fn new(api: Api) -> Self {
        let (timestamp_field, tags_field) = match api {
            Api::V1 => (6, 17),
            Api::V2 => (1, 9),
        };
        Self {
            timestamp_field,
            tags_field,
            timestamp: 0,
            entry: 0,
        }
    }

    /// Calls `each` for every envelope of a batch; returns how many there are.
    pub(crate) fn scan(
        &mut self,
        batch: &[u8],
        mut each: impl FnMut(Seen),
    ) -> Result<u64, Malformed> {
        let (mut fields, mut count) = (Fields(batch), 0);
        while let Some((number, value)) = fields.next()? {
            if let (1, Value::Bytes(envelope)) = (number, value) {
                each(self.envelope(envelope)?);
                count += 1;
            }
        }
        Ok(count)
    }

    fn envelope(&mut self, envelope: &[u8]) -> Result<Seen, Malformed> {
        let behind = |position: usize| envelope.get(position..).unwrap_or_default();
        if let Some(number) = numbered(behind(self.entry))
            && let Some((field, Value::Varint(timestamp))) =
                Fields(behind(self.timestamp)).next()?
            && field == self.timestamp_field
        {
            return Ok(Seen {
                timestamp: timestamp as i64,
                number: Some(number),
            });
        }
        let mut seen = Seen {
            timestamp: 0,
            number: None,
        };
        let mut fields = Fields(envelope);
        loop {
            let start = envelope.len() - fields.0.len();
            let Some((field, value)) = fields.next()? else {
                return Ok(seen);
            };
            match value {
                Value::Varint(timestamp) if field == self.timestamp_field => {
                    seen.timestamp = timestamp as i64;
                    self.timestamp = start;
                }
                Value::Bytes(entry) if field == self.tags_field => {
                    if let Some(number) = numbered(entry) {
                        seen.number = Some(number);
                        self.entry = envelope.len() - fields.0.len() - entry.len();
                    }
                }
                _ => {}
            }
        }
    }
}

/// The number if `bytes` begin with the entry of the tag.
fn numbered(bytes: &[u8]) -> Option<Number> {
    let entry = bytes.get(..ENTRY)?;
    let text = entry.strip_prefix(&MARK)?;
    Number::parse(text)
}

/// The fields of a message that are still to be read.
struct Fields<'a>(&'a [u8]);

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Fixed-width numbers, which mean nothing to us.
    Other,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Other)?,
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(usize::try_from(length).map_err(|_| Malformed)?)?)
            }
            5 => self.take(4).map(|_| Value::Other)?,
            _ => return Err(Malformed),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (position, &byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7F) << (7 * position);
            if byte < 0x80 {
                self.0 = &self.0[position + 1..];
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use loggregator::v2;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::load::template::{Kind, Template};

    fn scan(scanner: &mut Scanner, batch: &[u8]) -> Result<Vec<Seen>, Malformed> {
        let mut all = Vec::new();
        let count = scanner.scan(batch, |seen| all.push(seen))?;
        assert_eq!(count, all.len() as u64);
        Ok(all)
    }

    /// Forwarded bytes and bytes that were encoded anew, in turn: the hint is right, then wrong.
    #[test]
    fn numbers_are_found_wherever_they_are() {
        let mut scanner = Scanner::new(Api::V2);
        for (position, kind) in (1_u64..).zip(Kind::ALL.into_iter().cycle().take(20)) {
            let mut template = Template::new(Api::V2, kind, 100, 9);
            template.set_timestamp(1 << 60 | position as i64);
            template.set_sequence(position);
            let mut batch = template.bytes().to_vec();
            let mut decoded = v2::EnvelopeBatch::decode(&*batch).unwrap();
            decoded.batch[0]
                .tags
                .insert("a first one".to_owned(), "x".repeat(200));
            batch.extend(decoded.encode_to_vec());
            decoded.batch[0].tags.clear();
            batch.extend(decoded.encode_to_vec());

            let timestamp = 1 << 60 | position as i64;
            let number = Some(Number {
                run: 9,
                series: 0,
                sequence: position,
            });
            let found = Seen { timestamp, number };
            let bare = Seen {
                timestamp,
                number: None,
            };
            assert_eq!(
                scan(&mut scanner, &batch),
                Ok(vec![found, found, bare]),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn v1_batches() {
        let mut scanner = Scanner::new(Api::V1);
        let (mut batch, mut expected) = (Vec::new(), Vec::new());
        for (sequence, kind) in (0..).zip([Kind::Log, Kind::Counter, Kind::Log, Kind::Gauge]) {
            let mut template = Template::new(Api::V1, kind, 100, 9);
            template.set_timestamp(1 << 60 | sequence as i64);
            template.set_sequence(sequence);
            batch.extend(template.bytes());
            let number = Some(Number {
                run: 9,
                series: 0,
                sequence,
            });
            expected.push(Seen {
                timestamp: 1 << 60 | sequence as i64,
                number,
            });
        }
        assert_eq!(scan(&mut scanner, &batch), Ok(expected));
    }

    #[test]
    fn empty_messages() {
        let mut scanner = Scanner::new(Api::V2);
        assert_eq!(scan(&mut scanner, b""), Ok(vec![]));
        let nothing = Seen {
            timestamp: 0,
            number: None,
        };
        assert_eq!(scan(&mut scanner, &[0x0A, 0]), Ok(vec![nothing]));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Scanner::new(Api::V2).scan(&bytes, |_| {});
        }

        /// Cut anywhere but between elements, a batch is malformed.
        #[test]
        fn cut_batches_are_malformed(cut in 1_usize..600) {
            let element = Template::new(Api::V2, Kind::Log, 128, 0).bytes().to_vec();
            let batch = [element.clone(), element.clone()].concat();
            prop_assume!(cut < batch.len() && cut != element.len());
            prop_assert_eq!(Scanner::new(Api::V2).scan(&batch[..cut], |_| {}), Err(Malformed));
        }

        #[test]
        fn as_a_decoder_sees_it(
            timestamp: i64,
            tags in prop::collection::btree_map("[a-z]{0,4}", ".{0,40}", 0..4),
            number: Option<(u32, u32, u32)>,
        ) {
            let number = number.map(|(run, series, sequence)| {
                Number { run, series, sequence: sequence.into() }
            });
            let mut envelope = v2::Envelope { timestamp, tags, ..Default::default() };
            envelope.tags.remove(TAG);
            if let Some(number) = number {
                envelope.tags.insert(TAG.to_owned(), number.to_string());
            }
            let batch = v2::EnvelopeBatch { batch: vec![envelope; 2] }.encode_to_vec();
            let seen = Seen { timestamp, number };
            prop_assert_eq!(scan(&mut Scanner::new(Api::V2), &batch), Ok(vec![seen, seen]));
        }
    }
}
