//! `cargo xtask loadtest`: what an envelope costs, end to end.
//!
//! For each row of the goal table it starts a router with throw-away certificates, lets `lgr load`
//! drive it, and reads what the router's process used. Envelopes are numbered, so that "no loss" is
//! known and not assumed. With `--router PATH` every row is also run against that executable, in
//! turn, and the table shows the ratio: on a shared machine only that is worth comparing.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cargo::{self, Profile};
use crate::instance::{Router, make_certificates};
use crate::process::Group;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Run only the rows whose name contains one of these
    #[arg(value_name = "ROW")]
    rows: Vec<String>,
    /// List the rows and their goals
    #[arg(long)]
    list: bool,
    /// Run each row so many times; the median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Measure for so many seconds a run
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Run the same rows against this router, too, in turn
    #[arg(long, value_name = "PATH")]
    router: Option<PathBuf>,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit code 1 if a goal is missed
    #[arg(long)]
    strict: bool,
    /// Run the curves instead (how cost grows with rate, subscribers, sources, payload, producers,
    /// workers and threads), or those whose name contains a ROW, and print them as Markdown
    #[arg(long)]
    curves: bool,
}

/// A workload and what it may cost.
struct Row {
    name: &'static str,
    /// Arguments of `lgr load`.
    load: &'static str,
    /// CPU microseconds of the router per envelope, at most.
    cost: Option<f64>,
    /// Envelopes per second, at least.
    throughput: Option<f64>,
    /// Loss in percent, at most.
    loss: f64,
    /// Added latency in microseconds, at most: the median and the 99th percentile.
    latency: Option<(f64, f64)>,
}

const ROWS: &[Row] = &[
    Row {
        name: "50k",
        load: "--producers 2 --rate 50k",
        cost: Some(0.6),
        throughput: None,
        loss: 0.0,
        latency: None,
    },
    Row {
        name: "200k",
        load: "--producers 2 --rate 200k",
        cost: Some(0.5),
        throughput: None,
        loss: 0.0,
        latency: None,
    },
    Row {
        name: "400k",
        load: "--producers 2 --rate 400k",
        cost: Some(0.4),
        throughput: None,
        loss: 0.0,
        latency: None,
    },
    Row {
        name: "flat-out",
        load: "--producers 2",
        cost: None,
        throughput: Some(1_200_000.0),
        loss: 1.0,
        latency: None,
    },
    Row {
        name: "10-subscribers",
        load: "--producers 2 --rate 20k --subscribe 10xfirehose",
        cost: Some(2.5),
        throughput: None,
        loss: 0.0,
        latency: None,
    },
    Row {
        name: "single-envelopes",
        load: "--producers 2 --rate 20k --batch 1 --burst 1ms",
        cost: Some(2.5),
        throughput: None,
        loss: 0.0,
        latency: None,
    },
    Row {
        // each envelope wakes the router on its own: the price of a wake-up, whatever is in it
        name: "single-evenly",
        load: "--producers 2 --rate 20k --batch 1",
        cost: None,
        throughput: None,
        loss: 0.0,
        latency: None,
    },
    Row {
        name: "latency",
        load: "--producers 2 --rate 1000 --batch 1",
        cost: None,
        throughput: None,
        loss: 0.0,
        latency: Some((200.0, 1_000.0)),
    },
];

/// One point of a curve.
struct Point {
    curve: &'static str,
    at: &'static str,
    load: &'static str,
    variables: &'static [(&'static str, &'static str)],
}

const fn point(curve: &'static str, at: &'static str, load: &'static str) -> Point {
    with(curve, at, load, &[])
}

const fn with(
    curve: &'static str,
    at: &'static str,
    load: &'static str,
    variables: &'static [(&'static str, &'static str)],
) -> Point {
    Point {
        curve,
        at,
        load,
        variables,
    }
}

const FANOUT: (&str, &str) = ("ROUTER_FANOUT_WRITER_ENABLED", "true");
const LANES: (&str, &str) = ("ROUTER_FANOUT_ORDERING", "source");
const TWO_WORKERS: (&str, &str) = ("ROUTER_PUBLISH_WORKERS", "2");
const TWO_THREADS: (&str, &str) = ("ROUTER_DATA_PLANE_THREADS", "2");

const FLAT: &str = "--producers 2 --rate 200k";
const WIDE: &str = "--producers 2 --rate 20k --subscribe 10xfirehose";

