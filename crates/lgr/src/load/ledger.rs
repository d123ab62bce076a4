//! What a subscriber, or the members of a shard together, must get and what they got.

use std::sync::Arc;

use lgr::numbered::{Arrival, Number, Series};

use super::plan::{Mix, Numbering, Scope};
use super::scan::Seen;

/// What all ledgers of a run agree on.
#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub(crate) run: u32,
    pub(crate) numbering: Numbering,
    pub(crate) mix: Arc<Mix>,
}

/// The envelopes of one subscriber or one shard.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    books: Books,
    scope: Scope,
    series: Vec<Series>,
    /// Different envelopes that had to arrive and did.
    pub(crate) received: u64,
    pub(crate) duplicated: u64,
    /// Arrived after a later one of their series.
    pub(crate) out_of_order: u64,
    /// Envelopes of this run that the selectors don't match.
    pub(crate) unexpected: u64,
    /// Envelopes of anybody else.
    pub(crate) foreign: u64,
}

impl Ledger {
    pub(crate) fn new(books: &Books, scope: Scope) -> Self {
        Self {
            books: books.clone(),
            scope,
            series: Vec::new(),
            received: 0,
            duplicated: 0,
            out_of_order: 0,
            unexpected: 0,
            foreign: 0,
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, seen: Seen) {
        match seen.number {
            Some(Number {
                run,
                series,
                sequence,
            }) if run == self.books.run => {
                match self
                    .books
                    .numbering
                    .position(series, self.scope, &self.books.mix)
                {
                    Some(position) => self.arrived(position, sequence),
                    None => self.unexpected += 1,
                }
            }
            _ => self.foreign += 1,
        }
    }

    fn arrived(&mut self, position: usize, sequence: u64) {
        if position >= self.series.len() {
            self.series.resize(position + 1, Series::default());
        }
        match self.series[position].record(sequence) {
            Arrival::InOrder => self.received += 1,
            Arrival::OutOfOrder => {
                self.received += 1;
                self.out_of_order += 1;
            }
            Arrival::Duplicate => self.duplicated += 1,
            Arrival::Stray => self.foreign += 1,
        }
    }

    /// How many must arrive, of what was sent: the count of each series.
    pub(crate) fn expected(&self, sent: &[u64]) -> u64 {
        let Books { numbering, mix, .. } = &self.books;
        match self.scope {
            Scope::Everything => sent.iter().sum(),
            Scope::Nothing => 0,
            Scope::Source(source) => sent
                .chunks(numbering.sources as usize)
                .filter_map(|sources| sources.get(source as usize))
                .sum(),
            Scope::Kinds(_) => (0..)
                .zip(sent)
                .filter(|&(series, _)| numbering.position(series, self.scope, mix).is_some())
                .map(|(_, &count)| count)
                .sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::{Group, KindSet};
    use crate::load::template::Kind;

    fn books() -> Books {
        let mix: Mix = "log,counter".parse().unwrap();
        let groups: Vec<Group> = vec!["source".parse().unwrap(), "log".parse().unwrap()];
        let numbering = Numbering::new(2, &mix, 3, &groups);
        Books {
            run: 5,
            numbering,
            mix: Arc::new(mix),
        }
    }

    fn seen(run: u32, series: u32, sequence: u64) -> Seen {
        Seen {
            timestamp: 0,
            number: Some(Number {
                run,
                series,
                sequence,
            }),
        }
    }

    #[test]
    fn all_that_can_happen_to_an_envelope() {
        // Series: producer 0 logs 0-2, counters 3-5; producer 1 logs 6-8, counters 9-11.
        let mut ledger = Ledger::new(&books(), Scope::Kinds(KindSet::only(Kind::Log)));
        for (series, sequence) in [(0, 0), (0, 2), (0, 1), (0, 2), (8, 0), (3, 0), (12, 0)] {
            ledger.record(seen(5, series, sequence));
        }
        ledger.record(seen(4, 0, 3));
        ledger.record(Seen {
            timestamp: 0,
            number: None,
        });
        assert_eq!(ledger.received, 4);
        assert_eq!(ledger.out_of_order, 1);
        assert_eq!(ledger.duplicated, 1);
        assert_eq!(ledger.unexpected, 2);
        assert_eq!(ledger.foreign, 2);
        let sent: Vec<u64> = (0..12).map(|series| 1 << series).collect();
        assert_eq!(ledger.expected(&sent), 0b0001_1100_0111);
    }

    #[test]
    fn what_each_scope_expects() {
        let sent: Vec<u64> = (0..12).map(|series| 1 << series).collect();
        let expected = |scope| Ledger::new(&books(), scope).expected(&sent);
        assert_eq!(expected(Scope::Everything), 0b1111_1111_1111);
        assert_eq!(
            expected(Scope::Kinds(KindSet::only(Kind::Counter))),
            0b1110_0011_1000
        );
        assert_eq!(expected(Scope::Source(1)), 0b0100_1001_0010);
        assert_eq!(expected(Scope::Nothing), 0);
    }
}
