//! Messages for the client: taken from its mailbox and the retained store, and fetched from the store.

use std::future::pending;
use std::time::Instant;

use tokio::task::JoinHandle;

use super::attached::Attached;
use super::context::ConnectionContext;
use super::io::Buffers;
use crate::moment::Moment;
use crate::outbox::Page;
use crate::stored;
use crate::wal::{Entry, Space, StorageError};

/// Messages are taken from the mailbox when less than this is left to be written.
const TAKE_BELOW_BYTES: usize = 16 * 1024;

/// The state of the way to the client.
#[derive(Default)]
pub(super) struct Outbound {
    /// Messages of the session that are being read from the store.
    fetching: Option<Fetching>,
    /// Messages of the session wait for the next commit of the store.
    pub awaits_store: bool,
    /// The connection is the writer, as it was when it [took](crate::outbox::Outbox::take) last.
    is_writer: bool,
    /// Time since which there are bytes to write of which the client has accepted none.
    pub unsent_since: Option<Instant>,
}

/// A page of the session's messages that is being read from the store. Cancelled on drop, if the read has not begun.
struct Fetching {
    page: Page,
    read: JoinHandle<Result<Vec<Entry>, StorageError>>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.read.abort();
    }
}

impl Outbound {
    /// Takes messages for the client, once those taken before are written; true if there are more retained messages to
    /// look for.
    pub(super) fn collect(
        &mut self,
        context: &ConnectionContext,
        attached: &mut Attached<'_>,
        buffers: &mut Buffers,
        now: &Moment,
    ) -> bool {
        let mut more = context.router.continue_replay(&mut attached.replays, &attached.mailbox, now);
        // Own bytes wait for the rest of a packet that a publisher began to write.
        if buffers.unsent() < TAKE_BELOW_BYTES || !self.is_writer {
            let progress = context.wal.progress();
            let mut transaction = context.wal.begin();
            let taken =
                attached.mailbox.take(&mut buffers.outbound, now.instant, progress, &mut transaction);
            self.is_writer = buffers.unsent() > 0;
            context.router.count_dropped(taken.lost);
            // Lost messages have left room, and no write will wake this connection for it.
            more |= taken.lost > 0 && !attached.replays.is_empty();
            self.awaits_store = taken.awaits_store;
            if let Some(page) = taken.page {
                let storage = context.wal.storage().clone();
                let from = stored::queue_key(page.session, page.from);
                // The read runs on a thread that may wait for the disk.
                let read =
                    tokio::task::spawn_blocking(move || storage.scan(Space::Queue, &from, page.messages));
                self.fetching = Some(Fetching { page, read });
            }
        }
        if buffers.unsent() > 0 {
            self.unsent_since.get_or_insert(now.instant);
        }
        more
    }

    /// Completes when a page has been read from the store.
    pub(super) async fn fetched(&mut self) -> Result<(Page, Vec<Entry>), StorageError> {
        let Some(Fetching { page, read }) = &mut self.fetching else { return pending().await };
        let (page, read) = (*page, read.await);
        self.fetching = None;
        match read {
            Ok(entries) => Ok((page, entries?)),
            // The runtime stops.
            Err(_) => pending().await,
        }
    }
}