const POINTS: &[Point] = &[
    point("rate", "50,000/s", "--producers 2 --rate 50k"),
    point("rate", "100,000/s", "--producers 2 --rate 100k"),
    point("rate", "200,000/s", FLAT),
    point("rate", "400,000/s", "--producers 2 --rate 400k"),
    point("rate", "800,000/s", "--producers 2 --rate 800k"),
    point("firehoses", "1, 20,000/s", "--producers 2 --rate 20k"),
    point("firehoses", "10, 20,000/s", WIDE),
    point(
        "firehoses",
        "100, 2,000/s",
        "--producers 2 --rate 2k --subscribe 100xfirehose",
    ),
    point(
        "firehoses",
        "1,000, 200/s",
        "--producers 2 --rate 200 --subscribe 1000xfirehose",
    ),
    point(
        "shard members",
        "1",
        "--producers 2 --rate 20k --subscribe 1xfirehose:shard=a",
    ),
    point(
        "shard members",
        "10",
        "--producers 2 --rate 20k --subscribe 10xfirehose:shard=a",
    ),
    point(
        "shard members",
        "100",
        "--producers 2 --rate 20k --subscribe 100xfirehose:shard=a",
    ),
    point(
        "shard members",
        "1,000",
        "--producers 2 --rate 20k --subscribe 1000xfirehose:shard=a",
    ),
    point(
        "single-source streams",
        "1",
        "--producers 2 --rate 50k --sources 20000 --subscribe firehose --subscribe 1xsource",
    ),
    point(
        "single-source streams",
        "1,000",
        "--producers 2 --rate 50k --sources 20000 --subscribe firehose --subscribe 1000xsource",
    ),
    point(
        "single-source streams",
        "5,000",
        "--producers 2 --rate 50k --sources 20000 --subscribe firehose --subscribe 5000xsource",
    ),
    point(
        "selectors that do not match",
        "0",
        "--producers 2 --rate 50k --subscribe firehose",
    ),
    point(
        "selectors that do not match",
        "100",
        "--producers 2 --rate 50k --subscribe firehose:idle=100",
    ),
    point(
        "selectors that do not match",
        "10,000",
        "--producers 2 --rate 50k --subscribe firehose:idle=10000",
    ),
    point(
        "payload",
        "100 B, 100,000/s",
        "--producers 2 --rate 100k --payload 100",
    ),
    point(
        "payload",
        "1 KB, 50,000/s",
        "--producers 2 --rate 50k --payload 1000",
    ),
    point(
        "payload",
        "60 KB, 2,000/s",
        "--producers 2 --rate 2k --payload 60000 --batch 10",
    ),
    point("producers", "1", "--producers 1 --rate 100k"),
    point("producers", "10", "--producers 10 --rate 100k"),
    point("producers", "50", "--producers 50 --rate 100k"),
    point("producers", "200", "--producers 200 --rate 100k"),
    point("producers at full speed", "2", "--producers 2"),
    point("producers at full speed", "20", "--producers 20"),
    point(
        "producers at full speed",
        "200",
        "--producers 200 --connections 20",
    ),
    point(
        "producers at full speed",
        "20, 5 firehoses",
        "--producers 20 --subscribe 5xfirehose",
    ),
    point("fan-out, 1 firehose", "off", FLAT),
    with(
        "fan-out, 1 firehose",
        "2 workers",
        FLAT,
        &[FANOUT, TWO_WORKERS],
    ),
    with(
        "fan-out, 1 firehose",
        "2 lanes",
        FLAT,
        &[FANOUT, TWO_WORKERS, LANES],
    ),
    point("fan-out, 10 firehoses", "off", WIDE),
    with(
        "fan-out, 10 firehoses",
        "2 workers",
        WIDE,
        &[FANOUT, TWO_WORKERS],
    ),
    with(
        "fan-out, 10 firehoses",
        "2 lanes",
        WIDE,
        &[FANOUT, TWO_WORKERS, LANES],
    ),
    point("data-plane threads, 1 firehose", "1", FLAT),
    with("data-plane threads, 1 firehose", "2", FLAT, &[TWO_THREADS]),
    point("data-plane threads, 10 firehoses", "1", WIDE),
    with(
        "data-plane threads, 10 firehoses",
        "2",
        WIDE,
        &[TWO_THREADS],
    ),
    point("a stalled subscriber among ten", "none", WIDE),
    point(
        "a stalled subscriber among ten",
        "one",
        "--producers 2 --rate 20k --subscribe 9xfirehose --subscribe firehose:stalled",
    ),
    point(
        "idle subscribers",
        "5,000, 1 envelope/s for one source",
        "--rate 1 --batch 1 --sources 5001 --subscribe 5000xsource",
    ),
];

