//! Sessions, subscriptions, retained and queued messages of an earlier run, read from the store.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Instant;

use super::SessionTable;
use super::state::{Parked, State, Times, Will};
use crate::client::{Client, Transport};
use crate::mailbox::Mailbox;
use crate::message::Version;
use crate::moment::{Moment, after_seconds};
use crate::monitor::{Figures, Monitor};
use crate::protocol::Subscription;
use crate::stored::{self, Damage, MessageRecord, QueueRecord, SessionRecord, SubscriptionRecord};
use crate::topic::TopicFilter;
use crate::wal::{Change, Entry, Space, StorageError};

/// Entries read at a time, at most; fewer where they are large.
const MAX_PAGE_ENTRIES: usize = 1024;
const FIRST_PAGE_ENTRIES: usize = 16;
const PAGE_BYTES: usize = 1 << 20;

/// A session while it is being put together.
struct Loading {
    mailbox: Arc<Mailbox>,
    state: State,
    client: Arc<Client>,
    expiry_seconds: u32,
    offline_since_unix_ms: Option<u64>,
    will: Option<(Will, u32)>,
    /// Filters that its messages may have matched.
    figures: Vec<(TopicFilter, Arc<Figures>)>,
}

/// Numbers of entries that could not be used.
#[derive(Debug, Default)]
struct Damaged {
    sessions: usize,
    subscriptions: usize,
    retained: usize,
    messages: usize,
}

impl SessionTable {
    /// Reads sessions with their subscriptions and messages, and retained messages. Damaged entries are left out, deleted
    /// and counted in one warning. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The store can't be read.
    pub(crate) fn load(&self) -> Result<(), StorageError> {
        let now = self.now();
        let mut damaged = Damaged::default();
        let mut useless = Vec::new();
        let mut loading: HashMap<u64, Loading> = HashMap::new();
        // The entries load in the order of the first byte of their keys: incoming, retained, sessions, subscriptions. A
        // session must be loaded first.
        self.each(&[stored::SESSION], |key, value| match self.session(key, value) {
            Ok((id, session)) => drop(loading.insert(id, session)),
            Err(damage) => {
                note(&mut damaged.sessions, "session", key, damage);
                useless.push(key.to_vec());
            }
        })?;
        self.each(&[stored::SUBSCRIPTION], |key, value| {
            let found = self.subscription(&mut loading, key, value);
            found.unwrap_or_else(|damage| note(&mut damaged.subscriptions, "subscription", key, damage));
            if found != Ok(()) || !belongs(&loading, key) {
                useless.push(key.to_vec());
            }
        })?;
        self.each(&[stored::INCOMING], |key, _| {
            let packet_id = stored::parse_session_part(&key[1..]).and_then(|(session, rest)| {
                let packet_id = NonZeroU16::new(u16::from_be_bytes(rest.try_into().ok()?))?;
                loading.get_mut(&session).map(|loading| loading.state.unreleased.insert(packet_id))
            });
            if packet_id.is_none() {
                useless.push(key.to_vec());
            }
        })?;
        self.each(&[stored::RETAINED], |key, value| match self.load_retained(value, &now) {
            Ok(true) => {}
            Ok(false) => useless.push(key.to_vec()),
            Err(damage) => {
                note(&mut damaged.retained, "retained message", key, damage);
                useless.push(key.to_vec());
            }
        })?;
        let orphans = self.queues(&loading, &now, &mut damaged)?;
        self.each(&[stored::MARK], |key, value| {
            let session = stored::parse_session_part(&key[1..]).and_then(|(id, _)| loading.get(&id));
            match session.zip(stored::decode::<u64>(value).ok()) {
                Some((session, mark)) => session.mailbox.restore_mark(mark),
                None => useless.push(key.to_vec()),
            }
        })?;
        if damaged.sessions + damaged.subscriptions + damaged.retained + damaged.messages > 0 {
            tracing::warn!(
                sessions = damaged.sessions,
                subscriptions = damaged.subscriptions,
                retained_messages = damaged.retained,
                queued_messages = damaged.messages,
                "parts of what the broker stored are damaged and lost"
            );
        }
        let mut transaction = self.wal.begin();
        for key in useless {
            transaction.append(Change { space: Space::State, key, value: None }, false);
        }
        drop(transaction);
        // Messages of an ended session must not reach another: no new session gets the number of an ended one.
        let last = orphans.iter().copied().max().unwrap_or(0);
        self.sessions.lock().skip_numbers(last);
        let so_far = self.wal.so_far();
        orphans.into_iter().for_each(|session| self.purges.add(session, so_far));
        self.park_all(loading, &now);
        Ok(())
    }

