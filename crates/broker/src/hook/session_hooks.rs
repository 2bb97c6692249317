//! The session hooks of a broker, behind a barrier for their panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::FutureExt;

use super::{
    ConnectDecision, ConnectRefusal, ConnectRefusalReason, ConnectRequest, RejectReason, SessionHook,
};
use crate::client::Client;
use crate::message::QoS;
use crate::stats::Counter;
use crate::topic::TopicFilter;

/// The session hooks, in the order in which they are asked.
pub(crate) struct SessionHooks {
    hooks: Vec<Arc<dyn SessionHook>>,
    panics: Counter,
}

impl SessionHooks {
    pub(crate) fn new(hooks: Vec<Arc<dyn SessionHook>>) -> SessionHooks {
        SessionHooks { hooks, panics: Counter::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Number of notifications of hooks that have panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.get()
    }

    /// Asks all hooks about a CONNECT; gives the user name that the last of them grants. A hook that panics refuses it.
    pub(crate) async fn authenticate(
        &self,
        request: &ConnectRequest,
    ) -> Result<Option<Arc<str>>, ConnectRefusal> {
        let mut username = None;
        for hook in &self.hooks {
            let asked: ConnectDecision =
                catch_unwind(AssertUnwindSafe(|| hook.on_connect(request))).map_err(|_| panicked())?;
            let grant = AssertUnwindSafe(asked).catch_unwind().await.map_err(|_| panicked())??;
            username = grant.username.or(username);
        }
        Ok(username)
    }

    /// Asks all hooks about a subscription; gives the lowest QoS that one of them grants. A hook that panics refuses it.
    pub(crate) fn authorize(
        &self,
        client: &Client,
        filter: &TopicFilter,
        qos: QoS,
    ) -> Result<QoS, RejectReason> {
        let mut granted = qos;
        for hook in &self.hooks {
            let asked = catch_unwind(AssertUnwindSafe(|| hook.on_subscribe(client, filter, granted)));
            granted = asked.unwrap_or(Err(RejectReason::Unspecified))?.min(granted);
        }
        Ok(granted)
    }

    /// Calls `notify` with every hook.
    pub(crate) fn notify(&self, notify: impl Fn(&dyn SessionHook)) {
        for hook in &self.hooks {
            if catch_unwind(AssertUnwindSafe(|| notify(hook.as_ref()))).is_err() {
                tracing::error!("a session hook panicked");
                self.panics.add(1);
            }
        }
    }
}

fn panicked() -> ConnectRefusal {
    tracing::error!("a session hook panicked; its client is refused");
    ConnectRefusal {
        reason: ConnectRefusalReason::ServerUnavailable,
        detail: "the broker could not decide".into(),
    }
}
