//! Sessions with members: for each one the stream that this node writes, and the one that it reads.
//!
//! What the machine knows of a member holds for one session. If either stream ends, the session ends, and so does the member's:
//! it sees the end of the other stream. Both begin a new one after a pause, or when the other has begun it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_cluster::artefacts::wire::Message;
use edgefaas_cluster::{MemberStream, OpenStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Traffic;
use super::streams::{self, OUTBOX, StreamEnd};
use super::task::Report;

/// First pause after the end of a session; doubled with each session that got no message.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The sessions.
pub(super) struct Peers {
    open: OpenStream,
    reports: mpsc::Sender<Report>,
    traffic: Arc<Traffic>,
    peers: BTreeMap<u64, Peer>,
    tasks: JoinSet<()>,
    /// Number of sessions so far, to know reports of earlier ones.
    sessions: u64,
}

struct Peer {
    session: u64,
    /// The member's channel is open.
    is_up: bool,
    outbox: Option<mpsc::Sender<Message>>,
    /// Cancels the reader.
    reader: Option<DropGuard>,
    /// The end of the pause between two sessions.
    reopen_at: Option<Instant>,
    /// Sessions in a row that ended without a message.
    failures: u32,
}

/// The message was not sent, and the session has ended.
pub(super) struct NotSent;

impl Peers {
    pub fn new(open: OpenStream, reports: mpsc::Sender<Report>, traffic: Arc<Traffic>) -> Self {
        Self { open, reports, traffic, peers: BTreeMap::new(), tasks: JoinSet::new(), sessions: 0 }
    }

    /// The members whose channel is open.
    pub fn up(&self) -> impl Iterator<Item = u64> + '_ {
        self.peers.iter().filter(|(_, peer)| peer.is_up).map(|(node_id, _)| *node_id)
    }

    /// The member's channel is open. A pause ends: it belonged to an earlier channel.
    pub fn set_up(&mut self, node_id: u64) {
        let peer = self.peer(node_id);
        (peer.is_up, peer.reopen_at, peer.failures) = (true, None, 0);
    }

    /// Ends the session with a member that is gone.
    pub fn remove(&mut self, node_id: u64) {
        self.peers.remove(&node_id);
    }

    /// True if a report belongs to the current session.
    pub fn is_current(&self, node_id: u64, session: u64) -> bool {
        self.peers.get(&node_id).is_some_and(|peer| peer.session == session)
    }

    /// A message came in the current session.
    pub fn received(&mut self, node_id: u64) {
        if let Some(peer) = self.peers.get_mut(&node_id) {
            peer.failures = 0;
        }
    }

    /// Ends the session; the next one begins after a pause.
    pub fn end_session(&mut self, node_id: u64) {
        self.sessions += 1;
        let session = self.sessions;
        if let Some(peer) = self.peers.get_mut(&node_id) {
            let pause = (REOPEN_AFTER * (1 << peer.failures.min(6))).min(MAX_PAUSE);
            let failures = peer.failures.saturating_add(1);
            let reopen_at = Some(Instant::now() + pause);
            *peer = Peer { session, is_up: peer.is_up, outbox: None, reader: None, reopen_at, failures };
        }
    }

    /// Reads a stream that a member has opened. True if this begins a new session: the member has begun one.
    pub fn incoming(&mut self, node_id: u64, mut stream: MemberStream) -> bool {
        let peer = self.peer(node_id);
        let is_new = peer.reader.is_some() || peer.reopen_at.is_some();
        if is_new {
            self.sessions += 1;
        }
        let sessions = self.sessions;
        let peer = self.peer(node_id);
        if is_new {
            (peer.session, peer.outbox, peer.reopen_at) = (sessions, None, None);
        }
        let cancel = CancellationToken::new();
        peer.reader = Some(cancel.clone().drop_guard());
        let session = peer.session;
        let (reports, traffic) = (self.reports.clone(), self.traffic.clone());
        self.tasks.spawn(async move {
            let read = async {
                loop {
                    let report = match streams::read(&mut stream, &traffic).await {
                        Ok(message) => Report::Message { node_id, session, message },
                        Err(end) => {
                            let _ = reports.send(Report::Ended { node_id, session, end }).await;
                            return;
                        }
                    };
                    if reports.send(report).await.is_err() {
                        return;
                    }
                }
            };
            cancel.run_until_cancelled(read).await;
        });
        is_new
    }

    /// Puts a message into the outbox of the member; opens a stream if there is none.
    ///
    /// # Errors
    /// The member does not read, and its outbox is full.
    pub fn send(&mut self, node_id: u64, message: Message) -> Result<(), NotSent> {
        let (open, reports, traffic) = (self.open.clone(), self.reports.clone(), self.traffic.clone());
        let peer = self.peer(node_id);
        if peer.reopen_at.is_some() {
            // The machine knows that the session has ended.
            return Ok(());
        }
        let session = peer.session;
        let outbox = match &peer.outbox {
            Some(outbox) => outbox.clone(),
            None => {
                let (outbox, waiting) = mpsc::channel(OUTBOX);
                peer.outbox = Some(outbox.clone());
                self.tasks.spawn(async move {
                    let written: Result<(), StreamEnd> =
                        streams::write(node_id, open, waiting, traffic).await;
                    if let Err(end) = written {
                        let _ = reports.send(Report::Ended { node_id, session, end }).await;
                    }
                });
                outbox
            }
        };
        match outbox.try_send(message) {
            // The report of the writer's end is on the way.
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.end_session(node_id);
                Err(NotSent)
            }
        }
    }

    /// The members whose pause has ended.
    pub fn reopened(&mut self, now: Instant) -> Vec<u64> {
        let due = self.peers.iter_mut().filter_map(|(node_id, peer)| {
            let is_due = peer.reopen_at.take_if(|at| *at <= now).is_some();
            (is_due && peer.is_up).then_some(*node_id)
        });
        due.collect()
    }

    /// The end of the first pause.
    pub fn next_reopening(&self) -> Option<Instant> {
        self.peers.values().filter_map(|peer| peer.reopen_at).min()
    }

    /// Forgets tasks that have ended.
    pub fn reap(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            if let Err(error) = ended {
                tracing::error!(%error, "a stream of artefacts failed");
            }
        }
    }

    fn peer(&mut self, node_id: u64) -> &mut Peer {
        let sessions = &mut self.sessions;
        self.peers.entry(node_id).or_insert_with(|| {
            *sessions += 1;
            Peer {
                session: *sessions,
                is_up: false,
                outbox: None,
                reader: None,
                reopen_at: None,
                failures: 0,
            }
        })
    }
}
