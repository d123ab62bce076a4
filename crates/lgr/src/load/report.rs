//! The report of a load run: as a table for people, as JSON for programs.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::process::Usage;

/// What a run found out.
#[derive(Debug)]
pub(crate) struct Report {
    /// The measured time: warm-up and drain are not in it.
    pub(crate) window: Duration,
    /// Envelopes sent and received within it.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Envelopes and messages sent in the whole run.
    pub(crate) sent_total: u64,
    pub(crate) messages_total: u64,
    /// Envelopes per second that were asked for; `None` as fast as it goes.
    pub(crate) rate: Option<f64>,
    pub(crate) groups: Vec<GroupReport>,
    /// Nanoseconds, of all subscribers that read at once.
    pub(crate) latency: Histogram<u64>,
    pub(crate) churned: Option<u64>,
    pub(crate) router: Option<ProcessReport>,
    pub(crate) tool: Option<ProcessReport>,
    /// Ended by the user before its time.
    pub(crate) interrupted: bool,
}

/// A group of subscribers. All counts are those of the whole run.
#[derive(Debug)]
pub(crate) struct GroupReport {
    pub(crate) text: String,
    pub(crate) subscribers: u32,
    /// Whether they read at once: the others lose by intent.
    pub(crate) prompt: bool,
    pub(crate) messages: u64,
    /// One for each subscriber, or for all members of a shard together.
    pub(crate) ledgers: Vec<LedgerReport>,
    pub(crate) latency: Histogram<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LedgerReport {
    pub(crate) expected: u64,
    pub(crate) received: u64,
    pub(crate) duplicated: u64,
    /// Not known of a shard, whose members overtake each other.
    pub(crate) out_of_order: Option<u64>,
    pub(crate) unexpected: u64,
    pub(crate) foreign: u64,
}

impl LedgerReport {
    pub(crate) fn lost(&self) -> u64 {
        self.expected.saturating_sub(self.received)
    }

    fn json(&self) -> Value {
        json!({
            "expected": self.expected,
            "received": self.received,
            "lost": self.lost(),
            "duplicated": self.duplicated,
            "out_of_order": self.out_of_order,
            "unexpected": self.unexpected,
            "foreign": self.foreign,
        })
    }
}

impl std::iter::Sum for LedgerReport {
    fn sum<I: Iterator<Item = Self>>(reports: I) -> Self {
        reports.fold(Self::default(), |sum, report| Self {
            expected: sum.expected + report.expected,
            received: sum.received + report.received,
            duplicated: sum.duplicated + report.duplicated,
            out_of_order: match (sum.out_of_order, report.out_of_order) {
                (Some(sum), Some(report)) => Some(sum + report),
                (sum, report) => sum.or(report),
            },
            unexpected: sum.unexpected + report.unexpected,
            foreign: sum.foreign + report.foreign,
        })
    }
}

/// What a process used within the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessReport {
    pub(crate) pid: u32,
    pub(crate) before: Usage,
    pub(crate) after: Usage,
}

impl ProcessReport {
    fn cpu(&self) -> u64 {
        self.after.cpu.saturating_sub(self.before.cpu)
    }

    /// Microseconds of processor time for each of `envelopes`.
    fn cpu_per(&self, envelopes: u64) -> f64 {
        self.cpu() as f64 / envelopes.max(1) as f64
    }

    /// Times per second that threads waited, and that they were interrupted.
    fn switches(&self, window: Duration) -> (f64, f64) {
        let per_second = |before, after: u64| {
            after.saturating_sub(before) as f64 / window.as_secs_f64().max(1e-9)
        };
        (
            per_second(self.before.voluntary, self.after.voluntary),
            per_second(self.before.involuntary, self.after.involuntary),
        )
    }

    fn json(&self, envelopes: u64, window: Duration) -> Value {
        let (voluntary, involuntary) = self.switches(window);
        json!({
            "pid": self.pid,
            "cpu_us_per_envelope": rounded(self.cpu_per(envelopes), 4),
            "cpu_percent": rounded(self.percent(window), 1),
            "resident_kib": self.after.resident,
            "voluntary_switches_per_second": rounded(voluntary, 1),
            "involuntary_switches_per_second": rounded(involuntary, 1),
            "threads": self.after.threads,
        })
    }

    fn percent(&self, window: Duration) -> f64 {
        self.cpu() as f64 / window.as_secs_f64().max(1e-9) / 1e4
    }

    fn line(&self, name: &str, envelopes: u64, window: Duration) -> String {
        let (voluntary, involuntary) = self.switches(window);
        format!(
            "{name}: {:.3} us CPU per envelope sent, {:.1} % of a core; {:.1} MiB resident; \
             {voluntary:.0} + {involuntary:.0} context switches/s (waiting + interrupted)",
            self.cpu_per(envelopes),
            self.percent(window),
            self.after.resident as f64 / 1024.0,
        )
    }
}

impl Report {
    pub(crate) fn sent_per_second(&self) -> f64 {
        self.sent as f64 / self.window.as_secs_f64().max(1e-9)
    }

