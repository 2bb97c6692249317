//! The state of a `listen`: the events that it has received, and the filters that still need one.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::{Data, ITEM_BYTES, List};

/// A listen that waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Listening {
    pub(super) filters: Vec<Resolved>,
    /// Events that it has received.
    pub(super) events: Data,
    /// Filters of an `all`, also that of `until`, that have received their event.
    pub(super) matched: Vec<u32>,
    pub(super) correlation: BTreeMap<String, Data>,
    /// For `foreach`.
    pub(super) queue: VecDeque<Data>,
    pub(super) busy: bool,
    pub(super) taken: u32,
    /// The listen ends when the queue is empty.
    pub(super) ending: bool,
}

/// A filter with the values that its expressions had when the listen started.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Resolved {
    pub(super) attributes: Vec<(String, Value)>,
    pub(super) expect: Vec<(u32, Data)>,
}

impl Listening {
    /// Size of the received events, and of the events that wait for `foreach`, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.events.bytes() + self.queue.iter().map(item_bytes).sum::<u64>()
    }

    /// Number of received events.
    pub(super) fn collected(&self) -> usize {
        self.events.items().map_or(0, List::len)
    }

    /// The events as a list.
    pub(super) fn list(&self) -> Data {
        match &self.events {
            Data::Arr(_) => self.events.clone(),
            _ => Data::list(Vec::new()),
        }
    }
}

/// Memory of an event and its slot in a list, in bytes.
pub(super) fn item_bytes(item: &Data) -> u64 {
    ITEM_BYTES + item.bytes()
}
