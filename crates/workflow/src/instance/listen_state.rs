//! The state of a `listen`: the events that it has received, and the filters that still need one.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::{Data, ITEM_BYTES, List};

/// A listen that waits.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Listening {
    pub(super) filters: Vec<Resolved>,
    /// Events that it has received; with `foreach` the outputs.
    pub(super) events: Data,
    /// With `foreach` and a condition for the end: the events that `foreach` has worked on, as the condition sees them.
    #[serde(default)]
    pub(super) worked_on: Data,
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
        self.events.bytes() + self.worked_on.bytes() + self.queue.iter().map(item_bytes).sum::<u64>()
    }

    /// Number of received events.
    pub(super) fn collected(&self) -> usize {
        self.events.items().map_or(0, List::len)
    }

    /// The output: events, or outputs of `foreach`, as a list.
    pub(super) fn list(&self) -> Data {
        list_of(&self.events)
    }

    /// The events that a condition for the end sees, as a list.
    pub(super) fn seen(&self, foreach: bool) -> Data {
        list_of(if foreach { &self.worked_on } else { &self.events })
    }
}

/// A list that is null while it has no item.
fn list_of(items: &Data) -> Data {
    match items {
        Data::Arr(_) => items.clone(),
        _ => Data::list(Vec::new()),
    }
}

/// Memory of an event and its slot in a list, in bytes.
pub(super) fn item_bytes(item: &Data) -> u64 {
    ITEM_BYTES + item.bytes()
}
