//! The placement policies of a cluster: one text that all members have.
//!
//! Concurrent changes stay side by side until the next one; the same one is in force on every node.

use bytes::Bytes;
use edgefaas_cluster::status::PolicyFact;
use edgefaas_crdt::{Field, Operation, Value};
use edgefaas_functions::registry::winner_of;
use edgefaas_state::objects::{CLUSTER_APP, FieldKey, Objects};
use edgefaas_state::store::{Batch, StoreError};
use serde::{Deserialize, Serialize};

use crate::members::{Member, Members, Presence};

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
        let (current, mut lost) = winner_of(values.iter().filter_map(decode).filter(is_known))?;
        lost.retain(|lost: &PolicyText| lost.text != current.text);
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

/// The policies on one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePolicy {
    /// The member's name.
    pub node: String,
    /// Its zone; empty if it is not known.
    pub zone: String,
    /// The state of the policies there.
    pub state: PolicyState,
}

/// The state of the policies on a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyState {
    /// They are in force.
    InForce,
    /// The member does not have them yet.
    Waiting,
    /// The member cannot use them, and the previous ones stay in force.
    Refused {
        /// The cause.
        reason: String,
    },
    /// The member is away. It gets them when it returns.
    Away,
}

/// The digest of a text, by which members say which one they have.
pub fn digest(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// The state of a text on all members, this node first and the others by name.
pub fn policy_report(text: &str, members: &Members) -> Vec<NodePolicy> {
    let digest = digest(text);
    let report = |member: &Member| NodePolicy {
        node: member.name.clone(),
        zone: member.zone.clone(),
        state: match &member.policy {
            _ if member.presence != Presence::Connected => PolicyState::Away,
            Some(PolicyFact { digest: known, refused }) if *known == digest => match refused {
                Some(reason) => PolicyState::Refused { reason: reason.clone() },
                None => PolicyState::InForce,
            },
            Some(_) | None => PolicyState::Waiting,
        },
    };
    let mut reports: Vec<_> = members.all().map(report).collect();
    reports[1..].sort_by(|one, next| one.node.cmp(&next.node));
    reports
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_says_which_policies_it_has() {
        let member = |name: &str, presence, policy: Option<(&str, Option<&str>)>| Member {
            name: name.into(),
            presence,
            policy: policy.map(|(text, refused)| PolicyFact {
                digest: digest(text),
                refused: refused.map(str::to_owned),
            }),
            ..Member::default()
        };
        let members = Members {
            me: member("m", Presence::Connected, Some(("new", None))),
            others: vec![
                member("d", Presence::Connected, Some(("new", Some("an unknown strategy")))),
                member("c", Presence::Missing, Some(("new", None))),
                member("b", Presence::Connected, Some(("old", None))),
                member("a", Presence::Connected, None),
            ],
        };
        let reports = policy_report("new", &members);
        let states: Vec<_> = reports.into_iter().map(|report| (report.node, report.state)).collect();
        let refused = PolicyState::Refused { reason: "an unknown strategy".into() };
        let expected = [
            ("m", PolicyState::InForce),
            ("a", PolicyState::Waiting),
            ("b", PolicyState::Waiting),
            ("c", PolicyState::Away),
            ("d", refused),
        ];
        assert_eq!(states, expected.map(|(name, state)| (name.to_owned(), state)));
    }
}
