//! Conversion between v2 and v1 envelopes, both ways, field for field as the reference does it.
//!
//! A v2 envelope has any number of v1 forms: none for an event, several for a gauge.
//! [`v2_to_v1`] reads it and gives its [`Form`]s; a form can be routed at once, and is converted
//! when its payload is asked for. A v1 envelope has exactly one v2 form: [`v1_to_v2`].
//!
//! Conversion works on values only, so unknown fields don't cross, and it never fails. But a form
//! can lack a field that v1 requires (a log without payload, a timer without a request id); no
//! consumer can get it. And v1 strings may be anything, while those of v2 are UTF-8; what isn't is
//! repaired, so that the result is always well formed.

mod to_v1;
mod to_v2;
mod view;

pub use to_v1::{Form, Forms, v2_to_v1};
pub use to_v2::{Converted, TagMap, v1_to_v2};

/// The tags that v1 keeps as fields of its envelope.
mod attribute {
    pub(super) const ORIGIN: &[u8] = b"origin";
    pub(super) const DEPLOYMENT: &[u8] = b"deployment";
    pub(super) const JOB: &[u8] = b"job";
    pub(super) const INDEX: &[u8] = b"index";
    pub(super) const IP: &[u8] = b"ip";
    /// What kind of v1 envelope a v2 envelope was made of.
    pub(super) const V1_TYPE: &[u8] = b"__v1_type";
    pub(super) const SOURCE_ID: &[u8] = b"source_id";
    pub(super) const INSTANCE_ID: &[u8] = b"instance_id";
    pub(super) const SOURCE_TYPE: &[u8] = b"source_type";
    pub(super) const SOURCE: &[u8] = b"source";
    pub(super) const CODE: &[u8] = b"code";
    pub(super) const REQUEST_ID: &[u8] = b"request_id";
    pub(super) const PEER_TYPE: &[u8] = b"peer_type";
    pub(super) const METHOD: &[u8] = b"method";
    pub(super) const URI: &[u8] = b"uri";
    pub(super) const REMOTE_ADDRESS: &[u8] = b"remote_address";
    pub(super) const USER_AGENT: &[u8] = b"user_agent";
    pub(super) const STATUS_CODE: &[u8] = b"status_code";
    pub(super) const CONTENT_LENGTH: &[u8] = b"content_length";
    pub(super) const ROUTING_INSTANCE_ID: &[u8] = b"routing_instance_id";
    pub(super) const FORWARDED: &[u8] = b"forwarded";
}

/// Entries of a tag map in the order in which they are set: of equal keys the last one stays.
/// Sorted, so that many tags don't cost more than they should.
fn last_of_each<'a>(
    mut entries: Vec<(crate::Text<'a>, crate::Text<'a>)>,
) -> Vec<(crate::Text<'a>, crate::Text<'a>)> {
    entries.reverse();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    entries.dedup_by(|later, first| later.0 == first.0);
    entries
}
