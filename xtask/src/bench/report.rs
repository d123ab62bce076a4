//! The report: one HTML page with the table, the sweeps as curves and the changes as bars.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::chart::{self, Change, Lines, Series, escape};
use super::compare::Verdict;
use super::results::{Results, Row, duration, percent, time_and_spread};
use super::stats;

/// The page. It needs nothing but itself.
pub fn html(results: &Results) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Benchmarks</title>\n\
         <style>\n{PAGE_STYLE}{}</style>\n<h1>Benchmarks</h1>\n",
        chart::STYLE
    );
    let _ = writeln!(page, "<p>{}</p>", escape(&results.fingerprint.line()));
    let _ = match &results.base {
        Some(base) => writeln!(
            page,
            "<p>Commit {} against {}; dashed lines are the latter.</p>",
            escape(&results.revision),
            escape(base)
        ),
        None => writeln!(page, "<p>Commit {}.</p>", escape(&results.revision)),
    };
    for warning in &results.warnings {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(warning));
    }
    let bars = change_bars(&results.rows);
    if !bars.is_empty() {
        page.push_str("<h2>Change of time per operation</h2>\n");
        page.push_str("<p>Thin lines are 99 % intervals of confidence.</p>\n");
        page.push_str(&chart::changes(&bars));
    }
    for (title, lines) in sweeps(&results.rows) {
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<p>{}</p>",
            escape(&title),
            escape(&lines.y)
        );
        page.push_str(&lines.svg());
    }
    page.push_str("<h2>All of it</h2>\n");
    page.push_str(&table(results));
    page.push_str("</html>\n");
    page
}

