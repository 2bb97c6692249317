//! The broker's hook: checks the policy at every CONNECT, SUBSCRIBE and PUBLISH.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use edgefaas_broker::{
    Client, ConnectDecision, ConnectRefusal, ConnectRefusalReason, ConnectRequest, Grant, Origin,
    PublishHook, Publishing, QoS, RejectReason, SessionHook, TopicFilter, Transport, Verdict,
};
use edgefaas_functions::topics;

use super::sessions::Credential;
use super::{Access, Action, ClientNames, Jwt, Policy, certificate};

/// Prefixes of the client identifiers of the node's own sessions: bridges, and callers of the control API.
const OWN_CLIENTS: [&str; 2] = ["$bridge/", CONTROL_CLIENTS];
/// Prefix of the client identifiers of callers of the control API.
pub const CONTROL_CLIENTS: &str = "$control/";

/// [`Access`] as a hook of the broker.
pub struct AccessHook(pub Arc<Access>);

impl SessionHook for AccessHook {
    fn on_connect(&self, request: &ConnectRequest) -> ConnectDecision {
        let access = self.0.clone();
        let request = request.clone();
        Box::pin(async move {
            let decision = access.decide(&request).await;
            if let Err(refusal) = &decision {
                access.refused_logins.log_connect(access.now_unix_s(), &request, &refusal.detail);
            }
            decision
        })
    }

    fn on_subscribe(&self, client: &Client, filter: &TopicFilter, qos: QoS) -> Result<QoS, RejectReason> {
        if client.transport == Transport::Internal {
            return Ok(qos);
        }
        let access = &self.0;
        let topics = unshared(filter.as_str());
        if access.policy.load().rules().allows(names_of(client), Action::Subscribe, topics) {
            return Ok(qos);
        }
        access.refusals.log(access.now_unix_s(), client, "subscribe to", topics);
        Err(RejectReason::NotAuthorized)
    }

    fn on_connected(&self, client: &Arc<Client>) {
        // A user removed during the password check is not among the clients that were disconnected at the removal.
        if let Some(Credential::Password { user }) = self.0.sessions.connected(client)
            && self.0.policy.load().users().hash(&user).is_none()
        {
            self.0.sessions.check_again();
        }
    }

    fn on_disconnect(&self, client: &Arc<Client>) {
        self.0.sessions.disconnected(client);
    }
}

impl PublishHook for AccessHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let topic = publishing.message().topic().as_str();
        let client = match publishing.origin() {
            // The control API has checked the rules for its caller.
            Origin::Client(client) if is_control(client) => return Verdict::Forward,
            Origin::Client(client) => client,
            // An answer may go to the topics on which its requester may publish. Answers on the node's own topics
            // belong to calls that the requester was allowed to make.
            Origin::Node { requester: Some(requester), .. } if !topic.starts_with(topics::PREFIX) => {
                requester
            }
            _ => return Verdict::Forward,
        };
        let access = &self.0;
        if access.policy.load().rules().allows_message(names_of(client), topic) {
            return Verdict::Forward;
        }
        access.refusals.log(access.now_unix_s(), client, "publish to", topic);
        Verdict::Reject(RejectReason::NotAuthorized)
    }
}

impl Access {
    /// Accepts or refuses a client.
    async fn decide(&self, request: &ConnectRequest) -> Result<Grant, ConnectRefusal> {
        if request.peer.transport == Transport::Internal {
            return Ok(Grant::default());
        }
        if let Some(prefix) = OWN_CLIENTS.iter().find(|prefix| request.client_id.starts_with(**prefix)) {
            let detail = format!("client identifiers that start with {prefix} are the node's own");
            return Err(refusal(ConnectRefusalReason::NotAuthorized, detail));
        }
        let policy = self.policy();
        let (username, credential) = self.identify(&policy, request).await?;
        let names = ClientNames { user: username.as_deref(), client_id: Some(&request.client_id) };
        if !policy.rules().allows_client_id(names) {
            let detail = format!("the rules have no client_ids for this user with {}", request.client_id);
            return Err(refusal(ConnectRefusalReason::NotAuthorized, detail));
        }
        if let Some(topic) = request.will.as_ref().map(|will| will.topic().as_str())
            && !topics::takes_from_clients(topic)
        {
            let detail = format!("no client may leave a will on {topic}: only the node publishes there");
            return Err(refusal(ConnectRefusalReason::NotAuthorized, detail));
        }
        if let Some(will) = &request.will
            && !policy.rules().allows(names, Action::Will, will.topic().as_str())
        {
            let detail = format!("the client may not leave a will on {}", will.topic());
            return Err(refusal(ConnectRefusalReason::NotAuthorized, detail));
        }
        if let Some(credential) = credential {
            let key = (request.peer.address, request.peer.transport);
            self.sessions.accepted(key, credential, self.now_unix_s());
        }
        Ok(Grant { username })
    }

