//! The sessions there are: one for each client identifier, connected or waiting for its client to come back.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::client::Client;
use crate::limits::Claim;
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS};
use crate::monitor::Figures;
use crate::topic::{TopicFilter, TopicName};

/// All sessions, by client identifier.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    by_client: HashMap<Arc<str>, Known>,
    /// How many have a connection.
    connected: usize,
    /// How many outlive their connections.
    pub kept: usize,
    /// The number of the next session that is kept.
    pub next_session: u64,
    next_parking: u64,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Known {
    pub mailbox: Arc<Mailbox>,
    /// The user it belongs to; nobody in particular without a name.
    pub owner: Option<Arc<str>>,
    /// Its state while it has no connection; with one, the connection has it.
    pub parked: Option<Parked>,
}

/// What a session consists of beside its outbox and its subscriptions' options.
#[derive(Debug)]
pub(crate) struct State {
    pub filters: HashSet<TopicFilter>,
    /// QoS 2 messages of the client that wait for PUBREL.
    pub unreleased: HashSet<NonZeroU16>,
    /// Retained messages that subscriptions still have to get.
    pub replays: VecDeque<Replay>,
}

/// The retained messages of one subscription, found and sent a slice at a time.
#[derive(Debug)]
pub(crate) struct Replay {
    pub filter: TopicFilter,
    pub qos: QoS,
    pub identifier: Option<NonZeroU32>,
    pub figures: Arc<Figures>,
    /// Found and not sent yet.
    pub topics: VecDeque<TopicName>,
    /// Where to look on.
    pub after: Option<TopicName>,
    /// There are no more to be found.
    pub walked: bool,
}

/// What is published when a client is lost, counted for as long as it may be.
#[derive(Debug)]
pub(crate) struct Will {
    pub message: Message,
    pub claim: Claim,
}

/// A session that waits for its client.
#[derive(Debug)]
pub(crate) struct Parked {
    pub state: State,
    /// Who it belongs to.
    pub client: Arc<Client>,
    /// `u32::MAX` is for ever.
    pub expiry_seconds: u32,
    pub will: Option<Will>,
    /// When the will is published.
    pub will_at: Option<Instant>,
    /// When it is over; `None` for never.
    pub expires_at: Option<Instant>,
    /// Tells this waiting from an earlier one.
    pub parking: u64,
}

impl State {
    pub(crate) fn new() -> State {
        State { filters: HashSet::new(), unreleased: HashSet::new(), replays: VecDeque::new() }
    }
}

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.by_client.len()
    }

    pub(crate) fn connected(&self) -> usize {
        self.connected
    }

    pub(crate) fn get(&self, client_id: &str) -> Option<&Known> {
        self.by_client.get(client_id)
    }

    pub(crate) fn get_mut(&mut self, client_id: &str) -> Option<&mut Known> {
        self.by_client.get_mut(client_id)
    }

    pub(crate) fn mailboxes(&self) -> impl Iterator<Item = (&Arc<Mailbox>, bool)> {
        self.by_client.values().map(|known| (&known.mailbox, known.parked.is_none()))
    }

    /// A new session with a connection, of this user.
    pub(crate) fn insert(&mut self, mailbox: Arc<Mailbox>, owner: Option<Arc<str>>) {
        self.connected += 1;
        self.kept += usize::from(mailbox.session.is_some());
        self.by_client.insert(mailbox.client_id.clone(), Known { mailbox, owner, parked: None });
    }

    /// The state of a session that waited; its connection has it now.
    pub(crate) fn resume(&mut self, client_id: &str) -> Option<Parked> {
        let parked = self.by_client.get_mut(client_id)?.parked.take()?;
        self.connected += 1;
        Some(parked)
    }

    /// A connection gives its session back; says the number of this waiting.
    pub(crate) fn park(&mut self, client_id: &str, parked: Parked) -> u64 {
        let parking = self.next_parking;
        self.next_parking += 1;
        if let Some(known) = self.by_client.get_mut(client_id) {
            self.connected -= usize::from(known.parked.is_none());
            known.parked = Some(Parked { parking, ..parked });
        }
        parking
    }

    /// Takes a session out.
    pub(crate) fn remove(&mut self, client_id: &str) -> Option<Known> {
        let known = self.by_client.remove(client_id)?;
        self.connected -= usize::from(known.parked.is_none());
        self.kept -= usize::from(known.mailbox.session.is_some());
        Some(known)
    }
}

/// What is to happen to waiting sessions, and when.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: Mutex<BTreeMap<(Instant, u64, Due), Arc<str>>>,
    /// There is an earlier one than before.
    pub changed: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// Its will is published.
    Will,
    /// It is over.
    Expiry,
}

/// A waiting session whose time has come, unless its client came back meanwhile.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fired {
    pub client_id: Arc<str>,
    pub parking: u64,
    pub due: Due,
}

impl Timers {
    pub(crate) fn set(&self, at: Instant, client_id: &Arc<str>, parking: u64, due: Due) {
        let mut timers = self.due.lock();
        let first = timers.first_key_value().is_none_or(|((first, ..), _)| at < *first);
        timers.insert((at, parking, due), client_id.clone());
        if first {
            self.changed.notify_one();
        }
    }

    /// The client of a waiting session came back, or the session is over.
    pub(crate) fn cancel(&self, parked: &Parked) {
        let mut timers = self.due.lock();
        for (at, due) in [(parked.will_at, Due::Will), (parked.expires_at, Due::Expiry)] {
            if let Some(at) = at {
                timers.remove(&(at, parked.parking, due));
            }
        }
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.lock().first_key_value().map(|((at, ..), _)| *at)
    }

    /// Takes the next one that is due by now.
    pub(crate) fn fire(&self, now: Instant) -> Option<Fired> {
        let mut timers = self.due.lock();
        let entry = timers.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((_, parking, due), client_id) = entry.remove_entry();
        Some(Fired { client_id, parking, due })
    }
}

/// When something is due after so many seconds; `None` for never.
pub(crate) fn after_seconds(now: Instant, seconds: u32) -> Option<Instant> {
    (seconds < u32::MAX).then(|| now + Duration::from_secs(seconds.into()))
}
