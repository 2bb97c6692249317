//! The link to a connected client: its buffer, its window, its topic aliases.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;

use super::direct::Way;
use super::outcome::Loss;
use crate::delivery::{Dated, Delivery};
use crate::message::QoS;
use crate::moment::seconds_left;
use crate::monitor::Figures;
use crate::topic::TopicName;
use crate::wire::{Encoder, PublishHeader, TopicAlias};

/// Capacity above which an emptied buffer is given back.
const KEPT_CAPACITY_BYTES: usize = 16 * 1024;

/// The link to a connected client.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) encoder: Encoder,
    pub(super) buffer: BytesMut,
    pub(super) buffered_messages: usize,
    /// Numbers of messages in the buffer, by the figures of the filters that they matched.
    pub(super) buffered: Vec<(Arc<Figures>, u64)>,
    pub(super) window: usize,
    pub(super) aliases: Aliases,
    pub(super) way: Way,
    /// A publisher waits for room.
    pub(super) awaited: bool,
    /// A publisher gave up waiting, and the connection has taken nothing since.
    pub(super) stalled: bool,
    /// Messages that waited before the client came, or before its permissions changed: these are to be checked again.
    pub(super) recheck: Option<Recheck>,
}

/// Messages that the client gets only if it may subscribe to their topics now.
pub(super) struct Recheck {
    /// All before this number.
    pub(super) before: u64,
    pub(super) may_read: MayRead,
}

/// Permission check: returns true if the client may subscribe to the topic.
pub(crate) type MayRead = Box<dyn Fn(&TopicName) -> bool + Send>;

impl std::fmt::Debug for Recheck {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Recheck").field("before", &self.before).finish_non_exhaustive()
    }
}

/// Topic aliases of the client.
#[derive(Debug)]
pub(super) struct Aliases {
    pub(super) maximum: u16,
    pub(super) known: HashMap<TopicName, NonZeroU16>,
}

impl Link {
    pub(super) fn new(encoder: Encoder, window: NonZeroU16, alias_maximum: u16) -> Link {
        Link {
            encoder,
            buffer: BytesMut::new(),
            buffered_messages: 0,
            buffered: Vec::new(),
            window: window.get().into(),
            aliases: Aliases { maximum: alias_maximum, known: HashMap::new() },
            way: Way::Connection,
            awaited: false,
            stalled: false,
            recheck: None,
        }
    }

    pub(super) fn publish(
        &mut self,
        dated: Dated<'_>,
        delivery: &Delivery,
        packet_id: Option<NonZeroU16>,
        duplicate: bool,
        figures: &Arc<Figures>,
        now: Instant,
    ) -> Result<(), Loss> {
        let expiry_seconds = match dated.message.expiry_seconds() {
            None => None,
            Some(seconds) => {
                let age = now.saturating_duration_since(dated.received);
                match seconds_left(seconds, age) {
                    // Once sent it does not expire (MQTT-4.3.3-7): the client may wait to complete it.
                    None if duplicate && delivery.qos == QoS::ExactlyOnce => Some(0),
                    left => Some(left.ok_or(Loss::Expired)?),
                }
            }
        };
        let alias = self.aliases.of(dated.message.topic());
        let header = PublishHeader {
            qos: delivery.qos,
            retain: delivery.retain,
            packet_id,
            subscription_identifiers: &delivery.identifiers,
            expiry_seconds,
            duplicate,
            alias,
        };
        if self.encoder.publish(&mut self.buffer, dated.message, header).is_err() {
            return Err(Loss::TooLarge);
        }
        if let Some(TopicAlias { number, known: false }) = alias {
            self.aliases.known.insert(dated.message.topic().detached(), number);
        }
        self.buffered_messages += 1;
        figures.queued(1);
        match self.buffered.last_mut() {
            Some((last, count)) if Arc::ptr_eq(last, figures) => *count += 1,
            _ => self.buffered.push((figures.clone(), 1)),
        }
        Ok(())
    }

    /// Moves the bytes of the buffer behind those of `out`, or before them if they begin with the rest of a packet.
    pub(super) fn take_all(&mut self, out: &mut BytesMut) {
        if self.way == Way::Torn || out.is_empty() {
            let later = std::mem::replace(out, std::mem::take(&mut self.buffer));
            out.extend_from_slice(&later);
            // Its room is of use again.
            self.buffer = later;
        } else {
            out.extend_from_slice(&self.buffer);
        }
        self.handed_over();
    }

    /// The bytes of the buffer are written, or will be.
    pub(super) fn handed_over(&mut self) {
        self.buffer.clear();
        if self.buffer.capacity() > KEPT_CAPACITY_BYTES {
            self.buffer = BytesMut::new();
        }
        self.buffered_messages = 0;
        for (figures, count) in self.buffered.drain(..) {
            figures.sent(count);
        }
        self.stalled = false;
    }

    /// True if the client may have a message that waited under this number.
    pub(super) fn may_have(&mut self, number: u64, topic: &TopicName) -> bool {
        match &self.recheck {
            Some(recheck) if number < recheck.before => (recheck.may_read)(topic),
            Some(_) => {
                self.recheck = None;
                true
            }
            None => true,
        }
    }
}

impl Aliases {
    /// The alias of a topic. The first topics get the aliases, and keep them.
    pub(super) fn of(&self, topic: &TopicName) -> Option<TopicAlias> {
        if self.maximum == 0 {
            return None;
        }
        if let Some(&number) = self.known.get(topic) {
            return Some(TopicAlias { number, known: true });
        }
        let number = u16::try_from(self.known.len() + 1).ok().filter(|number| *number <= self.maximum)?;
        NonZeroU16::new(number).map(|number| TopicAlias { number, known: false })
    }
}
