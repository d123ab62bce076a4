//! The start-up report: which variables the router reads, as a table on stderr before the first
//! log line.
//!
//! Values are never shown: some name files with keys in them, and the report ends up in
//! everybody's log.

use std::fmt::Write as _;

use config::VARIABLES;

const HEADINGS: [&str; 5] = ["FIELD NAME:", "TYPE:", "ENV:", "REQUIRED:", "VALUE:"];

/// Between two columns.
const GAP: usize = 2;

/// The report, with a newline behind each row.
///
/// # Examples
///
/// ```
/// let report = server::report::table();
/// assert!(report.starts_with("FIELD NAME:"));
/// assert_eq!(report.lines().count(), 1 + config::VARIABLES.len());
/// ```
pub fn table() -> String {
    let rows: Vec<[String; 5]> = std::iter::once(HEADINGS.map(str::to_owned))
        .chain(VARIABLES.iter().map(|variable| {
            [
                variable.name.to_owned(),
                variable.kind.to_string(),
                variable.env.to_owned(),
                variable.required.to_string(),
                "(OMITTED)".to_owned(),
            ]
        }))
        .collect();
    let widths: [usize; 5] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].len()).max().unwrap_or(0) + GAP
    });

    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            write!(line, "{cell:width$}").expect("writing to a string does not fail");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}
