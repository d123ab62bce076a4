//! What can be wrong with the environment: [`Problem`]s, which end in an [`Error`], and
//! [`Warning`]s, which do not.

use std::fmt;

/// All mistakes found in the environment; never empty.
///
/// Displayed it is one line with the problems joined by semicolons; a caller that prefers a line
/// each iterates over [`problems`](Error::problems).
///
/// ```
/// let error = config::Settings::read(|name| match name {
///     "ROUTER_PORT" => Some("70000"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" => Some("file.pem"),
///     _ => None,
/// })
/// .unwrap_err();
/// let lines: Vec<String> = error.problems().iter().map(|p| p.to_string()).collect();
/// assert_eq!(
///     lines,
///     [
///         "ROUTER_PORT is 70000: allowed is 0 to 65535",
///         "ROUTER_KEY_FILE is not set: the private key of that certificate, PEM",
///     ]
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    problems: Vec<Problem>,
}

impl Error {
    /// `problems` must hold at least one.
    pub(crate) fn new(problems: Vec<Problem>) -> Error {
        debug_assert!(!problems.is_empty());
        Error { problems }
    }

    /// The mistakes, in the order of the table of variables.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// One mistake in the environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A required variable is unset or empty.
    #[error("{variable} is not set: {doc}")]
    Missing {
        /// The variable's name.
        variable: &'static str,
        /// What it should hold.
        doc: &'static str,
    },

    /// A value that must be a whole number is something else.
    #[error("{variable} is {value:?}, which is not a whole number: allowed is {allowed}")]
    NotANumber {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed range, in words.
        allowed: String,
    },

    /// A number beyond the allowed range.
    #[error("{variable} is {value}: allowed is {allowed}")]
    OutOfRange {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed range, in words.
        allowed: String,
    },

    /// A word that is none of the allowed ones.
    #[error("{variable} is {value:?}: allowed is {}", choices(allowed))]
    UnknownChoice {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The allowed words.
        allowed: &'static [&'static str],
    },

    /// A list in which no entry is known.
    #[error(
        "{variable} is {value:?}, which names nothing known: allowed is {}",
        choices(known)
    )]
    NothingKnown {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The names that are known.
        known: &'static [&'static str],
    },

    /// A value that is not text.
    #[error("{variable} is not valid UTF-8: {value:?}")]
    NotUtf8 {
        /// The variable's name.
        variable: &'static str,
        /// Its value, with replacement characters.
        value: String,
    },
}

impl Problem {
    /// The name of the variable that is wrong.
    pub fn variable(&self) -> &'static str {
        match self {
            Problem::Missing { variable, .. }
            | Problem::NotANumber { variable, .. }
            | Problem::OutOfRange { variable, .. }
            | Problem::UnknownChoice { variable, .. }
            | Problem::NothingKnown { variable, .. }
            | Problem::NotUtf8 { variable, .. } => variable,
        }
    }
}

/// Something that was accepted, as the reference does, but is probably not what was meant.
///
/// ```
/// let settings = config::Settings::read(|name| match name {
///     "ROUTER_FANOUT_WRITER_ENABLED" => Some("TRUE"),
///     "ROUTER_CA_FILE" | "ROUTER_CERT_FILE" | "ROUTER_KEY_FILE" => Some("file.pem"),
///     _ => None,
/// })?;
/// assert_eq!(
///     settings.warnings[0].to_string(),
///     "ROUTER_FANOUT_WRITER_ENABLED is \"TRUE\", which counts as false: only true and 1 are true",
/// );
/// # Ok::<(), config::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A list has an entry that is not known; it was skipped.
    #[error("{variable}: {name:?} is not known and was skipped")]
    SkippedName {
        /// The variable's name.
        variable: &'static str,
        /// The entry.
        name: String,
    },

    /// A boolean that is neither `true`, `1`, `false` nor `0`.
    #[error("{variable} is {value:?}, which counts as false: only true and 1 are true")]
    CountsAsFalse {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
    },

    /// An address that does not look like `host:port`.
    #[error("{variable} is {value:?}, which is not host:port: nothing will be reached there")]
    NotAnAddress {
        /// The variable's name.
        variable: &'static str,
        /// Its value.
        value: String,
    },
}

fn choices(allowed: &[&str]) -> String {
    allowed.join(" or ")
}
