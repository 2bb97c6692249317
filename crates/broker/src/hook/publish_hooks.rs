//! The publish hooks of a broker, behind a barrier for their panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{HookEffects, PublishHook, Publishing, RejectReason, Verdict};
use crate::client::Origin;
use crate::message::Message;
use crate::stats::Counter;
use crate::wal::Ticket;

/// The publish hooks, in the order in which they are asked.
pub(crate) struct PublishHooks {
    hooks: Vec<Arc<dyn PublishHook>>,
    panics: Counter,
}

/// The verdict of all hooks.
pub(crate) enum Decision {
    /// The message goes to the subscribers and the retained store.
    Forward,
    Consume,
    Reject(RejectReason),
    Block(Arc<tokio::sync::Notify>),
}

impl PublishHooks {
    pub(crate) fn new(hooks: Vec<Arc<dyn PublishHook>>) -> PublishHooks {
        PublishHooks { hooks, panics: Counter::default() }
    }

    /// Number of calls of hooks that have panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Asks the hooks one after another, until one of them ends it. `rewritten` becomes the message that replaces
    /// `message`, if there is one.
    pub(crate) fn decide(
        &self,
        origin: &Origin,
        message: &Message,
        rewritten: &mut Option<Message>,
        effects: &mut HookEffects,
    ) -> Decision {
        for hook in &self.hooks {
            match self.ask(hook.as_ref(), origin, rewritten.as_ref().unwrap_or(message), effects) {
                Verdict::Forward => {}
                Verdict::Rewrite(new) => *rewritten = Some(new),
                Verdict::Consume => return Decision::Consume,
                Verdict::Reject(reason) => return Decision::Reject(reason),
                Verdict::Block(until) => return Decision::Block(until),
            }
        }
        Decision::Forward
    }

    fn ask(
        &self,
        hook: &dyn PublishHook,
        origin: &Origin,
        message: &Message,
        effects: &mut HookEffects,
    ) -> Verdict {
        let mut publishing = Publishing::new(origin, message, effects);
        catch_unwind(AssertUnwindSafe(|| hook.on_publish(&mut publishing))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            tracing::error!(
                topic = message.topic().as_str(),
                ?origin,
                panic = text.unwrap_or("not text"),
                "a publish hook panicked; its message is rejected"
            );
            self.panics.add(1);
            Verdict::Reject(RejectReason::Unspecified)
        })
    }
}

/// Calls back the hooks whose records are in the write-ahead log. A panic in one of them is contained.
pub(crate) fn call_recorded(recorded: Vec<Box<dyn FnOnce(Ticket) + Send>>, ticket: Option<Ticket>) {
    let Some(ticket) = ticket else { return };
    for then in recorded {
        if catch_unwind(AssertUnwindSafe(|| then(ticket))).is_err() {
            tracing::error!("a publish hook panicked after its message was recorded");
        }
    }
}
