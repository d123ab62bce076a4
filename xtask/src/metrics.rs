//! Reads the router's `/metrics`, so that the demo can tell what was dropped without asking the
//! subscriber, who can't know.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

const TIMEOUT: Duration = Duration::from_secs(10);

/// One reading of all series, in Prometheus' text format.
#[derive(Debug)]
pub struct Metrics(String);

impl Metrics {
    /// Reads the series from the debug port at `address`.
    ///
    /// # Errors
    /// When nobody listens there, or the answer isn't a 200.
    pub fn read(address: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)
            .with_context(|| format!("cannot reach the router's debug port at {address}"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .context("the router's debug port closed in mid-answer")?;
        Self::parse(&answer)
    }

    fn parse(answer: &str) -> Result<Self> {
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .context("the router's debug port gave no HTTP answer")?;
        let status = head.lines().next().unwrap_or_default();
        if status.split(' ').nth(1) != Some("200") {
            bail!("the router's debug port answered /metrics with {status:?}");
        }
        Ok(Self(body.to_owned()))
    }

    /// The sum of all series called `name` that carry `label` (such as `direction="ingress"`).
    ///
    /// A counter may have the suffix `_total`, as the format asks for. A series that isn't there
    /// counts nothing.
    pub fn sum(&self, name: &str, label: &str) -> u64 {
        self.0
            .lines()
            .filter_map(|line| sample(line, name, label))
            .sum::<f64>() as u64
    }
}

/// The value on `line`, if it is a sample of the series asked for.
fn sample(line: &str, name: &str, label: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let rest = rest.strip_prefix("_total").unwrap_or(rest);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(labelled) => labelled.rsplit_once('}')?,
        None => ("", rest.strip_prefix(' ').map(|_| rest)?),
    };
    if !label.is_empty() && !labels.split(',').any(|found| found == label) {
        return None;
    }
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP dropped envelopes lost
# TYPE dropped counter
dropped_total{direction=\"ingress\"} 3
dropped_total{direction=\"egress\",shard_id=\"a}b\"} 4
dropped_total{direction=\"egress\",shard_id=\"c\"} 5 1700000000
ingress 12
ingress_bytes 99
subscriptions{} 2
";

    fn metrics() -> Metrics {
        Metrics::parse(&format!("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{TEXT}")).unwrap()
    }

    #[test]
    fn sums_the_series_with_the_label() {
        let metrics = metrics();
        assert_eq!(metrics.sum("dropped", "direction=\"ingress\""), 3);
        assert_eq!(metrics.sum("dropped", "direction=\"egress\""), 9);
        assert_eq!(metrics.sum("dropped", ""), 12);
    }

    #[test]
    fn takes_series_without_labels_and_no_longer_names() {
        let metrics = metrics();
        assert_eq!(metrics.sum("ingress", ""), 12);
        assert_eq!(metrics.sum("subscriptions", ""), 2);
        assert_eq!(metrics.sum("absent", ""), 0);
    }

    #[test]
    fn other_answers_are_errors() {
        let error = Metrics::parse("HTTP/1.1 404 Not Found\r\n\r\n").unwrap_err();
        assert!(error.to_string().contains("404"), "{error}");
        assert!(Metrics::parse("SSH-2.0").is_err());
    }
}
