//! Copies of one message for many subscribers.

use bytes::Bytes;

use crate::delivery::Delivery;
use crate::message::Message;
use crate::stored::{self, QueueRecord};

/// Copies of one message that its subscribers share. The first outbox that has to keep the message makes them.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    message: Option<Message>,
    /// The stored form, for one way of delivery.
    record: Option<(Delivery, Bytes)>,
}

impl Copies {
    /// A copy of the message to keep.
    pub(crate) fn message(&mut self, message: &Message) -> Message {
        self.message.get_or_insert_with(|| message.clone()).clone()
    }

    /// The stored form of the message.
    pub(super) fn record(
        &mut self,
        message: &Message,
        delivery: &Delivery,
        received_unix_ms: u64,
    ) -> Bytes {
        match &self.record {
            Some((same, record)) if same == delivery => record.clone(),
            _ => {
                let record =
                    Bytes::from(stored::encode(&QueueRecord::of(message, delivery, received_unix_ms)));
                self.record = Some((delivery.clone(), record.clone()));
                record
            }
        }
    }
}
