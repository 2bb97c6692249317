//! Events of the node: the last ones, and a live stream for followers.

use std::collections::VecDeque;
use std::fmt;

use edgefaas_platform::Clock;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// Number of events that are kept.
pub const MAX_EVENTS: usize = 500;
/// Number of events that a follower may lag before it loses some.
const FOLLOW_EVENTS: usize = 256;
/// Maximum size of a text, in bytes. Longer ones are cut.
const MAX_TEXT_BYTES: usize = 1 << 10;

/// Kinds of events. They are stored by their place in this list: a new one goes to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// The node has started.
    Start,
    /// A revision of an app is live.
    Deploy,
    /// An app was removed.
    Remove,
    /// A warning began.
    Warning,
    /// A warning is over.
    WarningOver,
    /// Durable invocations became dead letters.
    Dead,
    /// A member of the cluster is connected.
    Member,
    /// A member of the cluster is not connected any more.
    MemberAway,
    /// A bridge is connected.
    Bridge,
    /// A bridge is not connected any more.
    BridgeAway,
    /// The node was stopped.
    Stop,
}

impl Kind {
    /// All kinds.
    #[cfg(test)]
    pub const ALL: [Self; 11] = [
        Self::Start,
        Self::Deploy,
        Self::Remove,
        Self::Warning,
        Self::WarningOver,
        Self::Dead,
        Self::Member,
        Self::MemberAway,
        Self::Bridge,
        Self::BridgeAway,
        Self::Stop,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Start => "start",
            Self::Deploy => "deploy",
            Self::Remove => "remove",
            Self::Warning => "warning",
            Self::WarningOver => "warning-over",
            Self::Dead => "dead",
            Self::Member => "member",
            Self::MemberAway => "member-away",
            Self::Bridge => "bridge",
            Self::BridgeAway => "bridge-away",
            Self::Stop => "stop",
        })
    }
}

/// What has happened, before it has a number and a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened {
    /// The kind.
    pub kind: Kind,
    /// The app, member, bridge or warning that it is about; empty for the node.
    pub subject: String,
    /// What has happened, for people.
    pub text: String,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// From 1; a restart goes on with the numbers of those that were kept.
    pub number: u64,
    /// Time in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// What has happened.
    pub happened: Happened,
}

/// The kept events, and their followers.
pub struct Events {
    clock: Clock,
    kept: Mutex<Kept>,
    follow: broadcast::Sender<Event>,
}

struct Kept {
    events: VecDeque<Event>,
    last_number: u64,
}

impl Events {
    /// With the events of the time before a restart, oldest first.
    pub fn restored(clock: Clock, events: Vec<Event>) -> Self {
        let (follow, _) = broadcast::channel(FOLLOW_EVENTS);
        let last_number = events.last().map(|event| event.number).unwrap_or_default();
        Self { clock, kept: Mutex::new(Kept { events: events.into(), last_number }), follow }
    }

    /// Adds an event.
    pub fn add(&self, mut happened: Happened) {
        if happened.text.len() > MAX_TEXT_BYTES {
            happened.text.truncate(happened.text.floor_char_boundary(MAX_TEXT_BYTES));
            happened.text.push('…');
        }
        // Under the lock, so that followers get the events by number.
        let mut kept = self.kept.lock();
        kept.last_number += 1;
        let event = Event { number: kept.last_number, unix_ms: self.clock.now_unix_ms(), happened };
        if self.follow.receiver_count() > 0 {
            // An error means that the last follower has left.
            let _ = self.follow.send(event.clone());
        }
        if kept.events.len() >= MAX_EVENTS {
            kept.events.pop_front();
        }
        kept.events.push_back(event);
    }

    /// The kept events, oldest first; at most the last `tail`.
    pub fn kept(&self, tail: Option<usize>) -> Vec<Event> {
        let kept = self.kept.lock();
        let skipped = tail.map_or(0, |tail| kept.events.len().saturating_sub(tail));
        kept.events.iter().skip(skipped).cloned().collect()
    }

    /// The last event; `None` if there was none.
    pub fn last(&self) -> Option<Event> {
        self.kept.lock().events.back().cloned()
    }

    /// A receiver of all events from now on. If it is too slow, it gets the number of events that it lost.
    pub fn follow(&self) -> broadcast::Receiver<Event> {
        self.follow.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(events: &Events, text: String) {
        events.add(Happened { kind: Kind::Deploy, subject: "app".into(), text });
    }

    #[tokio::test]
    async fn the_last_events_are_kept_with_their_numbers() {
        let events = Events::restored(Clock::new(|| 7), Vec::new());
        let mut follower = events.follow();
        for number in 0..MAX_EVENTS + 3 {
            add(&events, number.to_string());
        }
        let kept = events.kept(None);
        assert_eq!((kept.len(), kept[0].number, kept[0].unix_ms), (MAX_EVENTS, 4, 7));
        let last: Vec<_> = events.kept(Some(2)).into_iter().map(|event| event.number).collect();
        assert_eq!(last, [502, 503]);
        let lost = follower.recv().await.unwrap_err();
        assert_eq!(lost, broadcast::error::RecvError::Lagged(503 - FOLLOW_EVENTS as u64));
        assert_eq!(follower.recv().await.unwrap().number, 248);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let events = Events::restored(Clock::system(), Vec::new());
        add(&events, format!("a{}", "ä".repeat(MAX_TEXT_BYTES)));
        let text = &events.kept(None)[0].happened.text;
        assert!(text.len() <= MAX_TEXT_BYTES + 3 && text.ends_with("ä…"), "{text}");
    }
}
