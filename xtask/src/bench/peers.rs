//! What a benchmark is held against in the same run: the libraries against what a user would pick
//! instead, and a worker stage against publishing directly.

use std::collections::HashMap;

/// `(executable, segment of a name, what stands in its place in the name that it is held against)`.
/// What has no place there takes the number behind it along.
const HELD_AGAINST: &[(&str, &str, &str)] = &[
    ("diode", "crossbeam-array-queue", "many-to-one"),
    ("diode", "tokio-broadcast", "many-to-one"),
    ("diode", "crossbeam-channel", "many-to-one"),
    ("diode", "flume", "many-to-one"),
    ("diode", "kanal", "many-to-one"),
    ("pubsub", "rwlock-hashmap", "tree"),
    ("pubsub", "dashmap", "tree"),
    ("pubsub", "copied-hashmap", "tree"),
    ("pubsub", "tokio-broadcast", "tree"),
    ("pubsub", "rwlock-hashmap", "tree-batch"),
    ("fanout", "crossbeam-channel", "plain"),
    ("fanout", "std-mpsc", "plain"),
    ("fanout", "plain", "direct"),
    ("fanout", "lanes", "direct"),
    ("router", "router_fanout", "router"),
];

/// How many times as long each benchmark takes as what it is held against, in words; empty where
/// there is nothing of the kind. `times` are medians by name.
pub fn ratios<'a>(times: &HashMap<&'a str, f64>) -> HashMap<&'a str, String> {
    let ratio = |(name, time): (&&'a str, &f64)| {
        let (against, its_time) = held_against(name, times)?;
        Some((*name, format!("{:.2} x {against}", time / its_time)))
    };
    times.iter().filter_map(ratio).collect()
}

/// The segment that tells what `name` is held against, and the time of that.
fn held_against(name: &str, times: &HashMap<&str, f64>) -> Option<(&'static str, f64)> {
    let (executable, benchmark) = name.split_once('/')?;
    let mut of_it = HELD_AGAINST.iter().filter(|(of, ..)| *of == executable);
    of_it.find_map(|(_, theirs, ours)| {
        let at = benchmark
            .split('/')
            .position(|segment| segment == *theirs)?;
        let mut segments: Vec<_> = benchmark.split('/').collect();
        segments[at] = ours;
        let same = format!("{executable}/{}", segments.join("/"));
        segments.pop();
        let without_number = format!("{executable}/{}", segments.join("/"));
        let time = times
            .get(same.as_str())
            .or_else(|| times.get(without_number.as_str()))?;
        Some((*ours, *time))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_held_against_its_like() {
        let times = HashMap::from([
            ("diode/overrun/many-to-one", 10.0),
            ("diode/overrun/one-to-one", 5.0),
            ("diode/overrun/flume", 25.0),
            ("diode/wake/flume", 1.0),
            ("pubsub/subscribe/new/tree/1000", 4.0),
            ("pubsub/subscribe/new/dashmap/1000", 1.0),
            ("pubsub/subscribe/new/dashmap/100000", 1.0),
            ("pubsub/batch/1/tree-batch", 2.0),
            ("pubsub/batch/1/rwlock-hashmap", 3.0),
            ("fanout/noop/direct", 10.0),
            ("fanout/noop/plain/2", 11.0),
            ("fanout/noop/std-mpsc/2", 110.0),
            ("fanout/spin/plain/2", 110.0),
            ("router/router/noop", 10.0),
            ("router/router_fanout/noop/16", 12.0),
            ("router/router_noop", 10.0),
        ]);
        let mut ratios: Vec<_> = ratios(&times).into_iter().collect();
        ratios.sort();
        let expected = [
            ("diode/overrun/flume", "2.50 x many-to-one"),
            ("fanout/noop/plain/2", "1.10 x direct"),
            ("fanout/noop/std-mpsc/2", "10.00 x plain"),
            ("pubsub/batch/1/rwlock-hashmap", "1.50 x tree-batch"),
            ("pubsub/subscribe/new/dashmap/1000", "0.25 x tree"),
            ("router/router_fanout/noop/16", "1.20 x router"),
        ];
        assert_eq!(ratios, expected.map(|(name, text)| (name, text.to_owned())));
    }
}
