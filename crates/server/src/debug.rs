//! The debug port: health, readiness, metrics and profiles over plain HTTP, on the loopback
//! interface only.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{net::TcpListener, time};

use crate::{metrics::Exposition, profile};

/// How long a client may take to ask.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);

/// Pause when a connection can't be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the debug port tells.
pub(crate) struct Debug {
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) metrics: Exposition,
}

const INDEX: &str = "<!DOCTYPE html>
<title>/debug/pprof/</title>
<h1>/debug/pprof/</h1>
<ul>
<li><a href=\"profile?seconds=30\">profile</a>: where CPU time goes, for pprof viewers;
<code>seconds</code> says how long to look
<li><a href=\"cmdline\">cmdline</a>: the command line of this process
</ul>
<p>Beside it:
<ul>
<li><a href=\"/metrics\">/metrics</a>: counters in the Prometheus text format
<li><a href=\"/healthz\">/healthz</a>: 200 while the process lives
<li><a href=\"/readyz\">/readyz</a>: 200 while the gRPC port accepts connections
</ul>
";

impl Debug {
    /// Answers on `listener` until the task is dropped.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let debug = Arc::new(self);
        loop {
            let Ok((socket, _)) = listener.accept().await else {
                // out of descriptors, most likely: others need them more
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let debug = debug.clone();
            let service = service_fn(move |request| {
                let debug = debug.clone();
                async move { Ok::<_, Infallible>(debug.answer(&request).await) }
            });
            tokio::spawn(
                http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEADER_TIMEOUT)
                    .serve_connection(TokioIo::new(socket), service),
            );
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if self.ready.load(Relaxed) => text(StatusCode::OK, "ready\n"),
            "/readyz" => text(
                StatusCode::SERVICE_UNAVAILABLE,
                "not accepting connections\n",
            ),
            "/metrics" => reply(
                StatusCode::OK,
                Exposition::CONTENT_TYPE,
                self.metrics.render(),
            ),
            "/debug/pprof/" => reply(StatusCode::OK, "text/html; charset=utf-8", INDEX),
            "/debug/pprof" => {
                let mut response = text(StatusCode::TEMPORARY_REDIRECT, "");
                let slash = HeaderValue::from_static("/debug/pprof/");
                response.headers_mut().insert(header::LOCATION, slash);
                response
            }
            "/debug/pprof/cmdline" => text(StatusCode::OK, command_line()),
            "/debug/pprof/profile" => profile(request.uri().query().unwrap_or_default()).await,
            path => text(StatusCode::NOT_FOUND, format!("nothing at {path}\n")),
        }
    }
}

/// The arguments with a zero byte between them, as pprof tools expect.
fn command_line() -> String {
    let arguments: Vec<_> = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    arguments.join("\0")
}

async fn profile(query: &str) -> Response<Full<Bytes>> {
    let seconds = match seconds(query) {
        Ok(seconds) => seconds,
        Err(complaint) => return text(StatusCode::BAD_REQUEST, complaint),
    };
    match profile::cpu(Duration::from_secs(seconds)).await {
        Ok(profile) => reply(StatusCode::OK, "application/octet-stream", profile),
        Err(error) => {
            let status = match error {
                profile::Error::LeftOut => StatusCode::NOT_IMPLEMENTED,
                profile::Error::Busy => StatusCode::CONFLICT,
                profile::Error::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            text(status, format!("{error}\n"))
        }
    }
}

/// The `seconds` of a query string.
fn seconds(query: &str) -> Result<u64, String> {
    let Some(value) = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("seconds="))
    else {
        return Ok(profile::USUAL);
    };
    match value.parse() {
        Ok(seconds @ 1..=profile::LONGEST) => Ok(seconds),
        _ => Err(format!(
            "seconds is {value:?}: allowed is 1 to {}\n",
            profile::LONGEST
        )),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    reply(status, "text/plain; charset=utf-8", body)
}

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds(""), Ok(30));
        assert_eq!(seconds("debug=1&seconds=5"), Ok(5));
        for wrong in ["0", "301", "-1", "x", ""] {
            let complaint = seconds(&format!("seconds={wrong}")).unwrap_err();
            assert_eq!(
                complaint,
                format!("seconds is {wrong:?}: allowed is 1 to 300\n")
            );
        }
    }
}