/// Resident memory of the reference under these loads, which is what ours may take, in KiB.
const MEMORY: f64 = 57.0 * 1024.0;

/// Figures of a row: the medians over its runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Figures {
    cost: f64,
    throughput: f64,
    loss: f64,
    p50: f64,
    p99: f64,
    core: f64,
    resident_kib: f64,
}

/// Runs the rows.
///
/// # Errors
/// When something can't be built, started or measured; with `--strict`, when a goal is missed.
pub fn run(options: &Options) -> Result<()> {
    if options.curves {
        return curves(options);
    }
    let rows = select(&options.rows)?;
    if options.list {
        for row in rows {
            println!("{:18} lgr load {}  ({})", row.name, row.load, goal(row));
        }
        return Ok(());
    }
    if let Some(other) = &options.router {
        ensure!(other.is_file(), "--router: no file {}", other.display());
    }

    println!("loadtest: building the router and lgr as users run them");
    let binaries = cargo::build_binaries(Profile::Release)?;
    let scratch = tempfile::Builder::new()
        .prefix("router-loadtest-")
        .tempdir()
        .context("cannot make a directory for the certificates")?;
    make_certificates(&binaries.lgr, scratch.path())?;

    let mut missed = Vec::new();
    let mut written = Vec::new();
    print_heading(options.router.is_some());
    for row in rows {
        let measure = |router: &Path| {
            run_once(
                router,
                &binaries.lgr,
                scratch.path(),
                row.load,
                &[],
                options.seconds,
            )
            .with_context(|| format!("row {} against {}", row.name, router.display()))
        };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..options.runs {
            // in turn, so that both meet the same weather
            ours.push(measure(&binaries.router)?);
            if let Some(other) = &options.router {
                theirs.push(measure(other)?);
            }
        }
        let median = medians(&ours);
        let other = (!theirs.is_empty()).then(|| medians(&theirs));
        let misses = misses(row, &median);
        print_row(row, &median, other.as_ref(), &misses);
        if !misses.is_empty() {
            missed.push(row.name);
        }
        written.push(json!({
            "row": row.name,
            "load": row.load,
            "goal": goal(row),
            "missed": misses,
            "runs": ours.iter().map(to_json).collect::<Vec<_>>(),
            "median": to_json(&median),
            "other_runs": theirs.iter().map(to_json).collect::<Vec<_>>(),
            "other_median": other.as_ref().map(to_json),
        }));
    }
    write_json(options, written)?;
    if missed.is_empty() {
        println!("loadtest: all goals met");
    } else {
        println!("loadtest: goals missed: {}", missed.join(", "));
        ensure!(!options.strict, "goals missed: {}", missed.join(", "));
    }
    Ok(())
}

fn select(names: &[String]) -> Result<Vec<&'static Row>> {
    for name in names {
        if !ROWS.iter().any(|row| row.name.contains(name.as_str())) {
            let all: Vec<_> = ROWS.iter().map(|row| row.name).collect();
            bail!("no row is called {name:?}; there are {}", all.join(", "));
        }
    }
    let wanted =
        |row: &&Row| names.is_empty() || names.iter().any(|name| row.name.contains(name.as_str()));
    Ok(ROWS.iter().filter(wanted).collect())
}

/// Runs the curves and prints them.
fn curves(options: &Options) -> Result<()> {
    let wanted = |point: &&Point| {
        let name = |row: &String| point.curve.contains(row.as_str());
        options.rows.is_empty() || options.rows.iter().any(name)
    };
    let points: Vec<&Point> = POINTS.iter().filter(wanted).collect();
    ensure!(!points.is_empty(), "no curve is called {:?}", options.rows);
    if options.list {
        for point in points {
            println!("{}: {}: lgr load {}", point.curve, point.at, point.load);
        }
        return Ok(());
    }

    println!("loadtest: building the router and lgr as users run them");
    let binaries = cargo::build_binaries(Profile::Release)?;
    let scratch = tempfile::Builder::new()
        .prefix("router-loadtest-")
        .tempdir()
        .context("cannot make a directory for the certificates")?;
    make_certificates(&binaries.lgr, scratch.path())?;
    let mut curve = "";
    let mut written = Vec::new();
    for point in points {
        if point.curve != curve {
            curve = point.curve;
            println!(
                "\n| {curve} | sent/s | us/envelope | lost % | core % | MiB |\n|---|---|---|---|---|---|"
            );
        }
        let mut runs = Vec::new();
        for _ in 0..options.runs {
            let run = run_once(
                &binaries.router,
                &binaries.lgr,
                scratch.path(),
                point.load,
                point.variables,
                options.seconds,
            );
            runs.push(run.with_context(|| format!("{}: {}", point.curve, point.at))?);
        }
        let median = medians(&runs);
        println!(
            "| {} | {:.0} | {:.2} | {:.2} | {:.1} | {:.0} |",
            point.at,
            median.throughput,
            median.cost,
            median.loss,
            median.core,
            median.resident_kib / 1024.0,
        );
        written.push(json!({
            "curve": point.curve,
            "at": point.at,
            "load": point.load,
            "median": to_json(&median),
            "runs": runs.iter().map(to_json).collect::<Vec<_>>(),
        }));
    }
    write_json(options, written)
}