const PAGE_STYLE: &str = "\
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 0.15em 0.8em; text-align: right; border-bottom: 1px solid #8884; }
td:first-child, th:first-child, td:last-child { text-align: left; }
.warning { border-left: 4px solid #d8443b; padding-left: 0.8em; }
";

fn change_bars(rows: &[Row]) -> Vec<Change> {
    rows.iter()
        .filter_map(|row| {
            let judgement = row.judgement?;
            Some(Change {
                name: row.name.clone(),
                change: judgement.ratio.estimate - 1.0,
                interval: (judgement.ratio.low - 1.0, judgement.ratio.high - 1.0),
                class: match judgement.verdict {
                    Verdict::Slower => "slower",
                    Verdict::Faster => "faster",
                    _ => "same",
                },
            })
        })
        .collect()
}

/// A point of a curve.
#[derive(Clone, Copy, Debug)]
struct Point {
    x: f64,
    base: Option<f64>,
    now: Option<f64>,
}

/// Benchmarks whose names end in a number are points of a curve; curves whose names are the same up
/// to their last part share a chart.
fn sweeps(rows: &[Row]) -> Vec<(String, Lines)> {
    let mut curves: BTreeMap<&str, Vec<Point>> = BTreeMap::new();
    for row in rows {
        let Some((curve, last)) = row.name.rsplit_once('/') else {
            continue;
        };
        if let Ok(x) = last.replace('_', "").parse::<f64>() {
            let time = |sample: &[f64]| (!sample.is_empty()).then(|| stats::median(sample));
            let point = Point {
                x,
                base: time(&row.base),
                now: time(&row.new),
            };
            curves.entry(curve).or_default().push(point);
        }
    }
    let mut charts: BTreeMap<&str, Vec<(&str, Vec<Point>)>> = BTreeMap::new();
    for (curve, mut points) in curves {
        points.retain(|point| point.x > 0.0);
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        if points.len() > 1 {
            // With the executable's name alone left there is no name to share.
            let (chart, name) = match curve.rsplit_once('/') {
                Some((chart, name)) if chart.contains('/') => (chart, name),
                _ => (curve, "now"),
            };
            charts.entry(chart).or_default().push((name, points));
        }
    }
    charts
        .into_iter()
        .map(|(title, curves)| (title.to_owned(), chart_of(title, curves)))
        .collect()
}

fn chart_of(title: &str, curves: Vec<(&str, Vec<Point>)>) -> Lines {
    let workers = ["fanout", "parallel", "workers", "threads", "writers"]
        .iter()
        .any(|word| title.contains(word));
    let value = |time: f64| if workers { 1e9 / time } else { time };
    let mut series = Vec::new();
    for (colour, (name, points)) in curves.into_iter().enumerate() {
        let line = |pick: fn(&Point) -> Option<f64>| {
            let at = |point: &Point| Some((point.x, value(pick(point)?)));
            points.iter().filter_map(at).collect::<Vec<_>>()
        };
        let (base, now) = (line(|point| point.base), line(|point| point.now));
        if !base.is_empty() {
            series.push(Series {
                name: format!("{name}, base"),
                dashed: true,
                colour,
                points: base,
            });
        }
        if !now.is_empty() {
            series.push(Series {
                name: name.to_owned(),
                dashed: false,
                colour,
                points: now,
            });
        }
    }
    Lines {
        x: if workers { "workers" } else { "size" }.to_owned(),
        y: if workers {
            "Operations per second"
        } else {
            "Time per operation"
        }
        .to_owned(),
        label: if workers { rate } else { duration },
        series,
    }
}

/// Operations per second for people.
fn rate(per_second: f64) -> String {
    match per_second {
        r if r >= 1e6 => format!("{:.1} M/s", r / 1e6),
        r if r >= 1e3 => format!("{:.0} k/s", r / 1e3),
        r => format!("{r:.0} /s"),
    }
}

fn table(results: &Results) -> String {
    let mut html = String::from("<table>\n");
    let compared = results.base.is_some();
    html.push_str(if compared {
        "<tr><th>name<th>base<th>now<th>change<th>p<th>n<th>\n"
    } else {
        "<tr><th>name<th>time<th>n\n"
    });
    for row in &results.rows {
        let time = |sample: &[f64]| match sample {
            [] => "–".to_owned(),
            sample => time_and_spread(sample),
        };
        let name = escape(&row.name);
        let (base, new) = (time(&row.base), time(&row.new));
        let (n_base, n) = (row.base.len(), row.new.len());
        let _ = match (compared, &row.judgement) {
            (false, _) => writeln!(html, "<tr><td>{name}<td>{new}<td>{n}"),
            (true, None) => writeln!(
                html,
                "<tr><td>{name}<td>{base}<td>{new}<td><td><td>{n_base}+{n}<td>"
            ),
            (true, Some(judgement)) => writeln!(
                html,
                "<tr><td>{name}<td>{base}<td>{new}<td>{}<td>{:.3}<td>{n_base}+{n}<td>{}",
                percent(judgement.ratio.estimate - 1.0),
                judgement.p,
                judgement.verdict.word()
            ),
        };
    }
    html + "</table>\n"
}

#[cfg(test)]
mod tests {
    use super::super::baseline::Fingerprint;
    use super::super::compare::{Pair, judge};
    use super::*;

    fn row(name: &str, middle: f64, compared: bool) -> Row {
        let new: Vec<f64> = (0..12).map(|i| middle + f64::from(i)).collect();
        let base = if compared { new.clone() } else { Vec::new() };
        let pair = Pair {
            base: base.clone(),
            new: new.clone(),
        };
        Row {
            name: name.to_owned(),
            judgement: compared.then(|| judge(&[pair], 0.1)[0]),
            base,
            new,
        }
    }

    fn results(compared: bool) -> Results {
        Results {
            fingerprint: Fingerprint::here().unwrap(),
            revision: "abc".into(),
            base: compared.then(|| "baseline <x>".into()),
            rows: vec![
                row("router/router_noop", 40.0, compared),
                row("router/router_fanout/spin/1", 5000.0, compared),
                row("router/router_fanout/spin/2", 2500.0, compared),
                row("router/router_fanout/noop/1", 300.0, compared),
                row("router/router_fanout/noop/2", 350.0, compared),
                row("pubsub/subscribe/1000", 900.0, compared),
                row("pubsub/subscribe/100000", 1300.0, compared),
                row("pubsub/alone/7", 10.0, compared),
            ],
            warnings: Vec::new(),
        }
    }

    #[test]
    fn sweeps_are_found_by_their_names() {
        let results = results(true);
        let sweeps = sweeps(&results.rows);
        let titles: Vec<_> = sweeps.iter().map(|(title, _)| title.as_str()).collect();
        assert_eq!(titles, ["pubsub/subscribe", "router/router_fanout"]);
        let fanout = &sweeps[1].1;
        let names: Vec<_> = fanout.series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["noop, base", "noop", "spin, base", "spin"]);
        assert_eq!(fanout.x, "workers");
        // Throughput: half the time is twice as much.
        let spin = &fanout.series[3].points;
        assert!(spin[1].1 > 1.9 * spin[0].1);
    }

    #[test]
    fn the_page_is_complete_and_escaped() {
        let page = html(&results(true));
        assert!(page.contains("baseline &lt;x&gt;") && !page.contains("<x>"));
        assert_eq!(page.matches("<svg").count(), 3);
        assert!(page.ends_with("</html>\n"));
        let alone = html(&results(false));
        assert_eq!(alone.matches("<svg").count(), 2);
        assert!(!alone.contains("base"), "{alone}");
    }
}
