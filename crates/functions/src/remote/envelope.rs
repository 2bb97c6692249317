//! Invocations on the network.

use bytes::Bytes;
use edgefaas_cluster::calls::CallHead;
use edgefaas_isolates::{Event, Trigger};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ulid::Ulid;

use super::ThisNode;
use crate::invocation::{Invocation, Lineage, Principal};
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
        root: invocation.lineage.as_ref().map(|lineage| lineage.root().to_string()),
    }
}

/// The invocation of a call from member `peer`. A workflow that it calls belongs to the tree of instances that the call descends
/// from.
///
/// # Errors
/// The principal, the event or the root instance has an unknown form.
pub fn invocation(head: CallHead, body: Bytes, peer: u64) -> Result<Invocation, EnvelopeError> {
    let principal: Principal = decode("principal", &head.principal)?;
    let trigger: Trigger = decode("event", &head.event)?;
    let root = head.root.as_deref().map(Ulid::from_string).transpose();
    let root = root.map_err(|_| EnvelopeError::Undecodable { part: "root instance" })?;
    Ok(Invocation {
        id: head.id,
        function: head.function,
        principal,
        parent: head.parent,
        trace_parent: head.trace_parent,
        attempt: head.attempt,
        // The head was checked: it fits.
        depth: u8::try_from(head.depth).unwrap_or(u8::MAX),
        lineage: root.map(Lineage::elsewhere),
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
    use std::sync::Arc;

    use edgefaas_isolates::{CronTick, DirectCall, HttpRequest, MqttMessage, ObjectChange, WorkflowStep};

    use super::*;
    use crate::registry::function_of;

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
    fn depth_and_root_instance_travel_with_the_call() {
        let function = function_of("app = \"a\"\n[functions.f]\nmain = \"f.js\"\n");
        let event = Event { trigger: Trigger::Call(DirectCall::default()), body: Bytes::new() };
        let mut sent = Invocation::new("f".into(), Principal::Operator, event);
        let root = Ulid::from_parts(7, 8);
        (sent.depth, sent.lineage) = (16, Some(Lineage::new(root, Arc::new(()))));
        let call = head(&function, &sent, Repeat::Never, None);
        let received = invocation(call.clone(), Bytes::new(), 1).unwrap();
        let lineage = received.lineage.unwrap();
        assert_eq!((received.depth, lineage.root(), lineage.ancestor::<()>()), (16, root, None));
        sent.lineage = None;
        let received = invocation(head(&function, &sent, Repeat::Never, None), Bytes::new(), 1).unwrap();
        assert!(received.lineage.is_none());
        let forged = CallHead { root: Some("none".into()), ..call };
        let error = invocation(forged, Bytes::new(), 1).unwrap_err();
        assert_eq!(error, EnvelopeError::Undecodable { part: "root instance" });
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
