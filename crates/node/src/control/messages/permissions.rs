//! What a caller may publish and read: users as the access rules say for their names, the holder of the admin token everything.

use std::sync::Arc;

use tonic::{Request, Status};

use crate::access::{Access, Action, ClientNames, Policy};
use crate::control::caller::Caller;

/// The permissions of one caller.
pub(super) struct Permissions {
    access: Arc<Access>,
    /// The policy that was in force at the last look.
    policy: Arc<Policy>,
    /// `None` for the holder of the admin token.
    user: Option<Arc<str>>,
}

impl Permissions {
    /// Permissions of the caller of a request.
    pub fn of<T>(request: &Request<T>, access: &Arc<Access>) -> Result<Self, Status> {
        let user = match request.extensions().get() {
            Some(Caller::Token) => None,
            Some(Caller::User { name, .. }) => Some(name.clone()),
            None => return Err(Status::unauthenticated("the request has no caller")),
        };
        Ok(Self { access: access.clone(), policy: access.policy(), user })
    }

    /// The user; `None` for the holder of the admin token.
    pub fn user(&self) -> Option<&Arc<str>> {
        self.user.as_ref()
    }

    /// True if the caller may read the messages of a topic or filter.
    pub fn may_read(&self, filter: &str) -> bool {
        self.allows(Action::Subscribe, filter)
    }

    /// True if the caller may publish to a topic.
    pub fn may_publish(&self, topic: &str) -> bool {
        self.allows(Action::Publish, topic)
    }

    /// Looks for another policy; true if there is one.
    pub fn renew(&mut self) -> bool {
        let policy = self.access.policy();
        let is_new = !Arc::ptr_eq(&policy, &self.policy);
        self.policy = policy;
        is_new
    }

    /// The caller in the words of an error.
    pub fn caller(&self) -> String {
        self.user.as_ref().map_or_else(|| "the caller".to_owned(), |user| format!("user `{user}`"))
    }

    fn allows(&self, action: Action, topic: &str) -> bool {
        let Some(user) = &self.user else { return true };
        let names = ClientNames { user: Some(user), client_id: None };
        self.policy.rules().allows(names, action, topic)
    }
}
