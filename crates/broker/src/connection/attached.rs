//! A client's session while it is connected.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

use crate::attach::{Released, authorize};
use crate::broker::Shared;
use crate::client::{Client, Origin};
use crate::mailbox::Mailbox;
use crate::message::QoS;
use crate::sessions::{Replay, State, Will};
use crate::topic::TopicFilter;

/// A client's session while it is connected; given back on drop, whatever the reason.
pub(super) struct Attached<'a> {
    shared: &'a Shared,
    pub mailbox: Arc<Mailbox>,
    pub client: Arc<Client>,
    pub origin: Origin,
    pub filters: HashSet<TopicFilter>,
    /// The client's QoS 2 messages that wait for PUBREL, while nobody else has them.
    pub unreleased: HashSet<NonZeroU16>,
    pub expiry_seconds: u32,
    /// Retained messages that its subscriptions still have to get, while nobody else has them.
    pub replays: VecDeque<Replay>,
    pub will: Option<(Will, u32)>,
}

impl<'a> Attached<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        mailbox: Arc<Mailbox>,
        client: Arc<Client>,
        state: State,
        expiry_seconds: u32,
    ) -> Attached<'a> {
        let origin = Origin::Client(client.clone());
        let State { filters, unreleased, replays } = state;
        Attached {
            shared,
            mailbox,
            client,
            origin,
            filters,
            unreleased,
            replays,
            expiry_seconds,
            will: None,
        }
    }

    /// Ends the subscriptions that the hooks do not allow any more.
    pub(super) fn recheck(&mut self) {
        let Attached { shared, mailbox, client, filters, replays, .. } = self;
        filters.retain(|filter| {
            let allowed = shared.authorize(client, filter, QoS::ExactlyOnce).is_ok();
            if !allowed {
                tracing::info!(client_id = %client.client_id, %filter, "a subscription is not allowed any more");
                shared.unsubscribe(mailbox, filter);
            }
            allowed
        });
        replays.retain(|replay| filters.contains(&replay.filter));
    }
}

impl Attached<'_> {
    /// Has the hooks asked again about every message that waits: the client may be another one than when it was queued, or
    /// may have been allowed more.
    pub(super) fn doubt(&self) {
        if self.shared.hooks.session.is_empty() {
            return;
        }
        let (hooks, client) = (self.shared.hooks.session.clone(), self.client.clone());
        self.mailbox.doubt(Box::new(move |topic| {
            // A topic name is the filter of that topic alone.
            TopicFilter::new(topic.as_str())
                .is_ok_and(|filter| authorize(&hooks, &client, &filter, QoS::ExactlyOnce).is_ok())
        }));
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let state = State {
            filters: std::mem::take(&mut self.filters),
            unreleased: std::mem::take(&mut self.unreleased),
            replays: std::mem::take(&mut self.replays),
        };
        let will = self.will.take();
        let released = Released { state, expiry_seconds: self.expiry_seconds, will };
        self.shared.release(&self.mailbox, &self.client, released);
        self.shared.tell_hooks(|hook| hook.on_disconnect(&self.client));
    }
}
