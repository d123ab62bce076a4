//! Small charts as SVG: lines over a logarithmic axis, and bars of change. Nothing is loaded from
//! anywhere; colours follow the reader's light or dark setting by style classes of the page.

use std::fmt::Write as _;

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Drawn dashed: the other side of a comparison, or something to hold against.
    pub dashed: bool,
    /// Which colour, so that both sides of one thing share it.
    pub colour: usize,
    /// The points, by ascending x; all coordinates above 0.
    pub points: Vec<(f64, f64)>,
}

/// Lines over a logarithmic x axis with a logarithmic y axis.
#[derive(Clone, Debug)]
pub struct Lines {
    /// What the x axis counts.
    pub x: String,
    /// What the y axis measures.
    pub y: String,
    /// How to write a value of the y axis.
    pub label: fn(f64) -> String,
    /// The lines.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

impl Lines {
    /// The chart.
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let range = |pick: fn(&(f64, f64)) -> f64| {
            let values = || points().map(pick);
            let low = values().fold(f64::INFINITY, f64::min);
            (low, values().fold(0.0, f64::max))
        };
        let (x_low, x_high) = range(|point| point.0);
        let (y_low, y_high) = widened(range(|point| point.1));
        let x_at = |x: f64| LEFT + (WIDTH - LEFT - RIGHT) * position(x, x_low, x_high);
        let y_at = |y: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * position(y, y_low, y_high);

