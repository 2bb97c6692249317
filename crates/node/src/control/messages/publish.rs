//! A message that a caller of the control API publishes, as a client of MQTT would.

use std::sync::Arc;
use std::time::Duration;

use edgefaas_api::messages as proto;
use edgefaas_broker::topic::SYS_PREFIX;
use edgefaas_broker::{
    Broker, Client, Message, Origin, Peer, Properties, PublishOutcome, QoS, RejectReason, TopicName,
    Version,
};
use tonic::Status;

use super::permissions::Permissions;
use crate::access::CONTROL_CLIENTS;

/// Maximum time until a message is stored.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn publish(
    broker: &Broker,
    request: proto::PublishRequest,
    permissions: &Permissions,
) -> Result<proto::PublishResponse, Status> {
    let message = message_of(request, broker.max_message_bytes())?;
    let topic = message.topic().as_str().to_owned();
    if topic.starts_with(SYS_PREFIX) {
        return Err(Status::permission_denied(format!(
            "topic `{topic}`: only the broker itself publishes under $SYS/"
        )));
    }
    if !permissions.may_publish(&topic) {
        let caller = permissions.caller();
        return Err(Status::permission_denied(format!(
            "{caller} may not publish to `{topic}`: no rule of `access.acl` allows it"
        )));
    }
    let origin = Origin::Client(Arc::new(client_of(permissions)));
    let published = tokio::time::timeout(TIMEOUT, broker.publish_acknowledged(&origin, message)).await;
    let published = published.map_err(|_| {
        Status::deadline_exceeded(format!(
            "the message to `{topic}` was not acknowledged within {TIMEOUT:?}"
        ))
    })?;
    let outcome = published.map_err(|error| {
        Status::unavailable(format!("the message to `{topic}` could not be stored: {error}"))
    })?;
    match outcome {
        PublishOutcome::Routed(routed) if routed.retain_refused => {
            Err(Status::resource_exhausted(format!(
                "the message to `{topic}` went to {} subscriptions, but was not retained: the retained store or the disk is full",
                routed.subscribers - routed.dropped.min(routed.subscribers)
            )))
        }
        PublishOutcome::Routed(routed) => {
            let subscribers = routed.subscribers.saturating_sub(routed.dropped);
            Ok(proto::PublishResponse { subscribers: subscribers as u64 })
        }
        PublishOutcome::Consumed => Ok(proto::PublishResponse { subscribers: 0 }),
        PublishOutcome::Rejected(reason) => Err(rejected(&topic, reason)),
    }
}

fn message_of(request: proto::PublishRequest, max_bytes: usize) -> Result<Message, Status> {
    let proto::PublishRequest { topic, payload, qos, retain, content_type } = request;
    let topic = TopicName::new(topic.clone())
        .map_err(|error| Status::invalid_argument(format!("`{topic}`: {error}")))?;
    let qos = match qos {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        2 => QoS::ExactlyOnce,
        other => return Err(Status::invalid_argument(format!("the QoS is {other}; it is 0, 1 or 2"))),
    };
    let content_type = (!content_type.is_empty()).then(|| content_type.into());
    let properties = Properties { content_type, ..Properties::default() };
    if let Some(problem) = properties.problem() {
        return Err(Status::invalid_argument(problem.to_string()));
    }
    let message =
        Message::new(topic, payload).with_qos(qos).with_retain(retain).with_properties(properties);
    let bytes = message.weight();
    if bytes > max_bytes {
        return Err(Status::invalid_argument(format!(
            "the message has {bytes} bytes; at most {max_bytes} are allowed (`broker.max_packet`)"
        )));
    }
    Ok(message)
}

/// The client that a message comes from.
fn client_of(permissions: &Permissions) -> Client {
    let Peer { address, transport, .. } = Peer::internal();
    let user = permissions.user();
    Client {
        client_id: format!("{CONTROL_CLIENTS}{}", user.map_or("", |user| &**user)).into(),
        username: user.cloned(),
        peer: address,
        version: Version::V5,
        transport,
    }
}

fn rejected(topic: &str, reason: RejectReason) -> Status {
    match reason {
        RejectReason::NotAuthorized => Status::permission_denied(format!(
            "topic `{topic}` is the node's own: clients may not publish to it"
        )),
        RejectReason::QuotaExceeded => Status::resource_exhausted(format!(
            "the message to `{topic}` was not accepted: the queue of a function or of a session, or the disk, is full; try again"
        )),
        RejectReason::TopicNameInvalid => {
            Status::not_found(format!("topic `{topic}` calls a function or workflow that does not exist"))
        }
        RejectReason::ImplementationSpecific | RejectReason::PayloadFormatInvalid => {
            Status::invalid_argument(format!(
                "the message to `{topic}` is not accepted here: {reason:?}; see the node's log"
            ))
        }
        RejectReason::Unspecified => {
            Status::internal(format!("the message to `{topic}` was refused; see the node's log"))
        }
    }
}