    /// Calls `found` with every entry of [`Space::State`] whose key starts with `prefix`.
    fn each(&self, prefix: &[u8], mut found: impl FnMut(&[u8], &[u8])) -> Result<(), StorageError> {
        self.pages(Space::State, prefix, |(key, value)| {
            let within = key.starts_with(prefix);
            if within {
                found(key, value);
            }
            within
        })
    }

    /// Calls `found` with the entries of a space from a key on, until it says no.
    fn pages(
        &self,
        space: Space,
        from: &[u8],
        mut found: impl FnMut(&Entry) -> bool,
    ) -> Result<(), StorageError> {
        let mut from = from.to_vec();
        let mut entries = FIRST_PAGE_ENTRIES;
        loop {
            let page = self.wal.storage().scan(space, &from, entries)?;
            if !page.iter().all(&mut found) || page.len() < entries {
                return Ok(());
            }
            let bytes: usize = page.iter().map(|(key, value)| key.len() + value.len()).sum();
            entries =
                (PAGE_BYTES / (bytes / page.len()).max(1)).clamp(1, MAX_PAGE_ENTRIES).min(2 * entries);
            if let Some((last, _)) = page.last() {
                from.clone_from(last);
                from.push(0);
            }
        }
    }

    fn session(&self, key: &[u8], value: &[u8]) -> Result<(u64, Loading), Damage> {
        let client_id = std::str::from_utf8(&key[1..]).map_err(|_| Damage::Fields)?;
        let record: SessionRecord<'_> = stored::decode(value)?;
        let will = record.will.map(|will| {
            let message = will.message.message()?;
            Ok((self.claim_will(message), will.delay_seconds))
        });
        let client_id: Arc<str> = client_id.into();
        let mailbox =
            Mailbox::new(client_id.clone(), Some(record.id), self.limits.bounds, self.totals.clone());
        let client = Client {
            client_id,
            username: record.username.map(Into::into),
            peer: std::net::SocketAddr::from(([0, 0, 0, 0], 0)),
            version: Version::V5,
            transport: Transport::Tcp,
        };
        let loading = Loading {
            mailbox: Arc::new(mailbox),
            state: State::default(),
            client: Arc::new(client),
            expiry_seconds: record.expiry_seconds,
            offline_since_unix_ms: record.offline_since_unix_ms,
            will: will.transpose()?,
            figures: Vec::new(),
        };
        Ok((record.id, loading))
    }