    /// Identifies a client: a token or password takes precedence over the certificate.
    async fn identify(
        &self,
        policy: &Policy,
        request: &ConnectRequest,
    ) -> Result<(Option<Arc<str>>, Option<Credential>), ConnectRefusal> {
        use ConnectRefusalReason::{BadUserNameOrPassword, NotAuthorized, ServerBusy};
        let bad = |detail: &str| Err(refusal(BadUserNameOrPassword, detail));
        let certified = match &request.peer.certificate {
            Some(der) => match certificate::common_name(der) {
                Some(name) => Some(Arc::<str>::from(name)),
                None => return Err(refusal(NotAuthorized, "the certificate has no common name")),
            },
            None => None,
        };
        let anonymous = policy.allows_anonymous(request.peer.address);
        // Without configured credentials the user name cannot be verified. It is ignored: an anonymous client may
        // connect anyway.
        let unchecked = anonymous && certified.is_none() && !policy.has_credentials();
        match (&request.username, &request.password) {
            _ if unchecked => Ok((None, None)),
            (name, Some(password)) if policy.jwt().is_some() && Jwt::looks_like_one(password) => {
                let claims = match self.check_token(password) {
                    Ok(claims) => claims,
                    Err(error) => return bad(&error.map_or("no tokens".into(), |error| error.to_string())),
                };
                if name.as_ref().is_some_and(|name| !name.is_empty() && **name != *claims.subject) {
                    return bad("the user name is not the token's `sub`; leave it empty");
                }
                let credential = Credential::Token { expires_unix_s: claims.expires_unix_s };
                Ok((Some(claims.subject.into()), Some(credential)))
            }
            (Some(name), Some(password)) => {
                let hash = policy.users().hash(name);
                let address = request.peer.address.ip();
                let right = (Some(name.clone()), Some(Credential::Password { user: name.clone() }));
                if self.passwords.remembers(name, password, hash) {
                    return Ok(right);
                }
                let _attempt = match self.failed.begin(address, name) {
                    Ok(attempt) => attempt,
                    Err(too_soon) => return Err(refusal(ServerBusy, too_soon.to_string())),
                };
                match self.passwords.check(name, password, hash, address).await {
                    Ok(true) => {
                        self.failed.succeeded(address, name);
                        Ok(right)
                    }
                    Ok(false) => {
                        tokio::time::sleep(self.failed.failed(address, name)).await;
                        bad("the user name or the password is wrong")
                    }
                    Err(busy) => Err(refusal(ServerBusy, busy.to_string())),
                }
            }
            (None, Some(_)) => bad("the password has no user name"),
            (Some(name), None) if !name.is_empty() => match certified {
                Some(certified) if certified == *name => Ok((Some(certified), None)),
                Some(_) => bad("the user name is not the common name of the certificate; leave it out"),
                None => bad("the user name has no password"),
            },
            (_, None) => match certified {
                Some(certified) => Ok((Some(certified), None)),
                None if anonymous => Ok((None, None)),
                None => Err(refusal(NotAuthorized, "a user name and a password are required")),
            },
        }
    }
}

fn is_control(client: &Client) -> bool {
    client.transport == Transport::Internal && client.client_id.starts_with(CONTROL_CLIENTS)
}

/// The filter of a shared subscription, `$share/GROUP/FILTER`, or the filter itself.
fn unshared(filter: &str) -> &str {
    let shared = filter.strip_prefix("$share/");
    shared.and_then(|shared| shared.split_once('/')).map_or(filter, |(_, filter)| filter)
}

fn names_of(client: &Client) -> ClientNames<'_> {
    ClientNames { user: client.username.as_deref(), client_id: Some(&client.client_id) }
}

fn refusal(reason: ConnectRefusalReason, detail: impl Into<String>) -> ConnectRefusal {
    ConnectRefusal { reason, detail: detail.into() }
}

/// Logs refused requests, at most one per second: MQTT 3.1.1 and QoS 0 cannot report them to the client.
#[derive(Default)]
pub(super) struct RefusalLog {
    last_unix_s: AtomicU64,
    /// Number of refusals since the last logged one.
    unlogged: AtomicU64,
}

impl RefusalLog {
    /// Number of requests that were not logged before this one; `None` if this one is not logged either.
    fn begin_log_line(&self, now_unix_s: u64) -> Option<u64> {
        if self.last_unix_s.swap(now_unix_s, Ordering::Relaxed) == now_unix_s {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.unlogged.swap(0, Ordering::Relaxed))
    }

    fn log_connect(&self, now_unix_s: u64, request: &ConnectRequest, reason: &str) {
        let Some(unlogged) = self.begin_log_line(now_unix_s) else { return };
        let user = request.username.as_deref().unwrap_or("(anonymous)");
        let (client, address) = (&*request.client_id, request.peer.address);
        tracing::warn!(client, user, ?address, reason, unlogged, "a client may not connect");
    }

    fn log(&self, now_unix_s: u64, client: &Client, what: &str, topic: &str) {
        let Some(unlogged) = self.begin_log_line(now_unix_s) else { return };
        let user = client.username.as_deref().unwrap_or("(anonymous)");
        let client = &*client.client_id;
        tracing::warn!(client, user, topic, unlogged, "a client may not {what} this topic");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_subscription_counts_as_its_filter() {
        for (given, counts) in
            [("$share/g/a/#", "a/#"), ("$share/g//a", "/a"), ("a/b", "a/b"), ("$share/g/$SYS/#", "$SYS/#")]
        {
            assert_eq!(unshared(given), counts);
        }
    }
}
