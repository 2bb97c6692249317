//! Messages for a caller as they arrive. The broker's queue is always drained, into a bounded buffer that loses the oldest ones.

use std::collections::VecDeque;
use std::sync::Arc;

use edgefaas_api::messages as proto;
use edgefaas_broker::{Broker, TopicFilter};
use edgefaas_platform::Clock;
use futures_util::{Stream, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use ulid::Ulid;

use super::permissions::Permissions;
use super::slots::Slot;
use crate::access::CONTROL_CLIENTS;
use crate::bridge::local_subscription::{LocalSubscription, Received, SubscriptionOptions};

/// Maximum number of messages that wait for a caller.
const MAX_MESSAGES: usize = 256;
/// Maximum bytes of the messages that wait for a caller.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of a payload that are passed on.
const MAX_PAYLOAD_BYTES: usize = 64 << 10;
/// Bytes of a message beside its texts and its payload.
const MESSAGE_BYTES: usize = 256;

/// The subscription that a caller wants.
pub(super) struct Wanted {
    pub filter: String,
    pub retained: bool,
    pub permissions: Permissions,
}

/// Messages between the broker and the caller.
#[derive(Default)]
struct Shared {
    buffer: Mutex<Buffer>,
    changed: Notify,
}

#[derive(Default)]
struct Buffer {
    messages: VecDeque<(proto::Message, usize)>,
    bytes: usize,
    /// Messages that were lost before the first one.
    lost: u64,
    /// The end of the subscription.
    ended: Option<Status>,
}

/// The side of the caller. A drop ends the subscription.
struct Reading {
    shared: Arc<Shared>,
    broker: Broker,
    client_id: String,
    /// Losses of the broker's own queue that were reported.
    reported: u64,
    end: CancellationToken,
    _filling: AbortOnDropHandle<()>,
    _slot: Slot,
}

/// Subscribes; the subscription holds when this returns, and ends with `end`.
pub(super) async fn open(
    broker: &Broker,
    wanted: Wanted,
    slot: Slot,
    end: CancellationToken,
) -> Result<impl Stream<Item = Result<proto::Message, Status>> + Send + use<>, Status> {
    let Wanted { filter, retained, permissions } = wanted;
    TopicFilter::new(&*filter).map_err(|error| Status::invalid_argument(error.to_string()))?;
    if filter.starts_with("$share/") {
        return Err(Status::invalid_argument(format!(
            "`{filter}` is a shared subscription: it would take messages away from its group; use the filter alone"
        )));
    }
    if !permissions.may_read(&filter) {
        return Err(not_allowed(&permissions, &filter));
    }
    let client_id = format!("{CONTROL_CLIENTS}subscribe-{}", Ulid::generate());
    let options = SubscriptionOptions { qos: 0, retained };
    let local = LocalSubscription::open_with(broker, &client_id, &[&filter], options).await;
    let local = local.map_err(|error| Status::unavailable(format!("`{filter}`: {error}")))?;
    let shared = Arc::new(Shared::default());
    let filling = tokio::spawn(fill(local, shared.clone(), filter, permissions));
    let reading = Reading {
        shared,
        broker: broker.clone(),
        client_id,
        reported: 0,
        end,
        _filling: AbortOnDropHandle::new(filling),
        _slot: slot,
    };
    Ok(stream::unfold(reading, |mut reading| async move {
        let next = reading.next().await?;
        Some((next, reading))
    }))
}

/// Drains the broker's queue until the subscription ends.
async fn fill(
    mut local: LocalSubscription,
    shared: Arc<Shared>,
    filter: String,
    mut permissions: Permissions,
) {
    let clock = Clock::system();
    let ended = loop {
        match local.next().await {
            Ok(_) if permissions.renew() && !permissions.may_read(&filter) => {
                break not_allowed(&permissions, &filter);
            }
            Ok(received) => {
                shared.buffer.lock().push(message_of(received, clock.now_unix_ms()));
                shared.changed.notify_one();
            }
            Err(error) => break Status::unavailable(format!("`{filter}`: {error}")),
        }
    };
    shared.buffer.lock().ended = Some(ended);
    shared.changed.notify_one();
}

fn not_allowed(permissions: &Permissions, filter: &str) -> Status {
    let caller = permissions.caller();
    Status::permission_denied(format!(
        "{caller} may not subscribe to `{filter}`: no rule of `access.acl` allows all of it"
    ))
}

impl Reading {
    /// The next message; `None` at the end.
    async fn next(&mut self) -> Option<Result<proto::Message, Status>> {
        loop {
            let taken = self.shared.buffer.lock().pop();
            match taken {
                Some(Ok(mut message)) => {
                    let lost = self.broker.lost(&self.client_id).unwrap_or(self.reported);
                    message.lost_before += lost.saturating_sub(self.reported);
                    self.reported = lost;
                    return Some(Ok(message));
                }
                Some(Err(ended)) => return Some(Err(ended)),
                None => {}
            }
            tokio::select! {
                () = self.shared.changed.notified() => {}
                () = self.end.cancelled() => return None,
            }
        }
    }
}

impl Buffer {
    fn push(&mut self, message: proto::Message) {
        let properties = message.user_properties.iter();
        let bytes = properties
            .map(|property| property.name.len() + property.value.len() + MESSAGE_BYTES / 4)
            .sum::<usize>()
            + MESSAGE_BYTES
            + message.topic.len()
            + message.payload.len()
            + message.content_type.len();
        self.bytes += bytes;
        self.messages.push_back((message, bytes));
        // The last one stays, whatever its size: the broker bounds it.
        while self.messages.len() > 1 && (self.messages.len() > MAX_MESSAGES || self.bytes > MAX_BYTES) {
            if let Some((_, bytes)) = self.messages.pop_front() {
                self.bytes -= bytes;
                self.lost += 1;
            }
        }
    }

    /// The next message, or the end behind the last one; `None` if none waits.
    fn pop(&mut self) -> Option<Result<proto::Message, Status>> {
        let Some((mut message, bytes)) = self.messages.pop_front() else {
            return self.ended.take().map(Err);
        };
        self.bytes -= bytes;
        message.lost_before = std::mem::take(&mut self.lost);
        Some(Ok(message))
    }
}

fn message_of(received: Received, unix_ms: u64) -> proto::Message {
    let Received { topic, payload, qos, retain, content_type, user_properties } = received;
    let property = |(name, value)| proto::UserProperty { name, value };
    proto::Message {
        topic,
        payload: payload.get(..MAX_PAYLOAD_BYTES).unwrap_or(&payload).to_vec(),
        payload_bytes: payload.len() as u64,
        qos: qos.into(),
        retain,
        unix_ms,
        content_type: content_type.unwrap_or_default(),
        user_properties: user_properties.into_iter().map(property).collect(),
        lost_before: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: usize) -> proto::Message {
        proto::Message { payload: vec![0; payload], ..Default::default() }
    }

    #[test]
    fn a_full_buffer_loses_the_oldest_messages_and_counts_them() {
        let mut buffer = Buffer::default();
        (0..MAX_MESSAGES + 10).for_each(|number| {
            buffer.push(proto::Message { unix_ms: number as u64, ..Default::default() });
        });
        let first = buffer.pop().and_then(Result::ok).expect("a message");
        assert_eq!((first.unix_ms, first.lost_before), (10, 10));
        let second = buffer.pop().and_then(Result::ok).expect("a message");
        assert_eq!((second.unix_ms, second.lost_before), (11, 0));
    }

    #[test]
    fn the_bytes_of_a_buffer_are_bounded() {
        let mut buffer = Buffer::default();
        (0..100).for_each(|_| buffer.push(message(MAX_PAYLOAD_BYTES)));
        assert!(buffer.bytes <= MAX_BYTES);
        let kept = buffer.messages.len();
        assert_eq!(buffer.lost, 100 - kept as u64);
        while buffer.pop().is_some() {}
        assert_eq!(buffer.bytes, 0);
        buffer.push(message(2 * MAX_BYTES));
        assert_eq!(buffer.messages.len(), 1, "a large message is not lost");
        buffer.push(message(1));
        assert_eq!((buffer.messages.len(), buffer.lost), (1, 1));
    }

    #[test]
    fn the_end_comes_behind_the_messages() {
        let mut buffer = Buffer { ended: Some(Status::unavailable("x")), ..Buffer::default() };
        buffer.push(message(1));
        assert!(buffer.pop().is_some_and(|next| next.is_ok()));
        assert!(buffer.pop().is_some_and(|next| next.is_err()));
    }
}