        let mut svg = open(HEIGHT);
        for y in ticks(y_low, y_high) {
            let at = y_at(y);
            let end = WIDTH - RIGHT;
            let _ = writeln!(
                svg,
                r#"<line class="grid" x1="{LEFT}" x2="{end}" y1="{at:.1}" y2="{at:.1}"/>"#
            );
            text(&mut svg, LEFT - 8.0, at + 4.0, "end", &(self.label)(y));
        }
        let mut xs: Vec<f64> = points().map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        for x in xs {
            text(
                &mut svg,
                x_at(x),
                HEIGHT - BOTTOM + 18.0,
                "middle",
                &grouped(x),
            );
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        text(&mut svg, middle, HEIGHT - 6.0, "middle", &self.x);
        for (index, series) in self.series.iter().enumerate() {
            let class = format!(
                "c{}{}",
                series.colour % COLOURS,
                if series.dashed { " dashed" } else { "" }
            );
            let path: Vec<_> = series
                .points
                .iter()
                .map(|&(x, y)| format!("{:.1},{:.1}", x_at(x), y_at(y)))
                .collect();
            let _ = writeln!(
                svg,
                r#"<polyline class="{class}" points="{}"/>"#,
                path.join(" ")
            );
            for &(x, y) in &series.points {
                let tip = format!("{} at {}: {}", series.name, grouped(x), (self.label)(y));
                let _ = writeln!(
                    svg,
                    r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="3.5"><title>{}</title></circle>"#,
                    x_at(x),
                    y_at(y),
                    escape(&tip)
                );
            }
            let at = TOP + 12.0 + 18.0 * index as f64;
            let (from, to) = (WIDTH - RIGHT + 12.0, WIDTH - RIGHT + 36.0);
            let line = at - 4.0;
            let _ = writeln!(
                svg,
                r#"<line class="{class}" x1="{from}" x2="{to}" y1="{line}" y2="{line}"/>"#
            );
            text(&mut svg, to + 6.0, at, "start", &series.name);
        }
        svg + "</svg>\n"
    }
}

/// A bar of a chart of changes.
#[derive(Clone, Debug)]
pub struct Change {
    /// What changed.
    pub name: String,
    /// By how much: 0.1 is 10 % slower.
    pub change: f64,
    /// Where it lies with confidence; without ends where nothing is known.
    pub interval: (f64, f64),
    /// A style: `slower`, `faster` or `same`.
    pub class: &'static str,
}

/// Bars to both sides of "no change", with their intervals.
pub fn changes(bars: &[Change]) -> String {
    const ROW: f64 = 22.0;
    const NAMES: f64 = 330.0;
    let height = TOP + ROW * bars.len() as f64 + 30.0;
    let furthest = bars
        .iter()
        .flat_map(|bar| [bar.change, bar.interval.0, bar.interval.1])
        .filter(|value| value.is_finite())
        .fold(0.05, |far: f64, value| far.max(value.abs()))
        .min(1.0);
    let zero = f64::midpoint(NAMES, WIDTH - 20.0);
    let scale = (WIDTH - 20.0 - zero) / furthest;
    let at = |share: f64| zero + scale * share.clamp(-furthest, furthest);
    let bottom = TOP + ROW * bars.len() as f64;

    let mut svg = open(height);
    for share in [-furthest, 0.0, furthest] {
        let x = at(share);
        let _ = writeln!(
            svg,
            r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{bottom:.1}"/>"#
        );
        text(
            &mut svg,
            x,
            bottom + 18.0,
            "middle",
            &super::results::percent(share),
        );
    }
    for (index, bar) in bars.iter().enumerate() {
        let top = TOP + ROW * index as f64;
        let middle = top + ROW / 2.0;
        text(&mut svg, NAMES - 10.0, middle + 4.0, "end", &bar.name);
        let (from, to) = (at(bar.change.min(0.0)), at(bar.change.max(0.0)));
        let class = bar.class;
        let tip = format!("{}: {}", bar.name, super::results::percent(bar.change));
        let _ = writeln!(
            svg,
            r#"<rect class="{class}" x="{from:.1}" y="{:.1}" width="{:.1}" height="{:.1}"><title>{}</title></rect>"#,
            top + 4.0,
            (to - from).max(1.0),
            ROW - 8.0,
            escape(&tip)
        );
        let (low, high) = (at(bar.interval.0), at(bar.interval.1));
        let _ = writeln!(
            svg,
            r#"<line class="interval" x1="{low:.1}" x2="{high:.1}" y1="{middle:.1}" y2="{middle:.1}"/>"#
        );
    }
    svg + "</svg>\n"
}

/// How many colours the page has.
const COLOURS: usize = 6;

/// The styles that the charts need.
pub const STYLE: &str = "\
svg { max-width: 720px; width: 100%; height: auto; }
svg text { fill: currentColor; font: 12px system-ui, sans-serif; }
svg .grid { stroke: currentColor; stroke-opacity: 0.15; }
svg polyline { fill: none; stroke-width: 2; }
svg line { stroke-width: 2; }
svg .grid, svg .interval { stroke-width: 1; }
svg .interval { stroke: currentColor; }
svg circle { stroke: none; }
svg .dashed { stroke-dasharray: 5 4; }
svg .c0 { stroke: #3b7dd8; } svg circle.c0 { fill: #3b7dd8; }
svg .c1 { stroke: #d8663b; } svg circle.c1 { fill: #d8663b; }
svg .c2 { stroke: #3ba55d; } svg circle.c2 { fill: #3ba55d; }
svg .c3 { stroke: #9b59b6; } svg circle.c3 { fill: #9b59b6; }
svg .c4 { stroke: #b8952b; } svg circle.c4 { fill: #b8952b; }
svg .c5 { stroke: #6b7785; } svg circle.c5 { fill: #6b7785; }
svg .slower { fill: #d8443b; } svg .faster { fill: #3ba55d; } svg .same { fill: #8a94a0; }
";

fn open(height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">\n"
    )
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escape(text);
    let _ = writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
    );
}

/// Text as HTML shows it.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Where a value lies between the ends of a logarithmic axis.
fn position(value: f64, low: f64, high: f64) -> f64 {
    if high > low {
        (value / low).ln() / (high / low).ln()
    } else {
        0.5
    }
}

/// A range that is not empty and doesn't touch its values.
fn widened((low, high): (f64, f64)) -> (f64, f64) {
    (low / 1.2, high * 1.2)
}

/// Round values on a logarithmic axis: 1, 2, 5 times a power of ten.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let mut ticks = Vec::new();
    let mut power = 10_f64.powf(low.log10().floor());
    while power <= high {
        let here = [1.0, 2.0, 5.0].map(|factor| factor * power);
        ticks.extend(here.into_iter().filter(|tick| (low..=high).contains(tick)));
        power *= 10.0;
    }
    // Too many to read: powers of ten alone.
    if ticks.len() > 9 {
        let power = |tick: &f64| (tick.log10() - tick.log10().round()).abs() < 1e-9;
        ticks.retain(power);
    }
    ticks
}

/// A whole number with blanks between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_within_the_frame() {
        let chart = Lines {
            x: "workers".into(),
            y: "time".into(),
            label: |value| format!("{value} ns"),
            series: vec![Series {
                name: "spin & wait".into(),
                dashed: true,
                colour: 1,
                points: vec![(1.0, 1000.0), (4.0, 300.0), (16.0, 250.0)],
            }],
        };
        let svg = chart.svg();
        assert!(
            svg.contains("spin &amp; wait") && svg.contains("500 ns"),
            "{svg}"
        );
        assert!(svg.contains(r#"class="c1 dashed""#), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        let points = svg
            .split("points=\"")
            .nth(1)
            .unwrap()
            .split('"')
            .next()
            .unwrap();
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            assert!(
                (LEFT..=WIDTH - RIGHT).contains(&x.parse().unwrap()),
                "{point}"
            );
            assert!(
                (TOP..=HEIGHT - BOTTOM).contains(&y.parse().unwrap()),
                "{point}"
            );
        }
    }

    #[test]
    fn one_point_is_no_trouble() {
        let chart = Lines {
            x: "n".into(),
            y: "time".into(),
            label: |value| value.to_string(),
            series: vec![Series {
                name: "one".into(),
                dashed: false,
                colour: 0,
                points: vec![(8.0, 42.0)],
            }],
        };
        assert!(!chart.svg().contains("NaN"));
    }

    #[test]
    fn bars_without_an_interval_stay_within_the_frame() {
        let svg = changes(&[Change {
            name: "a".into(),
            change: 3.0,
            interval: (-1.0, f64::INFINITY),
            class: "slower",
        }]);
        assert!(!svg.contains("inf") && !svg.contains("NaN"), "{svg}");
        assert!(svg.contains("class=\"slower\""), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(30.0, 600.0), [50.0, 100.0, 200.0, 500.0]);
        assert!(ticks(1.0, 1e9).len() <= 10);
        assert_eq!(grouped(100_000.0), "100\u{202f}000");
    }
}
