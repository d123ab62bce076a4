//! The log on stderr: one line an event, with exactly one timestamp, as the platform's tools parse
//! it.

use std::{fmt, io};

use chrono::{Local, Utc};
use config::Timestamps;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    Layer as _,
    filter::filter_fn,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    layer::SubscriberExt as _,
    registry::LookupSpan,
};

/// Sends the process's log to stderr. The first call wins; later ones change nothing.
pub fn init(timestamps: Timestamps) {
    let lines = tracing_subscriber::fmt::layer()
        .event_format(Line(timestamps))
        .with_writer(io::stderr)
        .with_filter(filter_fn(is_ours));
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(lines));
}

/// The libraries' own chatter about single connections stays out of the log.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    let ours = ["server", "router"]
        .iter()
        .any(|name| metadata.target().split("::").next() == Some(*name));
    ours && *metadata.level() <= Level::INFO
}

/// The time now, as log lines begin with.
pub fn timestamp(timestamps: Timestamps) -> String {
    match timestamps {
        Timestamps::Local => Local::now().format("%Y/%m/%d %H:%M:%S%.6f").to_string(),
        Timestamps::Rfc3339 => Utc::now().format("%Y-%m-%dT%H:%M:%S%.9fZ").to_string(),
    }
}

struct Line(Timestamps);

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "{} ", timestamp(self.0))?;
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
