//! State of a connected peer. Bounded, and dropped with the connection.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::replication::agreement::Sweep;
use crate::replication::interest::InterestSet;
use crate::replication::key::{KeysIn, KeysOut};
use crate::replication::lag::Lag;
use crate::replication::round::{Entry, Tally};
use crate::replication::tally::TallyCache;
use crate::replication::{Delta, ObjectKey, Part, View};

/// Maximum of bytes of remembered keys that a peer keeps without interest. Further keys are found again in each round.
const MAX_KEPT_BYTES: usize = 32 * 1024 * 1024;
/// Approximate overhead of an entry beside its names, in bytes.
const KEPT_ENTRY_OVERHEAD_BYTES: usize = 96;
/// Maximum of bytes of refused frames that are kept.
const MAX_UNSENT_BYTES: usize = 2 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Peer<D> {
    /// Interests of the peer; `None` until it has sent them.
    pub(crate) interests: Option<InterestSet>,
    /// The version of these.
    pub(crate) interests_version: u32,
    /// The current local interests were not sent to it yet.
    pub(crate) untold: bool,
    /// The transport has no room.
    pub(crate) blocked: bool,
    /// Frames that the transport refused, in order.
    unsent: VecDeque<Bytes>,
    unsent_bytes: usize,
    /// Number of `unsent` frames that were given back since a frame was last sent.
    given_back: usize,
    pub(crate) lag: Lag<D>,
    /// A long payload in flight.
    pub(crate) long: Option<LongPayload>,
    /// Messages that the current round has not sent yet.
    pub(crate) work: VecDeque<Work>,
    /// Bytes of field names that were requested in the current round.
    pub(crate) names_bytes: usize,
    /// The round that this node began.
    pub(crate) round: Option<Box<Round>>,
    /// The round that the peer began.
    pub(crate) answer: Option<Answer>,
    /// Time at which this node begins the next round, or may request it.
    pub(crate) round_due: Duration,
    /// The last round's begin.
    pub(crate) round_began: Option<Duration>,
    /// The lower node is to be asked for a round; or to begin another after this one.
    pub(crate) round_wanted: bool,
    /// Position at which the next round continues, if the last one did not cover all objects.
    pub(crate) cursor: Cursor,
    /// The version of the local interests of which all that the peer has is here.
    pub(crate) synced_version: u32,
    /// Something that came in the rounds since the last whole one could not be stored: they do not count.
    pub(crate) is_spoiled: bool,
    /// The last round that the peer began left objects for the next one.
    pub(crate) is_answer_partial: bool,
    /// Something that it sent since the last message about a round could not be stored.
    pub(crate) has_lost: bool,
    /// The comparison of all objects that is under way; `None` if a side does not follow the clock of deletions.
    pub(crate) sweep: Option<Sweep>,
    pub(crate) tally_cache: TallyCache,
    /// Objects that it is known to hold without interest.
    pub(crate) kept: HashSet<ObjectKey>,
    kept_bytes: usize,
    pub(crate) keys_out: KeysOut,
    pub(crate) keys_in: KeysIn,
    /// A long payload that arrives in pieces.
    pub(crate) assembly: Option<Box<Assembly>>,
    /// Budget for objects that no function on this node uses.
    pub(crate) keep_budget: Budget,
    /// Budget of rounds that the peer may begin.
    pub(crate) round_budget: Budget,
    /// Time since which the peer has been connected; short absences do not count.
    pub(crate) since: Duration,
    /// Time at which the peer last sent something, or had room again.
    pub(crate) heard: Duration,
    /// The peer's entry in the machine's timers.
    pub(crate) timer: Option<Duration>,
}

/// A payload that goes out in pieces.
#[derive(Debug)]
pub(crate) struct LongPayload {
    pub(crate) object: ObjectKey,
    pub(crate) copies: u8,
    pub(crate) depth: u8,
    pub(crate) payload: Bytes,
    pub(crate) sent_bytes: usize,
}

/// A payload that comes in in pieces.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) object: ObjectKey,
    pub(crate) payload: Vec<u8>,
}

/// Something to send, made when there is room for it.
#[derive(Debug)]
pub(crate) enum Work {
    /// The state of an object, or of some of its fields.
    State { object: ObjectKey, fields: Option<Vec<String>>, part: Part },
    /// The digests of an object's fields.
    FieldDigests { round: u32, object: ObjectKey, view: View },
    /// Fields that this node lacks.
    WantFields { round: u32, object: ObjectKey, fields: Vec<String> },
    /// The end of the fourth step.
    DifferencesEnd { round: u32, wanted: Vec<u64> },
    /// The end of the fifth step.
    WantsEnd { round: u32 },
    /// The end of the round.
    RoundEnd { round: u32 },
}

impl Work {
    /// The object that it is about.
    pub(crate) fn object(&self) -> Option<&ObjectKey> {
        match self {
            Self::State { object, .. }
            | Self::FieldDigests { object, .. }
            | Self::WantFields { object, .. } => Some(object),
            Self::DifferencesEnd { .. } | Self::WantsEnd { .. } | Self::RoundEnd { .. } => None,
        }
    }
}

/// Position at which a round continues where the last one ended. It counts for the interests of both sides that the last
/// one knew only: with others, objects before it may be shared that were not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    pub(crate) hash: u64,
    /// The versions of the interests: of this node, of the peer.
    pub(crate) versions: (u32, u32),
}

/// A round, as seen by the lower node.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) number: u32,
    /// The first hash that it compares.
    pub(crate) first: u64,
    /// The interests of the peer that this node knew by then.
    pub(crate) their_version: u32,
    /// The time of the tally.
    pub(crate) began: Duration,
    /// The local interests that the peer knew by then.
    pub(crate) version: u32,
    /// Deletions up to this time are not compared.
    pub(crate) without_ms: u64,
    pub(crate) stage: Stage,
}