fn write_json(options: &Options, written: Vec<Value>) -> Result<()> {
    let Some(file) = &options.json else {
        return Ok(());
    };
    let text = serde_json::to_string_pretty(&Value::from(written))?;
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// One run of a load against a fresh router.
fn run_once(
    router: &Path,
    lgr: &Path,
    certs: &Path,
    arguments: &str,
    on_top: &[(&str, &str)],
    seconds: u32,
) -> Result<Figures> {
    let mut variables = vec![
        ("INGRESS_BUFFER_SIZE", "10000"),
        ("EGRESS_BUFFER_SIZE", "1000"),
    ];
    variables.extend_from_slice(on_top);
    let mut instance = Router::start(router, certs, &variables, |_| {})?;
    let mut command = Command::new(lgr);
    command
        .args(["load", "--json", "--quiet"])
        .args(["--addr", &instance.grpc.to_string()])
        .arg("--certs")
        .arg(certs)
        .args(["--pid", &instance.group.child().id().to_string()])
        .args(["--duration", &format!("{seconds}s")])
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut load = Group::spawn("lgr load", &mut command)?;
    let pipe = load.child().stdout.take().context("no pipe to lgr load")?;
    let printed = std::thread::spawn(move || std::io::read_to_string(pipe));
    let status = load.wait(Duration::from_secs(u64::from(seconds) + 120))?;
    ensure!(status.success(), "lgr load failed: {status}");
    let text = printed
        .join()
        .ok()
        .context("lgr load printed nothing")?
        .context("cannot read what lgr load printed")?;
    let report: Value = serde_json::from_str(text.trim())
        .with_context(|| format!("lgr load printed no report: {text:?}"))?;
    // the reference knows no drain, so how it ends is not looked at
    drop(instance);
    figures(&report)
}

/// What we need of a report of `lgr load`.
fn figures(report: &Value) -> Result<Figures> {
    let number = |at: &str| {
        report
            .pointer(at)
            .and_then(Value::as_f64)
            .with_context(|| format!("no number at {at} in the report of lgr load"))
    };
    // only of subscribers that read at once: the others are meant to lose
    let (mut expected, mut lost) = (0.0, 0.0);
    for group in report["groups"]
        .as_array()
        .context("no groups in the report")?
    {
        if group["prompt"] == true {
            expected += group["expected"].as_f64().context("no expected")?;
            lost += group["lost"].as_f64().context("no lost")?;
        }
    }
    Ok(Figures {
        cost: number("/router/cpu_us_per_envelope")?,
        throughput: number("/sent_per_second")?,
        loss: if expected > 0.0 {
            100.0 * lost / expected
        } else {
            0.0
        },
        p50: number("/latency_us/p50")?,
        p99: number("/latency_us/p99")?,
        core: number("/router/cpu_percent")?,
        resident_kib: number("/router/resident_kib")?,
    })
}

fn medians(runs: &[Figures]) -> Figures {
    let median = |of: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Figures {
        cost: median(|run| run.cost),
        throughput: median(|run| run.throughput),
        loss: median(|run| run.loss),
        p50: median(|run| run.p50),
        p99: median(|run| run.p99),
        core: median(|run| run.core),
        resident_kib: median(|run| run.resident_kib),
    }
}

/// Which goals a row missed, in words.
fn misses(row: &Row, figures: &Figures) -> Vec<String> {
    let mut misses = Vec::new();
    if let Some(cost) = row.cost.filter(|cost| figures.cost > *cost) {
        misses.push(format!("cost above {cost} us"));
    }
    if let Some(least) = row.throughput.filter(|least| figures.throughput < *least) {
        misses.push(format!("below {least} envelopes/s"));
    }
    if figures.loss > row.loss {
        misses.push(format!("loss above {} %", row.loss));
    }
    if let Some((p50, p99)) = row.latency {
        if figures.p50 > p50 {
            misses.push(format!("p50 above {p50} us"));
        }
        if figures.p99 > p99 {
            misses.push(format!("p99 above {p99} us"));
        }
    }
    if figures.resident_kib > MEMORY {
        misses.push("more memory than the reference".to_owned());
    }
    misses
}

/// A row's goal, in words.
fn goal(row: &Row) -> String {
    let mut goals = Vec::new();
    if let Some(cost) = row.cost {
        goals.push(format!("{cost} us"));
    }
    if let Some(least) = row.throughput {
        goals.push(format!("{:.1} M/s", least / 1e6));
    }
    if let Some((p50, p99)) = row.latency {
        goals.push(format!("p50 {} ms, p99 {} ms", p50 / 1e3, p99 / 1e3));
    }
    goals.push(format!("loss {} %", row.loss));
    goals.join(", ")
}

fn print_heading(paired: bool) {
    print!(
        "{:18} {:>9} {:>10} {:>7} {:>9} {:>9} {:>8}",
        "row", "us/env", "sent/s", "lost %", "p50 us", "p99 us", "MiB"
    );
    if paired {
        print!(" {:>12} {:>7}", "other us/env", "ratio");
    }
    println!("  goal");
}

fn print_row(row: &Row, figures: &Figures, other: Option<&Figures>, misses: &[String]) {
    print!(
        "{:18} {:>9.3} {:>10.0} {:>7.2} {:>9.0} {:>9.0} {:>8.1}",
        row.name,
        figures.cost,
        figures.throughput,
        figures.loss,
        figures.p50,
        figures.p99,
        figures.resident_kib / 1024.0,
    );
    if let Some(other) = other {
        let ratio = other.cost / figures.cost;
        print!(" {:>12.3} {:>6.1}x", other.cost, ratio);
    }
    let verdict = if misses.is_empty() {
        "met".to_owned()
    } else {
        format!("MISSED ({})", misses.join("; "))
    };
    println!("  {}: {verdict}", goal(row));
}

fn to_json(figures: &Figures) -> Value {
    json!({
        "cpu_us_per_envelope": figures.cost,
        "sent_per_second": figures.throughput,
        "lost_percent": figures.loss,
        "latency_p50_us": figures.p50,
        "latency_p99_us": figures.p99,
        "core_percent": figures.core,
        "resident_kib": figures.resident_kib,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Figures = Figures {
        cost: 0.1,
        throughput: 2e6,
        loss: 0.0,
        p50: 10.0,
        p99: 20.0,
        core: 1.0,
        resident_kib: 20_000.0,
    };

    #[test]
    fn each_goal_can_be_missed() {
        for row in ROWS {
            assert_eq!(misses(row, &GOOD), [""; 0], "{}", row.name);
        }
        let bad = Figures {
            cost: 100.0,
            throughput: 1.0,
            loss: 50.0,
            p50: 1e6,
            p99: 1e6,
            core: 100.0,
            resident_kib: 1e6,
        };
        for row in ROWS {
            let wanted = 2
                + usize::from(row.cost.is_some())
                + usize::from(row.throughput.is_some())
                + 2 * usize::from(row.latency.is_some());
            assert_eq!(misses(row, &bad).len(), wanted, "{}", row.name);
        }
    }

    #[test]
    fn the_median_counts() {
        let run = |cost| Figures { cost, ..GOOD };
        assert_eq!(medians(&[run(9.0), run(1.0), run(2.0)]).cost, 2.0);
    }

    #[test]
    fn reads_a_report_and_says_what_lacks() {
        let report = json!({
            "groups": [
                {"prompt": true, "expected": 200, "lost": 1},
                {"prompt": false, "expected": 200, "lost": 200},
            ],
            "sent_per_second": 1000.0,
            "latency_us": {"p50": 1.0, "p99": 2.0},
            "router": {"cpu_us_per_envelope": 0.5, "cpu_percent": 1.0, "resident_kib": 1},
        });
        assert_eq!(figures(&report).unwrap().loss, 0.5);
        let error = figures(&json!({"groups": []})).unwrap_err();
        assert!(
            error.to_string().contains("/router/cpu_us_per_envelope"),
            "{error}"
        );
    }

    #[test]
    fn unknown_rows_are_refused() {
        assert_eq!(select(&["k".to_owned()]).unwrap().len(), 3);
        let error = select(&["nothing".to_owned()]).err().unwrap();
        assert!(error.to_string().contains("flat-out"), "{error}");
    }
}