    fn received_per_second(&self) -> f64 {
        self.received as f64 / self.window.as_secs_f64().max(1e-9)
    }

    /// The part of the rate that was not reached, if it was asked for one and more than 1 % is
    /// missing.
    pub(crate) fn shortfall(&self) -> Option<f64> {
        let shortfall = 1.0 - self.sent_per_second() / self.rate?;
        (shortfall > 0.01).then_some(shortfall)
    }

    pub(crate) fn json(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|group| {
                let mut object = group.ledgers.iter().copied().sum::<LedgerReport>().json();
                object["subscribers"] = json!(group.text);
                object["count"] = json!(group.subscribers);
                object["prompt"] = json!(group.prompt);
                object["messages"] = json!(group.messages);
                object["latency_us"] = latency_json(&group.latency);
                let each: Vec<Value> = group.ledgers.iter().map(LedgerReport::json).collect();
                object["each"] = json!(each);
                object
            })
            .collect();
        let process = |report: &Option<ProcessReport>| {
            report
                .as_ref()
                .map(|report| report.json(self.sent, self.window))
        };
        json!({
            "seconds": rounded(self.window.as_secs_f64(), 3),
            "sent": self.sent,
            "received": self.received,
            "sent_per_second": rounded(self.sent_per_second(), 1),
            "received_per_second": rounded(self.received_per_second(), 1),
            "rate": self.rate,
            "shortfall": self.shortfall().map(|shortfall| rounded(shortfall, 4)),
            "sent_total": self.sent_total,
            "messages_total": self.messages_total,
            "lost": self.lost(),
            "duplicated": self.prompt().map(|ledger| ledger.duplicated).sum::<u64>(),
            "latency_us": latency_json(&self.latency),
            "groups": groups,
            "churned": self.churned,
            "router": process(&self.router),
            "tool": process(&self.tool),
            "interrupted": self.interrupted,
        })
    }

    fn prompt(&self) -> impl Iterator<Item = &LedgerReport> {
        self.groups
            .iter()
            .filter(|group| group.prompt)
            .flat_map(|group| &group.ledgers)
    }

    /// Whether those who read at once did not get exactly what they had to.
    pub(crate) fn is_flawed(&self) -> bool {
        self.lost() > 0
            || self
                .prompt()
                .any(|ledger| ledger.duplicated > 0 || ledger.unexpected > 0)
    }

    /// Lost by those who read at once.
    pub(crate) fn lost(&self) -> u64 {
        self.prompt().map(LedgerReport::lost).sum()
    }
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)];

fn latency_json(latency: &Histogram<u64>) -> Value {
    if latency.is_empty() {
        return Value::Null;
    }
    let microseconds = |nanoseconds: u64| rounded(nanoseconds as f64 / 1e3, 1);
    let mut object = json!({ "max": microseconds(latency.max()), "count": latency.len() });
    for (name, quantile) in QUANTILES {
        object[name] = json!(microseconds(latency.value_at_quantile(quantile)));
    }
    object
}

/// p50, p90, p99 and max.
fn latency_columns(latency: &Histogram<u64>) -> [String; 4] {
    if latency.is_empty() {
        return [const { String::new() }; 4].map(|_| "-".to_owned());
    }
    let [p50, p90, p99] = QUANTILES.map(|(_, quantile)| latency.value_at_quantile(quantile));
    [p50, p90, p99, latency.max()].map(|nanoseconds| time(Duration::from_nanos(nanoseconds)))
}

/// Three digits, in the unit that suits.
fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    match value {
        v if v < 10.0 => format!("{v:.2} {unit}"),
        v if v < 100.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

/// A number with separators.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: f64| grouped(rate.round() as u64);
        writeln!(
            f,
            "sent {} envelopes in {:.1} s: {}/s; received {}: {}/s",
            grouped(self.sent),
            self.window.as_secs_f64(),
            rate(self.sent_per_second()),
            grouped(self.received),
            rate(self.received_per_second()),
        )?;
        if let (Some(shortfall), Some(asked)) = (self.shortfall(), self.rate) {
            writeln!(
                f,
                "the rate was not kept: {:.1} % below {}/s; either this tool or the router is too slow",
                shortfall * 100.0,
                rate(asked),
            )?;
        }
        if let Some(churned) = self.churned {
            writeln!(
                f,
                "subscribed and unsubscribed {} times on the side",
                grouped(churned)
            )?;
        }
        for (name, process) in [("router", &self.router), ("this tool", &self.tool)] {
            if let Some(process) = process {
                writeln!(f, "{}", process.line(name, self.sent, self.window))?;
            }
        }
        let heading =
            "subscribers,expected,received,lost,lost %,dup.,disorder,worst,p50,p90,p99,max";
        let mut table = vec![heading.split(',').map(str::to_owned).collect::<Vec<_>>()];
        table.extend(self.groups.iter().map(GroupReport::row));
        writeln!(f)?;
        write_table(f, &table)?;
        let sum: LedgerReport = self
            .groups
            .iter()
            .flat_map(|group| group.ledgers.iter().copied())
            .sum();
        if sum.unexpected > 0 {
            let unexpected = grouped(sum.unexpected);
            writeln!(
                f,
                "{unexpected} envelopes arrived that the selectors don't match"
            )?;
        }
        if sum.foreign > 0 {
            writeln!(
                f,
                "{} envelopes of others arrived, too",
                grouped(sum.foreign)
            )?;
        }
        if self.interrupted {
            writeln!(f, "interrupted: this is the report so far")?;
        }
        Ok(())
    }
}