    fn subscription(
        &self,
        loading: &mut HashMap<u64, Loading>,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Damage> {
        let (session, filter) = stored::parse_session_part(&key[1..]).ok_or(Damage::Fields)?;
        let Some(loading) = loading.get_mut(&session) else { return Ok(()) };
        let filter = std::str::from_utf8(filter).map_err(|_| Damage::Fields)?;
        let filter = TopicFilter::new(filter).map_err(|_| Damage::Fields)?;
        let record: SubscriptionRecord = stored::decode(value)?;
        let (options, identifier) = (record.options()?, record.identifier);
        let subscription = Subscription { filter: filter.clone(), options, identifier };
        let figures = self.router.restore(&loading.mailbox, &subscription);
        let matching = filter.share().map_or_else(|| filter.clone(), |(_, inner)| inner);
        loading.figures.push((matching, figures));
        loading.mailbox.add_filter(filter, options.qos);
        Ok(())
    }

    /// False for one that has expired.
    fn load_retained(&self, value: &[u8], now: &Moment) -> Result<bool, Damage> {
        self.router.retained().restore(stored::decode(value)?, now)
    }

    /// Restores the messages that wait for the sessions; gives the numbers of sessions that do not exist any more.
    fn queues(
        &self,
        loading: &HashMap<u64, Loading>,
        now: &Moment,
        damaged: &mut Damaged,
    ) -> Result<HashSet<u64>, StorageError> {
        let mut orphans = HashSet::new();
        self.pages(Space::Queue, &[], |(key, value)| {
            let Some((session, number)) = stored::parse_queue_key(key) else { return true };
            let Some(loading) = loading.get(&session) else {
                orphans.insert(session);
                return true;
            };
            let weight = u32::try_from(value.len()).unwrap_or(u32::MAX);
            let (topic, received_unix_ms) = match stored::decode::<QueueRecord<'_>>(value) {
                Ok(QueueRecord::Message { message, received_unix_ms, .. }) => {
                    (Some(message), received_unix_ms)
                }
                Ok(QueueRecord::Released) => (None, 0),
                Err(damage) => {
                    note(&mut damaged.messages, "queued message", key, damage);
                    return true;
                }
            };
            let topic_is_none = topic.is_none();
            let figures = loading.figures_of(topic.as_ref(), self.router.monitor());
            // PUBREC has come: the client has the message, and only PUBCOMP is missing.
            let weight = if topic_is_none { 1 } else { weight };
            let expiry = topic.as_ref().and_then(MessageRecord::expiry_seconds);
            let expiry = expiry.map(|seconds| (now.instant_of(received_unix_ms), seconds));
            loading.mailbox.restore(number, weight, expiry, &figures);
            true
        })?;
        Ok(orphans)
    }

    /// All sessions wait for their clients.
    fn park_all(&self, loading: HashMap<u64, Loading>, now: &Moment) {
        let mut sessions = self.sessions.lock();
        for (id, loading) in loading {
            sessions.skip_numbers(id);
            let Loading { mailbox, state, client, expiry_seconds, offline_since_unix_ms, will, .. } =
                loading;
            // A wall clock that was put back must not delay the end of the session beyond its interval from now.
            let since = offline_since_unix_ms.map_or(now.instant, |since| now.instant_of(since));
            let expires_at = after_seconds(since, expiry_seconds);
            let (will, delay_seconds) = will.map_or((None, 0), |(will, delay)| (Some(will), delay));
            // The connection is lost as of now.
            let will_at: Option<Instant> = match will {
                Some(_) => after_seconds(now.instant, delay_seconds),
                None => None,
            };
            let client_id = mailbox.client_id.clone();
            sessions.insert(mailbox, client.clone(), 0);
            let times = Times { will_at, expires_at };
            let parked = Parked { state, client, expiry_seconds, will, times, parking: 0 };
            let parking = sessions.park(&client_id, parked, offline_since_unix_ms.unwrap_or(0));
            self.timers.set(&client_id, parking, &times);
        }
    }
}

impl Loading {
    /// Figures of the filter that a message matched, most likely: the filter is not stored with the message.
    fn figures_of(&self, message: Option<&MessageRecord<'_>>, monitor: &Monitor) -> Arc<Figures> {
        let matching = self.figures.iter().find(|(filter, _)| {
            self.figures.len() == 1 || message.is_some_and(|message| filter.matches(message.topic()))
        });
        match matching.or(self.figures.first()) {
            Some((_, figures)) => figures.clone(),
            // The session has unsubscribed since: counted for no filter.
            None => monitor.figures_of_none(),
        }
    }
}

fn belongs(loading: &HashMap<u64, Loading>, key: &[u8]) -> bool {
    stored::parse_session_part(&key[1..]).is_some_and(|(session, _)| loading.contains_key(&session))
}

/// Counts a damaged entry, and logs it for debugging.
fn note(count: &mut usize, what: &str, key: &[u8], damage: Damage) {
    *count += 1;
    tracing::debug!(key = %key.escape_ascii(), %damage, "a stored {what} cannot be used");
}
