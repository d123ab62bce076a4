//! v1: the reference's verdicts on payloads and requests (`vectors/wire-decode.jsonl`), and its
//! routing (`vectors/routing.jsonl`) through the real subscriber tree.

mod support;

use loggregator::v1::{Envelope, Pushed, plumbing, subscription_to_interest};
use loggregator::{Error, Limits, v1};
use prost::Message as _;
use support::events;
use support::{bytes, cases, routing};

#[test]
fn verdicts() {
    let mut seen = 0;
    for case in cases(include_str!("vectors/wire-decode.jsonl")) {
        let name = case["name"].as_str().unwrap();
        let input = bytes(&case, "input_b64");
        let accepted = match case["type"].as_str().unwrap() {
            "events.Envelope" => {
                let pushed = Pushed::parse(&input, Limits::default());
                let envelope = Envelope::parse(&input, Limits::default());
                assert_eq!(pushed.is_ok(), envelope.is_ok(), "{name}");
                if let (Ok(pushed), Ok(envelope)) = (&pushed, &envelope) {
                    assert_eq!(
                        pushed.payload().bytes(),
                        input,
                        "{name}: forwarded untouched"
                    );
                    assert_eq!(pushed.envelope(), *envelope, "{name}");
                    let again = events::Envelope::decode(&*envelope.to_bytes()).unwrap();
                    assert_eq!(again, events::Envelope::decode(&*input).unwrap(), "{name}");
                }
                pushed.is_ok()
            }
            "plumbing.SubscriptionRequest" => {
                plumbing::SubscriptionRequest::decode(&*input).is_ok()
            }
            "plumbing.EnvelopeData" => plumbing::EnvelopeData::decode(&*input).is_ok(),
            _ => continue,
        };
        assert_eq!(accepted, case["accept"].as_bool().unwrap(), "{name}");
        seen += 1;
    }
    assert_eq!(seen, 27);
}

#[test]
fn routes() {
    let mut seen = 0;
    for case in cases(routing::VECTORS) {
        if case["api"] != "v1" {
            continue;
        }
        seen += 1;
        let pushed = match Pushed::parse(&bytes(&case, "publish_b64"), Limits::default()) {
            Ok(pushed) => pushed,
            // Incomplete: nobody gets it.
            Err(error) => {
                assert!(matches!(error, Error::Missing { .. }), "{error}: {case}");
                let copies = case["always"].as_object().unwrap();
                assert!(copies.values().all(|copies| *copies == 0), "{case}");
                continue;
            }
        };
        if let Some(app_id) = case["app_id"].as_str() {
            assert_eq!(pushed.app_id(), app_id.as_bytes(), "{case}");
        }
        routing::check(&case, &pushed, |request| {
            subscription_to_interest(&plumbing::SubscriptionRequest::decode(request).unwrap())
        });
    }
    assert_eq!(seen, 13);
}

#[test]
fn app_ids_of_http_requests() {
    for (low, high, text) in [
        (1, 2, "01000000-0000-0000-0200-000000000000"),
        (
            0x1122_3344_5566_7788,
            0x99AA_BBCC_DDEE_FF00,
            "88776655-4433-2211-00ff-eeddccbbaa99",
        ),
        (5, 6, "05000000-0000-0000-0600-000000000000"),
        (0, 0, "00000000-0000-0000-0000-000000000000"),
    ] {
        let uuid = v1::Uuid {
            low: Some(low),
            high: Some(high),
        };
        assert_eq!(uuid.to_text(), text.as_bytes());
        assert_eq!(v1::Uuid::from_text(text.as_bytes()), Some(uuid));
        let http = v1::HttpStartStop {
            application_id: Some(uuid),
            ..Default::default()
        };
        let envelope = v1::Envelope {
            event_type: Some(v1::EventType::HttpStartStop),
            http_start_stop: Some(http),
            ..Default::default()
        };
        assert_eq!(&*envelope.app_id(), text.as_bytes());
    }
    let upper = v1::Uuid::from_text(b"AABBCCDD_EEFF-4011*8233 445566778899").unwrap();
    assert_eq!(upper.low, Some(1_243_274_898_542_738_346));
    assert_eq!(upper.high, Some(11_063_223_766_036_525_954));
    for none in [
        "",
        "aabbccddeeff40118233445566778899",
        "gabbccdd-eeff-4011-8233-445566778899",
    ] {
        assert_eq!(v1::Uuid::from_text(none.as_bytes()), None);
    }
}

#[test]
fn a_batch_is_fields_one_after_the_other() {
    let envelope = [0x0A, 1, b'o', 0x10, 6];
    let pushed = Pushed::parse(&envelope, Limits::default()).unwrap();
    let payload = pushed.payload();
    let mut buf = Vec::new();
    payload.append_to(&mut buf);
    assert_eq!(buf.len(), payload.field_len());
    assert_eq!(
        plumbing::Response::decode(&*buf).unwrap().payload,
        &envelope[..]
    );
    payload.append_to(&mut buf);
    let batch = plumbing::BatchResponse::decode(&*buf).unwrap();
    assert_eq!(batch.payload, [&envelope[..]; 2]);
}
