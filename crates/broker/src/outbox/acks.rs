//! Acknowledgements of the client: PUBACK, PUBREC, PUBCOMP.

use std::num::NonZeroU16;

use bytes::Bytes;

use super::outcome::{Release, WrongAck};
use super::slot::Slot;
use super::{Outbox, PACKET_IDS, packet_id};
use crate::stored::{self, QueueRecord};
use crate::wal::Transaction;

impl Outbox {
    /// PUBACK.
    pub(crate) fn acknowledged(
        &mut self,
        id: NonZeroU16,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), WrongAck> {
        match self.slot(id) {
            None | Some((_, Slot::Done | Slot::Waiting(_))) => Ok(()),
            Some((at, Slot::Published(_))) => {
                self.done(at, transaction);
                Ok(())
            }
            Some((_, Slot::PublishedOnce(_) | Slot::Released(_))) => Err(WrongAck),
        }
    }

    /// PUBREC.
    pub(crate) fn received(
        &mut self,
        id: NonZeroU16,
        failed: bool,
        transaction: &mut Transaction<'_>,
    ) -> Result<Release, WrongAck> {
        match self.slot(id) {
            None | Some((_, Slot::Done | Slot::Waiting(_))) if failed => Ok(Release::Ended),
            None | Some((_, Slot::Done | Slot::Waiting(_))) => Ok(Release::NotFound),
            Some((_, Slot::Published(_))) => Err(WrongAck),
            Some((at, Slot::PublishedOnce(_) | Slot::Released(_))) if failed => {
                self.done(at, transaction);
                Ok(Release::Ended)
            }
            Some((_, Slot::Released(_))) => Ok(Release::Send(None)),
            Some((at, Slot::PublishedOnce(figures))) => {
                self.slots[at] = Slot::Released(figures.clone());
                let number = self.first + at as u64;
                let released = || Some(stored::encode(&QueueRecord::Released));
                let stored = self.stored.as_mut();
                let ticket = stored
                    .map(|stored| stored.change(number, released().map(Bytes::from), true, transaction));
                Ok(Release::Send(ticket))
            }
        }
    }

    /// PUBCOMP.
    pub(crate) fn completed(
        &mut self,
        id: NonZeroU16,
        transaction: &mut Transaction<'_>,
    ) -> Result<(), WrongAck> {
        match self.slot(id) {
            None | Some((_, Slot::Done | Slot::Waiting(_))) => Ok(()),
            Some((at, Slot::Released(_))) => {
                self.done(at, transaction);
                Ok(())
            }
            Some((_, Slot::Published(_) | Slot::PublishedOnce(_))) => Err(WrongAck),
        }
    }

    /// The slot in flight that has this packet identifier.
    fn slot(&self, id: NonZeroU16) -> Option<(usize, &Slot)> {
        let first = u64::from(packet_id(self.first).get());
        let at = ((u64::from(id.get()) + PACKET_IDS - first) % PACKET_IDS) as usize;
        (at < self.sent).then(|| (at, &self.slots[at]))
    }

    fn done(&mut self, at: usize, transaction: &mut Transaction<'_>) {
        self.slots[at] = Slot::Done;
        self.open -= 1;
        if let Some(stored) = &mut self.stored {
            stored.change(self.first + at as u64, None, false, transaction);
        }
        self.shrink();
    }
}