/// The reply that the lower node waits for.
#[derive(Debug)]
pub(crate) enum Stage {
    Buckets { tally: Tally },
    Differences { entries: Vec<Entry>, partial: bool },
    End { partial: bool },
}

/// A round, as seen by the higher node.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) number: u32,
    /// The local interests that the peer knew at its begin.
    pub(crate) version: u32,
    /// Deletions up to this time are not compared.
    pub(crate) without_ms: u64,
    pub(crate) partial: bool,
}

/// A bucket of tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Budget {
    used: u64,
    at: Duration,
}

impl<D: Delta> Peer<D> {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            interests: None,
            interests_version: 0,
            untold: true,
            blocked: false,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            given_back: 0,
            lag: Lag::default(),
            long: None,
            work: VecDeque::new(),
            names_bytes: 0,
            round: None,
            answer: None,
            round_due: now,
            round_began: None,
            round_wanted: false,
            cursor: Cursor::default(),
            synced_version: 0,
            is_spoiled: false,
            is_answer_partial: false,
            has_lost: false,
            sweep: None,
            tally_cache: TallyCache::default(),
            kept: HashSet::new(),
            kept_bytes: 0,
            keys_out: KeysOut::default(),
            keys_in: KeysIn::default(),
            assembly: None,
            keep_budget: Budget::default(),
            round_budget: Budget::default(),
            since: now,
            heard: now,
            timer: None,
        }
    }

    pub(crate) fn is_interested(&self, object: &ObjectKey) -> bool {
        self.interests.as_ref().is_some_and(|interests| interests.matches(object))
    }

    /// Remembers that it holds an object although it is not interested.
    pub(crate) fn holds(&mut self, object: &ObjectKey) {
        let bytes = object.app.len() + object.object.len() + KEPT_ENTRY_OVERHEAD_BYTES;
        let fits = self.kept_bytes + bytes <= MAX_KEPT_BYTES;
        if fits && !self.is_interested(object) && !self.kept.contains(object) {
            self.kept_bytes += bytes;
            self.kept.insert(object.clone());
        }
    }

    /// Sets the peer's interests; false if they did not change.
    pub(crate) fn set_interests(&mut self, interests: InterestSet) -> bool {
        if self.interests.as_ref() == Some(&interests) {
            return false;
        }
        self.interests = Some(interests);
        self.kept_bytes = 0;
        for object in std::mem::take(&mut self.kept) {
            self.holds(&object);
        }
        true
    }

    /// True if the peer has room, and nothing waits that must be sent first.
    pub(crate) fn is_ready(&self) -> bool {
        !self.blocked && !self.has_unsent() && self.lag.is_empty() && !self.untold
    }

    /// True if there is something to send and room for it.
    pub(crate) fn has_work(&self) -> bool {
        !self.blocked
            && (self.untold
                || self.has_unsent()
                || !self.lag.is_empty()
                || self.long.is_some()
                || !self.work.is_empty())
    }

    /// True if a message from the peer is due.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.blocked && (self.interests.is_none() || self.round.is_some() || self.answer.is_some())
    }

    /// True if frames wait that the transport refused; others then wait behind them.
    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Takes back a frame that the transport refused: those of one go come in order, before what waited
    /// behind them.
    pub(crate) fn give_back(&mut self, frame: Bytes) {
        self.blocked = true;
        self.unsent_bytes += frame.len();
        self.unsent.insert(self.given_back.min(self.unsent.len()), frame);
        self.given_back += 1;
        self.bound_unsent();
    }

    /// Lets a frame wait behind those that were refused.
    pub(crate) fn send_later(&mut self, frame: Bytes) {
        self.unsent_bytes += frame.len();
        self.unsent.push_back(frame);
        self.bound_unsent();
    }

    pub(crate) fn take_unsent(&mut self) -> Option<Bytes> {
        let frame = self.unsent.pop_front()?;
        self.unsent_bytes = self.unsent_bytes.saturating_sub(frame.len());
        Some(frame)
    }

    /// A frame goes to the transport.
    pub(crate) fn sends(&mut self) {
        self.given_back = 0;
    }

    /// Approximate number of bytes that wait for the peer.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let long = self.long.as_ref().map_or(0, |long| long.payload.len());
        self.unsent_bytes + self.lag.weight_bytes() + long
    }

    /// If more than `MAX_UNSENT_BYTES` wait, forgets everything in flight; it is compared again.
    fn bound_unsent(&mut self) {
        if self.unsent_bytes <= MAX_UNSENT_BYTES {
            return;
        }
        self.unsent.clear();
        self.unsent_bytes = 0;
        self.given_back = 0;
        self.keys_out = KeysOut::default();
        self.untold = true;
        self.long = None;
        self.work.clear();
        self.round = None;
        self.answer = None;
        self.cursor = Cursor::default();
        self.round_wanted = true;
    }
}

impl Budget {
    /// Takes `amount` from the bucket of `limit`, which refills by `per_second`; false if it has less.
    pub(crate) fn take(&mut self, amount: u64, limit: u64, per_second: u64, now: Duration) -> bool {
        let passed_ms = now.saturating_sub(self.at).as_millis().min(u128::from(u32::MAX)) as u64;
        let refilled = per_second.saturating_mul(passed_ms) / 1000;
        if refilled > 0 {
            self.used = self.used.saturating_sub(refilled);
            self.at = now;
        }
        let fits = self.used.saturating_add(amount) <= limit;
        if fits {
            self.used += amount;
        }
        fits
    }
}
