//! What a run found, and the ways to print it: a table for people, JSON for machines, and the text
//! that Go's `benchstat` reads.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::baseline::{Fingerprint, Samples};
use super::compare::Judgement;
use super::{peers, stats};

/// Everything that a run found.
#[derive(Clone, Debug)]
pub struct Results {
    /// Where it was measured.
    pub fingerprint: Fingerprint,
    /// The commit measured.
    pub revision: String,
    /// What it was compared with, if it was.
    pub base: Option<String>,
    /// One row per benchmark, in the order in which they ran.
    pub rows: Vec<Row>,
    /// What to know before believing it.
    pub warnings: Vec<String>,
}

/// One benchmark.
#[derive(Clone, Debug)]
pub struct Row {
    /// `EXECUTABLE/BENCHMARK`.
    pub name: String,
    /// Nanoseconds per operation before, one per round.
    pub base: Vec<f64>,
    /// The same now.
    pub new: Vec<f64>,
    /// The verdict, where there is something on both sides.
    pub judgement: Option<Judgement>,
}

impl Results {
    /// The numbers of this run, to be kept.
    pub fn samples(&self) -> Samples {
        self.rows
            .iter()
            .filter(|row| !row.new.is_empty())
            .map(|row| (row.name.clone(), row.new.clone()))
            .collect()
    }

    /// The table.
    pub fn table(&self) -> String {
        let compared = self.base.is_some();
        let measured = self.rows.iter().filter(|row| !row.new.is_empty());
        let times = measured.map(|row| (row.name.as_str(), stats::median(&row.new)));
        let mut ratios = peers::ratios(&times.collect());
        let mut lines = vec![if compared {
            ["name", "base", "now", "change", "p", "n", ""].map(String::from)
        } else {
            let last = if ratios.is_empty() {
                ""
            } else {
                "held against"
            };
            ["name", "time", "", "", "", "n", last].map(String::from)
        }];
        for row in &self.rows {
            let time = |sample: &[f64]| match sample {
                [] => "-".to_owned(),
                sample => time_and_spread(sample),
            };
            if compared {
                let (change, p, word) = match &row.judgement {
                    Some(judgement) => (
                        percent(judgement.ratio.estimate - 1.0),
                        format!("{:.3}", judgement.p),
                        judgement.verdict.word(),
                    ),
                    None => (String::new(), String::new(), "only on one side"),
                };
                let n = format!("{}+{}", row.base.len(), row.new.len());
                let (base, new) = (time(&row.base), time(&row.new));
                lines.push([row.name.clone(), base, new, change, p, n, word.into()]);
            } else {
                let n = row.new.len().to_string();
                let empty = String::new;
                lines.push([
                    row.name.clone(),
                    time(&row.new),
                    empty(),
                    empty(),
                    empty(),
                    n,
                    ratios.remove(row.name.as_str()).unwrap_or_default(),
                ]);
            }
        }
        lines.push(self.means(compared));
        let mut text = aligned(&lines);
        let _ = writeln!(text, "\n{}", self.fingerprint.line());
        if let Some(base) = &self.base {
            let _ = writeln!(text, "base: {base}, now: {}", self.revision);
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        text
    }

    /// The last line of the table: geometric means over the rows that have both sides.
    fn means(&self, compared: bool) -> [String; 7] {
        let rows = || {
            let complete = |row: &&Row| !row.new.is_empty() && (!compared || !row.base.is_empty());
            self.rows.iter().filter(complete)
        };
        let mean = |sample: fn(&Row) -> &[f64]| {
            let medians: Vec<f64> = rows().map(|row| stats::median(sample(row))).collect();
            stats::geometric_mean(&medians)
        };
        let new = mean(|row| &row.new);
        let mut line = [const { String::new() }; 7];
        line[0] = "geometric mean".to_owned();
        if compared {
            let ratios: Vec<f64> = rows()
                .filter_map(|row| row.judgement.map(|judgement| judgement.ratio.estimate))
                .collect();
            line[1] = duration(mean(|row| &row.base));
            line[2] = duration(new);
            line[3] = percent(stats::geometric_mean(&ratios) - 1.0);
        } else {
            line[1] = duration(new);
        }
        line
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(row_json).collect();
        json!({
            "unit": "nanoseconds per operation",
            "fingerprint": self.fingerprint.to_json(),
            "revision": self.revision,
            "base": self.base,
            "warnings": self.warnings,
            "benchmarks": rows,
        })
    }

    /// The format of Go's benchmarks. Both sides are in it, told apart by the key `side`: compare
    /// them with `benchstat -col side FILE`.
    pub fn go(&self) -> String {
        let mut text = format!(
            "goos: {}\ngoarch: {}\npkg: benches\ncpu: {}\n",
            std::env::consts::OS,
            match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            },
            self.fingerprint.processor()
        );
        let mut side = |name: &str, sample: fn(&Row) -> &[f64]| {
            let _ = writeln!(text, "side: {name}");
            for row in &self.rows {
                for time in sample(row) {
                    let _ = writeln!(text, "{} 1 {time} ns/op", go_name(&row.name));
                }
            }
        };
        if self.base.is_some() {
            side("base", |row| &row.base);
        }
        side("now", |row| &row.new);
        text
    }
}

