//! Prevents loops over several bridges: the list of the nodes that a message has passed, and the hook that accepts this list from
//! bridges only.

use std::collections::HashSet;
use std::sync::Arc;

use edgefaas_broker::{Client, Message, Origin, PublishHook, Publishing, Transport, Verdict};
use edgefaas_manifest::glob_matches;
use parking_lot::Mutex;

/// User property with the ids of the nodes that a message has passed, oldest first, separated by `,`.
pub const VIA_PROPERTY: &str = "edgefaas-via";
/// Maximum number of nodes that a message passes.
pub const MAX_HOPS: usize = 8;
/// Maximum size of the list; 8 node ids are shorter.
const MAX_HOPS_BYTES: usize = 1024;
/// Maximum number of clients that are logged, each once.
const MAX_LOGGED_CLIENTS: usize = 256;

/// Ids of the nodes that a message has passed, oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hops<'a>(&'a str);

impl<'a> Hops<'a> {
    /// Reads the list from user properties.
    pub fn of<N: AsRef<str> + 'a, V: AsRef<str> + 'a>(
        user_properties: impl IntoIterator<Item = &'a (N, V)>,
    ) -> Self {
        let found = user_properties.into_iter().find(|(name, _)| name.as_ref() == VIA_PROPERTY);
        Self(found.map_or("", |(_, via)| via.as_ref()))
    }

    /// True if the message has passed this node.
    pub fn contains(self, node_id: &str) -> bool {
        self.0.split(',').any(|node| node == node_id)
    }

    /// True if the message has passed this node, not counting the last node of the list.
    pub fn contains_before_last(self, node_id: &str) -> bool {
        self.0.rsplit_once(',').is_some_and(|(before, _)| Hops(before).contains(node_id))
    }

    /// True if the message has passed [`MAX_HOPS`] nodes or more.
    pub fn is_full(self) -> bool {
        self.0.len() > MAX_HOPS_BYTES
            || self.0.split(',').filter(|node| !node.is_empty()).count() >= MAX_HOPS
    }

    /// The list with this node appended, unless it is the last one already.
    pub fn with(self, node_id: &str) -> String {
        match self.0.rsplit(',').next() {
            Some("") | None => node_id.to_owned(),
            Some(last) if last == node_id => self.0.to_owned(),
            Some(_) => format!("{},{node_id}", self.0),
        }
    }
}

/// Removes [`VIA_PROPERTY`] from messages of clients that are not bridges. Drops messages of other nodes' bridges that have passed
/// this node before or have passed too many nodes.
pub struct LoopPreventionHook {
    node_id: String,
    /// Patterns of the client identifiers of bridges.
    bridge_clients: Vec<String>,
    logged: Mutex<HashSet<Arc<str>>>,
}

impl LoopPreventionHook {
    /// `bridge_clients` are patterns, with `*`, of the client identifiers of bridges of other nodes.
    pub fn new(node_id: &str, bridge_clients: &[String]) -> Self {
        Self {
            node_id: node_id.to_owned(),
            bridge_clients: bridge_clients.to_vec(),
            logged: Mutex::default(),
        }
    }

    fn is_bridge(&self, client: &Client) -> bool {
        client.transport == Transport::Internal
            || self.bridge_clients.iter().any(|pattern| glob_matches(pattern, &client.client_id))
    }

    fn log_once(&self, client: &Client) {
        let mut logged = self.logged.lock();
        if logged.len() < MAX_LOGGED_CLIENTS && logged.insert(client.client_id.clone()) {
            tracing::warn!(
                client_id = &*client.client_id,
                peer = %client.peer,
                "the client sets the user property {VIA_PROPERTY} and is not a bridge: the property is removed from its messages; \
                 if it is a bridge, add its client identifier to `bridge_clients` under [broker]"
            );
        }
    }
}

impl PublishHook for LoopPreventionHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let message = publishing.message();
        let Some(properties) = message.properties() else { return Verdict::Forward };
        let Origin::Client(client) = publishing.origin() else { return Verdict::Forward };
        if !properties.user.iter().any(|(name, _)| &**name == VIA_PROPERTY) {
            return Verdict::Forward;
        }
        if !self.is_bridge(client) {
            self.log_once(client);
            return Verdict::Rewrite(without_hops(message));
        }
        let hops = Hops::of(&properties.user);
        // Consumed, not rejected: the other node gets a positive acknowledgement and does not send the message again.
        if hops.contains(&self.node_id) || hops.is_full() { Verdict::Consume } else { Verdict::Forward }
    }
}

fn without_hops(message: &Message) -> Message {
    let mut properties = message.properties().cloned().unwrap_or_default();
    properties.user.retain(|(name, _)| &**name != VIA_PROPERTY);
    message.clone().with_properties(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hops(text: &str) -> Hops<'_> {
        Hops(text)
    }

    #[test]
    fn the_list_is_extended_searched_and_limited() {
        assert_eq!(hops("").with("n1"), "n1");
        assert_eq!(hops("n1").with("n1"), "n1");
        assert_eq!(hops("n2").with("n1"), "n2,n1");
        assert!(hops("n2,n1").contains("n1") && !hops("n11").contains("n1") && !hops("").contains("n1"));
        assert!(hops("n1,n2").contains_before_last("n1") && !hops("n1,n2").contains_before_last("n2"));
        assert!(!hops("1,2,3,4,5,6,7").is_full() && hops("1,2,3,4,5,6,7,8").is_full());
        assert!(!hops("").is_full() && hops(&"x".repeat(2_000)).is_full());
    }
}
