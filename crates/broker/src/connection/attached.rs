//! A client's session while it is connected.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

use super::context::ConnectionContext;
use crate::client::{Client, Origin};
use crate::mailbox::Mailbox;
use crate::message::QoS;
use crate::router::Replay;
use crate::sessions::{Released, State, Will};
use crate::topic::TopicFilter;

/// A client's session while it is connected; given back on drop, whatever the reason.
pub(super) struct Attached<'a> {
    context: &'a ConnectionContext,
    pub mailbox: Arc<Mailbox>,
    pub client: Arc<Client>,
    pub origin: Origin,
    /// The client's QoS 2 messages that wait for PUBREL; empty while the connection's protocol state has them.
    pub unreleased: HashSet<NonZeroU16>,
    pub expiry_seconds: u32,
    /// Retained messages that its subscriptions still have to get.
    pub replays: VecDeque<Replay>,
    /// The will and its delay in seconds.
    pub will: Option<(Will, u32)>,
}

impl<'a> Attached<'a> {
    pub(super) fn new(
        context: &'a ConnectionContext,
        mailbox: Arc<Mailbox>,
        client: Arc<Client>,
        state: State,
        expiry_seconds: u32,
    ) -> Attached<'a> {
        let origin = Origin::Client(client.clone());
        let State { unreleased, replays } = state;
        Attached { context, mailbox, client, origin, unreleased, replays, expiry_seconds, will: None }
    }

    /// Asks the hooks again about every subscription, and ends those that are not allowed any more.
    pub(super) fn recheck_subscriptions(&mut self) {
        let Attached { context, mailbox, client, replays, .. } = self;
        for (filter, _) in mailbox.filters() {
            if context.hooks.authorize(client, &filter, QoS::ExactlyOnce).is_err() {
                tracing::info!(client_id = %client.client_id, %filter, "a subscription is not allowed any more");
                mailbox.remove_filter(&filter);
                context.router.unsubscribe(mailbox, &filter);
            }
        }
        replays.retain(|replay| mailbox.has_filter(&replay.filter));
    }

    /// Asks the hooks again about every waiting message: the session may have another client than when the message was
    /// queued, or the client's permissions may have changed.
    pub(super) fn recheck_waiting(&self) {
        if self.context.hooks.is_empty() {
            return;
        }
        let (hooks, client) = (self.context.hooks.clone(), self.client.clone());
        self.mailbox.recheck_waiting(Box::new(move |topic| {
            // A topic name is the filter of that topic alone.
            TopicFilter::new(topic.as_str())
                .is_ok_and(|filter| hooks.authorize(&client, &filter, QoS::ExactlyOnce).is_ok())
        }));
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        let state = State {
            unreleased: std::mem::take(&mut self.unreleased),
            replays: std::mem::take(&mut self.replays),
        };
        let will = self.will.take();
        let released = Released { state, expiry_seconds: self.expiry_seconds, will };
        self.context.sessions.release(&self.mailbox, &self.client, released);
        self.context.hooks.notify(|hook| hook.on_disconnect(&self.client));
    }
}
