//! Selectors in words, for the operator who asks which consumer is slow.

use std::fmt::{self, Write as _};

use loggregator::{
    v1::plumbing::{Filter, filter},
    v2::{Selector, selector::Message},
};

/// Selectors shown of one request; a request may have thousands.
const MOST: usize = 8;

/// For example `log, counter requests, gauge {cpu memory} of app-1`; `nothing` for none.
pub(crate) fn selectors(selectors: &[Selector]) -> String {
    let mut text = String::new();
    for selector in selectors
        .iter()
        .filter(|selector| selector.message.is_some())
        .take(MOST)
    {
        if !text.is_empty() {
            text.push_str(", ");
        }
        one(selector, &mut text).expect("writing to a string does not fail");
    }
    if text.is_empty() {
        text.push_str("nothing");
    } else if selectors.len() > MOST {
        let _ = write!(text, ", and {} more", selectors.len() - MOST);
    }
    text
}

/// For example `log of app-1`; `everything` for no filter.
pub(crate) fn filter(filter: Option<&Filter>) -> String {
    let Some(filter) = filter else {
        return "everything".to_owned();
    };
    let kind = match &filter.message {
        Some(filter::Message::Log(_)) => "log",
        Some(filter::Message::Metric(_)) => "metric",
        None => "everything",
    };
    match &*filter.app_id {
        "" => kind.to_owned(),
        app_id => format!("{kind} of {app_id}"),
    }
}

fn one(selector: &Selector, text: &mut String) -> fmt::Result {
    match &selector.message {
        None => {}
        Some(Message::Log(_)) => text.push_str("log"),
        Some(Message::Timer(_)) => text.push_str("timer"),
        Some(Message::Event(_)) => text.push_str("event"),
        Some(Message::Counter(counter)) => {
            text.push_str("counter");
            if !counter.name.is_empty() {
                write!(text, " {}", counter.name)?;
            }
        }
        Some(Message::Gauge(gauge)) => {
            text.push_str("gauge");
            if !gauge.names.is_empty() {
                write!(text, " {{{}}}", gauge.names.join(" "))?;
            }
        }
    }
    if !selector.source_id.is_empty() {
        write!(text, " of {}", selector.source_id)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use loggregator::v2::{CounterSelector, GaugeSelector, LogSelector};

    fn selector(source_id: &str, message: Message) -> Selector {
        Selector {
            source_id: source_id.to_owned(),
            message: Some(message),
        }
    }

    #[test]
    fn says_kind_name_and_source() {
        let names = vec!["cpu".to_owned(), "memory".to_owned()];
        let of = [
            selector("", Message::Log(LogSelector {})),
            selector(
                "",
                Message::Counter(CounterSelector {
                    name: "requests".to_owned(),
                }),
            ),
            selector("app-1", Message::Gauge(GaugeSelector { names })),
        ];
        assert_eq!(
            selectors(&of),
            "log, counter requests, gauge {cpu memory} of app-1"
        );
        assert_eq!(selectors(&[Selector::default()]), "nothing");
    }

    #[test]
    fn says_what_a_v1_filter_asks_for() {
        use loggregator::v1::plumbing::LogFilter;

        let logs = filter::Message::Log(LogFilter {});
        let of_app = Filter {
            app_id: "app-1".to_owned(),
            message: Some(logs),
        };
        assert_eq!(filter(Some(&of_app)), "log of app-1");
        assert_eq!(filter(Some(&Filter::default())), "everything");
        assert_eq!(filter(None), "everything");
    }

    #[test]
    fn stays_short() {
        let many = vec![selector("a", Message::Log(LogSelector {})); 1_000];
        assert!(selectors(&many).ends_with("log of a, and 992 more"));
    }
}