fn row_json(row: &Row) -> Value {
    let side = |sample: &[f64]| {
        if sample.is_empty() {
            return Value::Null;
        }
        json!({
            "median": stats::median(sample),
            "spread": stats::spread(sample),
            "samples": sample,
        })
    };
    let mut value = json!({
        "name": row.name,
        "base": side(&row.base),
        "now": side(&row.new),
    });
    if let Some(judgement) = &row.judgement {
        let high = judgement.ratio.high;
        value["change"] = json!(judgement.ratio.estimate - 1.0);
        value["change_interval"] = json!([
            judgement.ratio.low - 1.0,
            // JSON has no infinity.
            high.is_finite().then_some(high - 1.0),
        ]);
        value["p"] = json!(judgement.p);
        value["verdict"] = json!(format!("{:?}", judgement.verdict).to_lowercase());
    }
    value
}

/// `Benchmark`, the name in the form of Go's, without blanks.
fn go_name(name: &str) -> String {
    let mut text = "Benchmark".to_owned();
    let mut capital = true;
    for character in name.chars() {
        match character {
            ' ' | '_' => capital = true,
            '/' => {
                text.push('/');
                capital = false;
            }
            character if capital => {
                text.extend(character.to_uppercase());
                capital = false;
            }
            character => text.push(character),
        }
    }
    text
}

/// Columns, the first to the left, the others to the right but the last.
fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| {
        let widths = lines.iter().map(|line| line[column].chars().count());
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            if width == 0 {
                continue;
            }
            if column > 0 {
                row.push_str("  ");
            }
            if column == 0 || column == N - 1 {
                let _ = write!(row, "{cell:width$}");
            } else {
                let _ = write!(row, "{cell:>width$}");
            }
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// The median and the spread of a sample.
pub fn time_and_spread(sample: &[f64]) -> String {
    let time = duration(stats::median(sample));
    let spread = 100.0 * stats::spread(sample);
    if spread < 1000.0 {
        format!("{time} ± {spread:.0} %")
    } else {
        // A number that is no use; that it is large is.
        format!("{time} ± >999 %")
    }
}

/// Nanoseconds for people, with three digits that count.
pub fn duration(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "us"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = match value {
        v if v < 10.0 => 2,
        v if v < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

/// A share as percent, always with a sign.
pub fn percent(share: f64) -> String {
    format!("{:+.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::super::compare::{Pair, judge};
    use super::*;

    fn results(compared: bool) -> Results {
        let row = |name: &str, factor: f64| {
            let new: Vec<f64> = (0..12).map(|i| factor * (100.0 + f64::from(i))).collect();
            let base: Vec<f64> = (0..12).map(|i| 100.0 + f64::from(i)).collect();
            let pair = Pair {
                base: base.clone(),
                new: new.clone(),
            };
            Row {
                name: name.to_owned(),
                base: if compared { base } else { Vec::new() },
                new,
                judgement: compared.then(|| judge(&[pair], 0.1)[0]),
            }
        };
        let mut rows = vec![
            row("router/router_noop", 1.0),
            row("router/router_fanout/spin/4", 20.0),
        ];
        if compared {
            rows.push(Row {
                name: "router/new_one".to_owned(),
                base: Vec::new(),
                new: vec![1.0],
                judgement: None,
            });
        }
        Results {
            fingerprint: Fingerprint::here().unwrap(),
            revision: "abc".to_owned(),
            base: compared.then(|| "base".to_owned()),
            rows,
            warnings: vec!["it rained".to_owned()],
        }
    }

    #[test]
    fn the_table_tells_medians_changes_and_verdicts() {
        let table = results(true).table();
        let line = |start: &str| table.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(
            line("router/router_noop").contains("106 ns ± 3 %"),
            "{table}"
        );
        let changed = line("router/router_fanout/spin/4");
        assert!(
            changed.contains("+1900.0 %") && changed.ends_with("slower"),
            "{table}"
        );
        assert!(
            changed.contains("0.000") && changed.contains("12+12"),
            "{table}"
        );
        assert!(
            line("router/new_one").ends_with("only on one side"),
            "{table}"
        );
        assert!(line("geometric mean").contains("+347.2 %"), "{table}");
        assert!(table.contains("warning: it rained"), "{table}");
    }

    #[test]
    fn the_table_of_one_side_has_no_changes() {
        let table = results(false).table();
        assert!(
            !table.contains("change") && table.contains("2.11 us"),
            "{table}"
        );
    }

    #[test]
    fn machines_get_all_samples() {
        let json = results(true).json();
        assert_eq!(json["benchmarks"][1]["verdict"], "slower");
        assert_eq!(
            json["benchmarks"][1]["now"]["samples"]
                .as_array()
                .unwrap()
                .len(),
            12
        );
        assert!(json["benchmarks"][2]["base"].is_null());
    }

    #[test]
    fn benchstat_gets_its_lines() {
        let text = results(true).go();
        assert!(text.starts_with("goos: "), "{text}");
        let lines: Vec<_> = text.lines().collect();
        let base = lines.iter().position(|line| *line == "side: base").unwrap();
        let now = lines.iter().position(|line| *line == "side: now").unwrap();
        assert_eq!(now - base, 25);
        assert_eq!(lines[base + 1], "BenchmarkRouter/routerNoop 1 100 ns/op");
        let one_side = results(false).go();
        assert!(!one_side.contains("side: base"), "{one_side}");
    }

    #[test]
    fn units_for_people() {
        assert_eq!(duration(3.456), "3.46 ns");
        assert_eq!(duration(41.0), "41.0 ns");
        assert_eq!(duration(1300.0), "1.30 us");
        assert_eq!(duration(2.5e9), "2.50 s");
        assert_eq!(percent(0.1234), "+12.3 %");
        assert_eq!(percent(-0.5), "-50.0 %");
    }
}
