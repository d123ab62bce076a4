//! One parser per kind of variable. A [`Reader`] never stops at a mistake: it notes it, goes on
//! with the default, and refuses at the end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::IntErrorKind;
use std::path::PathBuf;

use crate::error::{Problem, Warning};
use crate::variables::{Kind, Number, VARIABLES, Variable};

/// Reads variables and gathers what is wrong with them.
pub(crate) struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<OsString>,
    /// By position in the table, so that mistakes are told in its order.
    problems: BTreeMap<usize, Problem>,
    warnings: Vec<Warning>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(lookup: &'a dyn Fn(&str) -> Option<OsString>) -> Reader<'a> {
        Reader {
            lookup,
            problems: BTreeMap::new(),
            warnings: Vec::new(),
        }
    }

    /// The warnings, or all the problems if there were any.
    pub(crate) fn finish(self) -> Result<Vec<Warning>, Vec<Problem>> {
        if self.problems.is_empty() {
            Ok(self.warnings)
        } else {
            Err(self.problems.into_values().collect())
        }
    }

    /// A required path. An empty one stands in if it is missing.
    pub(crate) fn path(&mut self, variable: &Variable) -> PathBuf {
        match self.raw(variable) {
            Some(path) => path.into(),
            None => {
                self.problem(Problem::Missing {
                    variable: variable.env,
                    doc: variable.doc,
                });
                PathBuf::new()
            }
        }
    }

    pub(crate) fn text(&mut self, variable: &Variable) -> Option<String> {
        self.raw(variable)?
            .into_string()
            .map_err(|value| {
                let value = value.to_string_lossy().into_owned();
                self.problem(Problem::NotUtf8 {
                    variable: variable.env,
                    value,
                });
            })
            .ok()
    }

    pub(crate) fn bool(&mut self, variable: &Variable) -> bool {
        match self.text(variable).as_deref() {
            Some("true" | "1") => true,
            None | Some("false" | "0") => false,
            Some(other) => {
                let value = other.to_owned();
                self.warnings.push(Warning::CountsAsFalse {
                    variable: variable.env,
                    value,
                });
                false
            }
        }
    }

    pub(crate) fn address(&mut self, variable: &Variable) -> Option<String> {
        let value = self.text(variable)?;
        let looks_right = value
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        if !looks_right {
            let value = value.clone();
            self.warnings.push(Warning::NotAnAddress {
                variable: variable.env,
                value,
            });
        }
        Some(value)
    }

    /// The number of a variable of [`Kind::Number`]; within its range, whatever was given.
    pub(crate) fn number(&mut self, variable: &Variable) -> i64 {
        let Kind::Number(number) = variable.kind else {
            panic!("{} is no number in the table of variables", variable.env);
        };
        let Some(value) = self.text(variable) else {
            return number.default;
        };
        match parse_number(&value, number) {
            Ok(parsed) => parsed,
            Err(mistake) => {
                let (variable, allowed) = (variable.env, number.to_string());
                self.problem(match mistake {
                    Mistake::NotANumber => Problem::NotANumber {
                        variable,
                        value,
                        allowed,
                    },
                    Mistake::OutOfRange => Problem::OutOfRange {
                        variable,
                        value,
                        allowed,
                    },
                });
                number.default
            }
        }
    }

    /// The position of the word among those of a variable of [`Kind::Choice`].
    pub(crate) fn choice(&mut self, variable: &Variable) -> Option<usize> {
        let Kind::Choice(allowed) = variable.kind else {
            panic!("{} is no choice in the table of variables", variable.env);
        };
        let value = self.text(variable)?;
        let position = allowed.iter().position(|word| *word == value);
        if position.is_none() {
            self.problem(Problem::UnknownChoice {
                variable: variable.env,
                value,
                allowed,
            });
        }
        position
    }

    /// The positions of the listed names among those of a variable of [`Kind::List`], sorted and
    /// each once; `None` if unset. At least one name must be known, others give warnings.
    pub(crate) fn list(&mut self, variable: &Variable) -> Option<Vec<usize>> {
        let Kind::List(known) = variable.kind else {
            panic!("{} is no list in the table of variables", variable.env);
        };
        let value = self.text(variable)?;
        let (mut found, mut unknown) = (Vec::new(), Vec::new());
        for name in value
            .split([',', ':'])
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            match known.iter().position(|k| *k == name) {
                Some(position) => found.push(position),
                None => unknown.push(name.to_owned()),
            }
        }
        if found.is_empty() {
            self.problem(Problem::NothingKnown {
                variable: variable.env,
                value,
                known,
            });
            return None;
        }
        let variable = variable.env;
        self.warnings.extend(
            unknown
                .into_iter()
                .map(|name| Warning::SkippedName { variable, name }),
        );
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// The variable's value; an empty one counts as unset.
    fn raw(&self, variable: &Variable) -> Option<OsString> {
        (self.lookup)(variable.env).filter(|value| !value.is_empty())
    }

    fn problem(&mut self, problem: Problem) {
        let position = VARIABLES.iter().position(|v| v.env == problem.variable());
        self.problems
            .insert(position.unwrap_or(VARIABLES.len()), problem);
    }
}

#[derive(Debug, PartialEq)]
enum Mistake {
    NotANumber,
    OutOfRange,
}

fn parse_number(value: &str, number: Number) -> Result<i64, Mistake> {
    if number.unsigned && value.starts_with('+') {
        return Err(Mistake::NotANumber);
    }
    let parsed = match value.parse::<i64>() {
        Ok(parsed) => parsed,
        // a number all the same, and as far out as they come
        Err(e) if *e.kind() == IntErrorKind::PosOverflow => i64::MAX,
        Err(e) if *e.kind() == IntErrorKind::NegOverflow => i64::MIN,
        Err(_) => return Err(Mistake::NotANumber),
    };
    if parsed == 0 && number.zero_is_default {
        Ok(number.default)
    } else if (number.min..=number.max).contains(&parsed) {
        Ok(parsed)
    } else {
        Err(Mistake::OutOfRange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: Number = Number {
        min: -5,
        max: 5,
        default: 3,
        zero_is_default: true,
        unsigned: false,
    };

    #[test]
    fn signs_blanks_and_bases() {
        assert_eq!(parse_number("+5", SIGNED), Ok(5));
        assert_eq!(parse_number("-5", SIGNED), Ok(-5));
        assert_eq!(parse_number("0", SIGNED), Ok(3));
        let unsigned = Number {
            unsigned: true,
            ..SIGNED
        };
        assert_eq!(parse_number("5", unsigned), Ok(5));
        assert_eq!(parse_number("+5", unsigned), Err(Mistake::NotANumber));
        for text in [" 5", "5 ", "0x5", "1_0", "5.0", "-", "+", "five"] {
            assert_eq!(
                parse_number(text, SIGNED),
                Err(Mistake::NotANumber),
                "{text:?}"
            );
        }
    }

    #[test]
    fn numbers_beyond_64_bits_are_out_of_range_and_still_numbers() {
        assert_eq!(
            parse_number("99999999999999999999", SIGNED),
            Err(Mistake::OutOfRange)
        );
        assert_eq!(
            parse_number("-99999999999999999999", SIGNED),
            Err(Mistake::OutOfRange)
        );
    }
}
