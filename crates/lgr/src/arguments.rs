//! What several commands' arguments have in common: the connection, durations, rates, tags.

use std::path::PathBuf;
use std::time::Duration;

use lgr::Error;
use lgr::client::{Client, Credentials, Options};

/// Where the router is, and who we are.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// Address of a router; repeat it for several
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8082")]
    pub(crate) addr: Vec<String>,
    /// Directory with certificates as `lgr certs` makes them
    #[arg(long, value_name = "DIR", default_value = "certs")]
    certs: PathBuf,
    /// Which identity of that directory to show to the router
    #[arg(long, value_name = "NAME", default_value = "agent")]
    identity: String,
    /// Certificate to show to the router (PEM); instead of --certs, with --key and --ca
    #[arg(long, value_name = "FILE", requires_all = ["key", "ca"], conflicts_with_all = ["certs", "identity"])]
    cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["cert", "ca"])]
    key: Option<PathBuf>,
    /// Authority that the router's certificate must come from (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["cert", "key"])]
    ca: Option<PathBuf>,
    /// Name that the router's certificate must have
    #[arg(long, value_name = "NAME", default_value = "doppler")]
    server_name: String,
    /// How long the router may take to accept a connection, and to answer at the end
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    peer_timeout: Duration,
}

impl Connection {
    pub(crate) fn credentials(&self) -> Result<Credentials, Error> {
        match (&self.cert, &self.key, &self.ca) {
            (Some(cert), Some(key), Some(ca)) => Credentials::load(cert, key, ca),
            _ => Credentials::from_directory(&self.certs, &self.identity).map_err(|error| {
                if self.certs.exists() {
                    return error;
                }
                let directory = self.certs.display();
                Error::Argument {
                    argument: format!("--certs {directory}"),
                    reason: format!("no such directory; `lgr certs {directory}` makes one"),
                }
            }),
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options {
            server_name: self.server_name.clone(),
            connect_timeout: self.peer_timeout,
            answer_timeout: self.peer_timeout,
            ..Options::default()
        }
    }

    /// A connection to each router, or the first error.
    pub(crate) async fn connect(&self) -> Result<Vec<Client>, Error> {
        let (credentials, options) = (self.credentials()?, self.options());
        let mut clients = Vec::new();
        for addr in &self.addr {
            clients.push(Client::connect(addr, &credentials, &options).await?);
        }
        Ok(clients)
    }
}

/// `250ms`, `5s`, `2m`, `1h`; a bare number means seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let unit = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" | "" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("unit `{unit}` is none of us, ms, s, m, h")),
    };
    match number.parse::<f64>() {
        Ok(number) if number >= 0.0 => {
            Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())
        }
        _ => Err("must be like 250ms, 5s or 2m".to_owned()),
    }
}

/// A number above 0 per second, also as `50k` or `1.5M`.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.as_bytes().last() {
        Some(b'k') => (&text[..text.len() - 1], 1e3),
        Some(b'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number * factor),
        _ => Err("must be a number above 0 per second, for example 0.5, 1000 or 50k".to_owned()),
    }
}

/// `NAME=VALUE`.
pub(crate) fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [("5s", 5000), ("250ms", 250), ("2m", 120_000), ("0.5", 500)] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in ["", "s", "-1s", "5 s", "5x", "nan", "inf", "1e400s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates() {
        for (text, expected) in [
            ("1", 1.0),
            ("0.5", 0.5),
            ("50k", 50_000.0),
            ("1.5M", 1_500_000.0),
        ] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "-1", "k", "1G", "inf", "nan"] {
            assert!(rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tags() {
        assert_eq!(tag("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(tag("a="), Ok(("a".to_owned(), String::new())));
        assert!(tag("a").is_err() && tag("=b").is_err());
    }
}
