//! Subscriptions of all sessions by filter, and the groups of shared subscriptions.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::RwLock;

use super::trie::FilterTrie;
use crate::delivery::Delivery;
use crate::mailbox::Mailbox;
use crate::message::{Message, QoS};
use crate::monitor::{Figures, Monitor};
use crate::protocol::Subscription;
use crate::topic::TopicFilter;
use crate::wire::SubscriptionOptions;

/// All subscriptions, by filter.
pub(super) struct Subscriptions {
    trie: FilterTrie<Entry>,
    len: usize,
    shared: usize,
    /// Bytes of their filters.
    bytes: usize,
}

/// A value under a filter.
pub(super) enum Entry {
    One(Subscriber),
    /// `$share/GROUP/FILTER`, under FILTER.
    Group(Group),
}

/// Subscription of one session.
pub(super) struct Subscriber {
    pub mailbox: Arc<Mailbox>,
    pub options: SubscriptionOptions,
    identifier: Option<NonZeroU32>,
    pub figures: Arc<Figures>,
}

/// Sessions that share a subscription: each message goes to one of them (MQTT 5, section 4.8.2).
pub(super) struct Group {
    name: Box<str>,
    pub figures: Arc<Figures>,
    members: RwLock<Vec<Subscriber>>,
    turn: AtomicUsize,
}

impl Subscriptions {
    pub(super) fn new() -> Subscriptions {
        Subscriptions { trie: FilterTrie::new(), len: 0, shared: 0, bytes: 0 }
    }

    /// Number of subscriptions.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of their filters.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of shared subscriptions.
    pub(super) fn shared(&self) -> usize {
        self.shared
    }

    /// Adds or replaces a subscription and says whether it is new.
    pub(super) fn insert(
        &mut self,
        monitor: &Monitor,
        mailbox: &Arc<Mailbox>,
        subscription: &Subscription,
    ) -> bool {
        let &Subscription { ref filter, options, identifier } = subscription;
        let own = |subscriber: &Subscriber| Arc::ptr_eq(&subscriber.mailbox, mailbox);
        let change = |subscriber: &mut Subscriber| {
            (subscriber.options, subscriber.identifier) = (options, identifier)
        };
        let new = || {
            let figures = monitor.figures(filter);
            figures.subscribed();
            Subscriber { mailbox: mailbox.clone(), options, identifier, figures }
        };
        let added = match filter.share() {
            None => {
                let replaced = self.trie.update(
                    filter,
                    |entry| matches!(entry, Entry::One(subscriber) if own(subscriber)),
                    |entry| {
                        if let Entry::One(subscriber) = entry {
                            change(subscriber);
                        }
                    },
                );
                if !replaced {
                    mailbox.subscriptions.fetch_add(1, Relaxed);
                    self.trie.insert(filter, Entry::One(new()));
                }
                !replaced
            }
            Some((name, inner)) => {
                let mut added = false;
                let found = self.trie.update(
                    &inner,
                    |entry| matches!(entry, Entry::Group(group) if *group.name == *name),
                    |entry| {
                        let Entry::Group(group) = entry else { return };
                        let members = group.members.get_mut();
                        match members.iter_mut().find(|member| own(member)) {
                            Some(member) => change(member),
                            None => {
                                added = true;
                                members.push(new());
                            }
                        }
                    },
                );
                if !found {
                    added = true;
                    let member = new();
                    let group = Group {
                        name: name.into(),
                        figures: member.figures.clone(),
                        members: RwLock::new(vec![member]),
                        turn: AtomicUsize::new(0),
                    };
                    self.trie.insert(&inner, Entry::Group(group));
                }
                self.shared += usize::from(added);
                added
            }
        };
        self.len += usize::from(added);
        self.bytes += if added { filter.as_str().len() } else { 0 };
        added
    }

    /// Removes a subscription and says whether there was one.
    pub(super) fn remove(
        &mut self,
        monitor: &Monitor,
        mailbox: &Arc<Mailbox>,
        filter: &TopicFilter,
    ) -> bool {
        let own = |subscriber: &Subscriber| Arc::ptr_eq(&subscriber.mailbox, mailbox);
        let removed = match filter.share() {
            None => {
                let entry = self
                    .trie
                    .remove(filter, |entry| matches!(entry, Entry::One(subscriber) if own(subscriber)));
                match entry {
                    Some(Entry::One(subscriber)) => {
                        mailbox.subscriptions.fetch_sub(1, Relaxed);
                        Some(subscriber)
                    }
                    _ => None,
                }
            }
            Some((name, inner)) => {
                let mut removed = None;
                let mut empty = false;
                let wanted = |entry: &Entry| matches!(entry, Entry::Group(group) if *group.name == *name);
                self.trie.update(&inner, wanted, |entry| {
                    let Entry::Group(group) = entry else { return };
                    let members = group.members.get_mut();
                    let at = members.iter().position(own);
                    removed = at.map(|at| members.remove(at));
                    empty = members.is_empty();
                });
                if empty {
                    self.trie.remove(&inner, wanted);
                }
                self.shared -= usize::from(removed.is_some());
                removed
            }
        };
        self.len -= usize::from(removed.is_some());
        if let Some(subscriber) = &removed {
            self.bytes -= filter.as_str().len();
            monitor.unsubscribed(&subscriber.figures);
        }
        removed.is_some()
    }

    /// See [`FilterTrie::has_below`].
    pub(super) fn has_below(&self, first: &str, second: &str) -> bool {
        self.trie.has_below(first, second)
    }

    /// Calls `found` with the subscriptions whose filters match a topic.
    pub(super) fn for_each_match<'a>(&'a self, topic: &str, found: impl FnMut(&'a Entry)) {
        self.trie.for_each_match(topic, found);
    }
}

impl Subscriber {
    /// True if messages of QoS 1 and 2 for this subscriber are stored.
    pub(super) fn is_stored(&self) -> bool {
        self.options.qos > QoS::AtMostOnce && self.mailbox.is_stored()
    }

    pub(super) fn delivery(&self, message: &Message) -> Delivery {
        Delivery {
            // The QoS of the message, at most that of the subscription.
            qos: message.qos().min(self.options.qos),
            retain: message.retain() && self.options.retain_as_published,
            identifiers: self.identifier.into_iter().collect(),
        }
    }
}

impl Group {
    /// Offers a message of this weight to the members, the next one in turn first: those who are connected and have room, then
    /// those whose session waits for them and has room, then those who would lose another message for it, then all others.
    /// `offer` says whether it was taken.
    pub(super) fn deliver(&self, weight: usize, mut offer: impl FnMut(&Subscriber) -> bool) {
        let members = self.members.read();
        let turn = self.turn.fetch_add(1, Relaxed);
        let in_turn = || (0..members.len()).map(|at| &members[(turn + at) % members.len()]);
        let ready = in_turn().find(|member| member.mailbox.is_ready());
        let stored = || in_turn().filter(|member| member.mailbox.is_stored());
        let with_room = || stored().find(|member| !member.mailbox.is_stored_full(weight));
        let chosen = ready.or_else(with_room).or_else(|| stored().next()).or_else(|| in_turn().next());
        if let Some(member) = chosen
            && !offer(member)
        {
            // Too large for this one, perhaps; or it left in this very moment.
            let _ = in_turn().filter(|other| !std::ptr::eq(*other, member)).find(|other| offer(other));
        }
    }

    /// True if all of the members satisfy `check`.
    pub(super) fn all(&self, check: impl FnMut(&Subscriber) -> bool) -> bool {
        self.members.read().iter().all(check)
    }
}
