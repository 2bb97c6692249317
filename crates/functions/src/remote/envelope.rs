//! Invocations on the network.

use bytes::Bytes;
use edgefaas_cluster::calls::CallHead;
use edgefaas_isolates::{Event, Trigger};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ThisNode;
use crate::invocation::{Invocation, Principal};
use crate::registry::LiveFunction;

/// The version of the encoding of principals and events. A node refuses others.
const VERSION: u8 = 1;

/// The part of a call that this node cannot decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Another version of the encoding.
    #[error(
        "the {part} of the call has format version {version}; this node knows version {VERSION}: update edgefaas on all nodes"
    )]
    Version {
        /// The part.
        part: &'static str,
        /// Its version.
        version: u8,
    },
    /// Invalid data.
    #[error("the {part} of the call cannot be decoded")]
    Undecodable {
        /// The part.
        part: &'static str,
    },
}

/// How the entry node handles a lost call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// It answers with an error.
    Never,
    /// It repeats the call until it has an outcome.
    UntilDone,
}

/// The call of an invocation, without its body. The remaining time is set when the call is sent.
pub fn head(
    function: &LiveFunction,
    invocation: &Invocation,
    repeat: Repeat,
    entry: Option<&ThisNode>,
) -> CallHead {
    CallHead {
        id: invocation.id.clone(),
        function: function.name.to_string(),
        app: function.app.to_string(),
        principal: encode(&invocation.principal),
        event: encode(&invocation.event.trigger),
        remaining_ms: 0,
        trace_parent: invocation.trace_parent.clone(),
        parent: invocation.parent.clone(),
        attempt: invocation.attempt,
        depth: invocation.depth.into(),
        hops: 1,
        is_repeated: repeat == Repeat::UntilDone,
        entry_node: entry.map_or(0, |entry| entry.id),
        entry_zone: entry.and_then(|entry| entry.zone.clone()).unwrap_or_default(),
        body_bytes: 0,
    }
}

/// The invocation of a call from member `peer`. It has no lineage: a workflow that it calls begins a tree of instances of its
/// own on this node.
///
/// # Errors
/// The principal or the event has an unknown form.
pub fn invocation(head: CallHead, body: Bytes, peer: u64) -> Result<Invocation, EnvelopeError> {
    let principal: Principal = decode("principal", &head.principal)?;
    let trigger: Trigger = decode("event", &head.event)?;
    Ok(Invocation {
        id: head.id,
        function: head.function,
        principal,
        parent: head.parent,
        trace_parent: head.trace_parent,
        attempt: head.attempt,
        // The head was checked: it fits.
        depth: u8::try_from(head.depth).unwrap_or(u8::MAX),
        lineage: None,
        placed_by: Some(peer),
        // The entry node starts the calls of a key one after another.
        order_key: None,
        event: Event { trigger, body },
    })
}

fn encode(part: &impl Serialize) -> Bytes {
    // This cannot fail: it writes plain types to memory.
    postcard::to_extend(part, vec![VERSION]).unwrap_or_default().into()
}

fn decode<T: DeserializeOwned>(part: &'static str, bytes: &[u8]) -> Result<T, EnvelopeError> {
    match bytes.split_first() {
        Some((&VERSION, fields)) => {
            postcard::from_bytes(fields).map_err(|_| EnvelopeError::Undecodable { part })
        }
        Some((&version, _)) => Err(EnvelopeError::Version { part, version }),
        None => Err(EnvelopeError::Undecodable { part }),
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_isolates::{CronTick, DirectCall, HttpRequest, MqttMessage, ObjectChange, WorkflowStep};

    use super::*;

    #[test]
    fn principals_and_events_are_decoded_as_they_were_sent() {
        let triggers = [
            Trigger::Http(HttpRequest {
                method: "POST".into(),
                path: "/a".into(),
                ..HttpRequest::default()
            }),
            Trigger::Mqtt(MqttMessage {
                topic: "a/b".into(),
                correlation_data: Some(Bytes::from_static(&[0, 255])),
                ..MqttMessage::default()
            }),
            Trigger::Cron(CronTick { schedule: "* * * * *".into(), scheduled_unix_ms: 7 }),
            Trigger::Object(ObjectChange { object: "o".into(), field: "f".into() }),
            Trigger::Call(DirectCall { caller: Some("g".into()) }),
            Trigger::Workflow(WorkflowStep {
                workflow: "w".into(),
                instance: "i".into(),
                task: "t".into(),
            }),
        ];
        for trigger in triggers {
            assert_eq!(decode::<Trigger>("event", &encode(&trigger)), Ok(trigger));
        }
        let principals = [
            Principal::Operator,
            Principal::Http,
            Principal::Mqtt { client_id: "c".into() },
            Principal::Function { name: "g".into() },
            Principal::Schedule,
            Principal::Object,
        ];
        for principal in principals {
            assert_eq!(decode::<Principal>("principal", &encode(&principal)), Ok(principal));
        }
    }

    #[test]
    fn unknown_forms_are_clear_errors() {
        let error = decode::<Trigger>("event", &[2, 0, 0]).unwrap_err();
        assert!(error.to_string().contains("format version 2"), "{error}");
        for bytes in [&[][..], &[VERSION], &[VERSION, 200, 0]] {
            let error = decode::<Trigger>("event", bytes).unwrap_err();
            assert_eq!(error, EnvelopeError::Undecodable { part: "event" });
        }
    }
}
