//! Lists of retained messages.

use edgefaas_api::messages as proto;
use edgefaas_broker::{Broker, RetainedMessage, Search};
use tonic::Status;

use super::permissions::Permissions;
use super::{SLICE, filter_of, limit_of, listed};

/// Bytes of a content type in a list; longer ones are left out.
const MAX_CONTENT_TYPE_BYTES: usize = 256;

pub(super) fn list(
    broker: &Broker,
    request: proto::ListRetainedRequest,
    permissions: &Permissions,
) -> Result<proto::ListRetainedResponse, Status> {
    let proto::ListRetainedRequest { filter, search, after, limit } = request;
    let (filter, search, limit) = (filter_of(&filter)?, Search::new(&search), limit_of(limit));
    let mut after = (!after.is_empty()).then_some(after);
    let mut found = Vec::new();
    loop {
        after = broker.visit_retained(filter.literal_prefix(), after.as_deref(), SLICE, |retained| {
            let topic = retained.message.topic().as_str();
            if found.len() <= limit
                && filter.matches(topic)
                && search.matches(topic)
                && permissions.may_read(topic)
            {
                found.push(retained);
            }
        });
        if after.is_none() || found.len() > limit {
            break;
        }
    }
    let more = found.len() > limit;
    found.truncate(limit);
    let messages = found.iter().map(convert).collect();
    Ok(proto::ListRetainedResponse { messages, more, total: broker.retained_of_clients() })
}

fn convert(retained: &RetainedMessage) -> proto::Message {
    let RetainedMessage { message, received_unix_ms } = retained;
    let content_type = message.properties().and_then(|properties| properties.content_type.as_deref());
    let content_type = content_type.filter(|text| text.len() <= MAX_CONTENT_TYPE_BYTES);
    proto::Message {
        topic: message.topic().as_str().to_owned(),
        payload: listed(message.payload()),
        payload_bytes: message.payload().len() as u64,
        qos: message.qos() as u32,
        retain: true,
        unix_ms: *received_unix_ms,
        content_type: content_type.unwrap_or_default().to_owned(),
        ..Default::default()
    }
}