impl GroupReport {
    fn row(&self) -> Vec<String> {
        let sum: LedgerReport = self.ledgers.iter().copied().sum();
        let worst = self
            .ledgers
            .iter()
            .map(LedgerReport::lost)
            .max()
            .unwrap_or(0);
        let percent = 100.0 * sum.lost() as f64 / sum.expected.max(1) as f64;
        let mut row = vec![
            self.text.clone(),
            grouped(sum.expected),
            grouped(sum.received),
            grouped(sum.lost()),
            format!("{percent:.2}"),
            grouped(sum.duplicated),
            sum.out_of_order.map_or_else(|| "-".to_owned(), grouped),
            grouped(worst),
        ];
        row.extend(latency_columns(&self.latency));
        row
    }
}

/// The first column to the left, all others to the right.
fn write_table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>]) -> fmt::Result {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        write!(f, "{:<1$}", row[0], widths[0])?;
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            write!(f, "  {cell:>width$}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::subscriber::histogram;

    fn report() -> Report {
        let mut latency = histogram();
        latency.record_n(50_000, 90).unwrap();
        latency.record_n(2_000_000, 10).unwrap();
        let ledger = LedgerReport {
            expected: 1000,
            received: 990,
            duplicated: 2,
            out_of_order: Some(0),
            ..Default::default()
        };
        let group = GroupReport {
            text: "2xfirehose".to_owned(),
            subscribers: 2,
            prompt: true,
            messages: 20,
            ledgers: vec![
                ledger,
                LedgerReport {
                    expected: 1000,
                    received: 1000,
                    ..ledger
                },
            ],
            latency: latency.clone(),
        };
        let stalled = GroupReport {
            text: "firehose:stalled".to_owned(),
            subscribers: 1,
            prompt: false,
            messages: 0,
            ledgers: vec![LedgerReport {
                expected: 1000,
                out_of_order: Some(0),
                ..Default::default()
            }],
            latency: histogram(),
        };
        Report {
            window: Duration::from_secs(2),
            sent: 100_000,
            received: 199_000,
            sent_total: 1000,
            messages_total: 10,
            rate: Some(100_000.0),
            groups: vec![group, stalled],
            latency,
            churned: Some(7),
            router: Some(ProcessReport {
                pid: 1,
                before: Usage {
                    cpu: 10_000,
                    voluntary: 5,
                    ..Usage::default()
                },
                after: Usage {
                    cpu: 60_000,
                    voluntary: 105,
                    resident: 20_480,
                    involuntary: 4,
                    threads: 3,
                },
            }),
            tool: None,
            interrupted: false,
        }
    }

    #[test]
    fn the_table() {
        let expected = "\
sent 100,000 envelopes in 2.0 s: 50,000/s; received 199,000: 99,500/s
the rate was not kept: 50.0 % below 100,000/s; either this tool or the router is too slow
subscribed and unsubscribed 7 times on the side
router: 0.500 us CPU per envelope sent, 2.5 % of a core; 20.0 MiB resident; 50 + 2 context switches/s (waiting + interrupted)

subscribers       expected  received   lost  lost %  dup.  disorder  worst      p50      p90      p99      max
2xfirehose           2,000     1,990     10    0.50     4         0     10  50.0 us  50.0 us  2.00 ms  2.00 ms
firehose:stalled     1,000         0  1,000  100.00     0         0  1,000        -        -        -        -
";
        assert_eq!(report().to_string(), expected);
    }

    #[test]
    fn the_json() {
        let json = report().json();
        assert_eq!(json["lost"], 10, "the stalled one's loss is no loss");
        assert_eq!(json["duplicated"], 4);
        assert_eq!(json["shortfall"], 0.5);
        assert_eq!(json["router"]["cpu_us_per_envelope"], 0.5);
        assert_eq!(json["router"]["resident_kib"], 20_480);
        assert_eq!(json["groups"][0]["lost"], 10);
        assert_eq!(json["groups"][0]["each"][1]["lost"], 0);
        assert_eq!(json["groups"][1]["prompt"], false);
        assert_eq!(json["groups"][1]["latency_us"], Value::Null);
        assert_eq!(json["latency_us"]["p50"], 50.0);
        assert_eq!(json["tool"], Value::Null);
    }

    #[test]
    fn a_rate_that_was_kept_is_not_mentioned() {
        let mut report = report();
        report.rate = Some(50_300.0);
        assert_eq!(report.shortfall(), None);
        report.rate = None;
        assert_eq!(report.shortfall(), None);
    }

    #[test]
    fn numbers() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
