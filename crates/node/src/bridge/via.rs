//! Nodes that a message has passed, and the hook that accepts this list from bridges only.

use std::collections::HashSet;
use std::sync::Arc;

use edgefaas_broker::{Client, Message, Origin, PublishHook, Publishing, Transport, Verdict};
use edgefaas_manifest::glob_matches;
use parking_lot::Mutex;

/// User property with the ids of the nodes that a message has passed, oldest first, separated by `,`.
pub const VIA: &str = "edgefaas-via";
/// The maximum number of nodes that a message passes.
pub const MAX_HOPS: usize = 8;
/// More than the length of any 8 node ids.
const MAX_VIA_BYTES: usize = 1024;
/// Maximum number of clients named in the log, each once.
const MAX_NAMED: usize = 256;

/// Ids of the nodes that a message has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Via<'a>(&'a str);

impl<'a> Via<'a> {
    /// Reads the list from user properties.
    pub fn of<N: AsRef<str> + 'a, V: AsRef<str> + 'a>(
        user_properties: impl IntoIterator<Item = &'a (N, V)>,
    ) -> Self {
        let found = user_properties.into_iter().find(|(name, _)| name.as_ref() == VIA);
        Self(found.map_or("", |(_, via)| via.as_ref()))
    }

    /// True if the message has passed this node.
    pub fn has(self, node_id: &str) -> bool {
        self.0.split(',').any(|node| node == node_id)
    }

    /// True if the message has passed this node before the last node.
    pub fn has_before_last(self, node_id: &str) -> bool {
        self.0.rsplit_once(',').is_some_and(|(before, _)| Via(before).has(node_id))
    }

    /// True if the message has passed the maximum number of nodes.
    pub fn is_far(self) -> bool {
        self.0.len() > MAX_VIA_BYTES
            || self.0.split(',').filter(|node| !node.is_empty()).count() >= MAX_HOPS
    }

    /// The list with this node appended.
    pub fn with(self, node_id: &str) -> String {
        match self.0.rsplit(',').next() {
            Some("") | None => node_id.to_owned(),
            Some(last) if last == node_id => self.0.to_owned(),
            Some(_) => format!("{},{node_id}", self.0),
        }
    }
}

/// Removes [`VIA`] from messages of ordinary clients, and ends loops over bridges of other nodes, which are clients of
/// this node's broker.
pub struct ViaHook {
    node_id: String,
    /// Patterns of client identifiers.
    bridge_clients: Vec<String>,
    named: Mutex<HashSet<Arc<str>>>,
}

impl ViaHook {
    /// `bridge_clients` are patterns, with `*`, of the client identifiers of bridges of other nodes.
    pub fn new(node_id: &str, bridge_clients: &[String]) -> Self {
        Self {
            node_id: node_id.to_owned(),
            bridge_clients: bridge_clients.to_vec(),
            named: Mutex::default(),
        }
    }

    fn is_bridge(&self, client: &Client) -> bool {
        client.transport == Transport::Internal
            || self.bridge_clients.iter().any(|pattern| glob_matches(pattern, &client.client_id))
    }

    fn name(&self, client: &Client) {
        let mut named = self.named.lock();
        if named.len() < MAX_NAMED && named.insert(client.client_id.clone()) {
            tracing::warn!(
                client_id = &*client.client_id,
                peer = %client.peer,
                "the client set the user property {VIA} and is no bridge: the property is removed from its messages; \
                 name the client in `bridge_clients` of `[broker]` if it is a bridge"
            );
        }
    }
}

impl PublishHook for ViaHook {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let message = publishing.message();
        let Some(properties) = message.properties() else { return Verdict::Forward };
        let Origin::Client(client) = publishing.origin() else { return Verdict::Forward };
        if !properties.user.iter().any(|(name, _)| &**name == VIA) {
            return Verdict::Forward;
        }
        if !self.is_bridge(client) {
            self.name(client);
            return Verdict::Rewrite(without(message));
        }
        let via = Via::of(&properties.user);
        // Acknowledged, so that the other node does not send it again.
        if via.has(&self.node_id) || via.is_far() { Verdict::Consume } else { Verdict::Forward }
    }
}

fn without(message: &Message) -> Message {
    let mut properties = message.properties().cloned().unwrap_or_default();
    properties.user.retain(|(name, _)| &**name != VIA);
    message.clone().with_properties(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn via(text: &str) -> Via<'_> {
        Via(text)
    }

    #[test]
    fn nodes_are_counted_and_found() {
        assert_eq!(via("").with("n1"), "n1");
        assert_eq!(via("n1").with("n1"), "n1");
        assert_eq!(via("n2").with("n1"), "n2,n1");
        assert!(via("n2,n1").has("n1") && !via("n11").has("n1") && !via("").has("n1"));
        assert!(via("n1,n2").has_before_last("n1") && !via("n1,n2").has_before_last("n2"));
        assert!(!via("1,2,3,4,5,6,7").is_far() && via("1,2,3,4,5,6,7,8").is_far());
        assert!(!via("").is_far() && via(&"x".repeat(2_000)).is_far());
    }
}
