//! The placement policies of a cluster: one text that all members have.
//!
//! Concurrent changes stay side by side until the next one; the same one is in force on every node.

use bytes::Bytes;
use edgefaas_crdt::{Field, Operation, Value};
use edgefaas_state::objects::{CLUSTER_APP, FieldKey, Objects};
use edgefaas_state::store::{Batch, StoreError};
use serde::{Deserialize, Serialize};

const OBJECT: &str = "policy";
const FIELD: &str = "text";
/// Version of the stored form.
const FORMAT: u32 = 1;

/// The policies that were set, and by which command. Of concurrent ones the greatest is in force, in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PolicyText {
    /// One more than that of every text which it replaces.
    pub number: u64,
    /// The policies, YAML; empty for none.
    pub text: String,
    /// The name of the node that got the command.
    pub node: String,
    /// The time of the command by the clock of that node, in milliseconds since the Unix epoch.
    pub set_unix_ms: u64,
    /// The version of this form.
    pub format: u32,
}

/// The policies in force, and the number of concurrent texts that are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPolicy {
    /// The text in force.
    pub current: PolicyText,
    /// Concurrent texts that lost, until the next change.
    pub lost: Vec<PolicyText>,
}

impl PolicyText {
    /// Its form in the field of the policies.
    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

impl SharedPolicy {
    /// The policies in force of the values of the field; `None` if none of them is a text of policies.
    pub fn of(values: &[Bytes]) -> Option<Self> {
        let decode = |value: &Bytes| serde_json::from_slice::<PolicyText>(value).ok();
        let is_known = |text: &PolicyText| text.format == FORMAT && text.number < u64::MAX / 2;
        let mut texts: Vec<_> = values.iter().filter_map(decode).filter(is_known).collect();
        texts.sort_unstable_by(|one, other| other.cmp(one));
        let mut texts = texts.into_iter();
        let current = texts.next()?;
        let lost = texts.filter(|lost| lost.text != current.text).collect();
        Some(Self { current, lost })
    }
}

/// Whether an object has the policies.
pub fn is_policy_object(object: &str) -> bool {
    object == OBJECT
}

/// The policies of the cluster; `None` if there were never any.
///
/// # Errors
/// The object cannot be read.
pub fn shared_policy(objects: &Objects) -> Result<Option<SharedPolicy>, StoreError> {
    let Some(Value::Values(values)) = objects.read(&key(), |field| field.map(Field::value))? else {
        return Ok(None);
    };
    Ok(SharedPolicy::of(&values))
}

/// Adds a change of the policies to a batch.
pub fn put(batch: &mut Batch, known: Option<&SharedPolicy>, text: String, node: String, set_unix_ms: u64) {
    let number = known.map_or(1, |known| known.current.number + 1);
    let text = PolicyText { number, text, node, set_unix_ms, format: FORMAT };
    batch.operate(key(), Operation::MvRegisterSet(text.encode()));
}

fn key() -> FieldKey {
    FieldKey::new(CLUSTER_APP, OBJECT, FIELD)
}
