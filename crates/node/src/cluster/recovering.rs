//! What this node lacks of the objects that its functions use, with the names of the members that have them.

use std::collections::{BTreeSet, HashMap};

use edgefaas_cluster::Membership;
use edgefaas_state::objects::{Lacking, Recoveries};

/// Maximum number of patterns that are listed; the count is of all.
const MAX_LISTED: usize = 100;

/// Patterns of objects that have not come from all members.
#[derive(Debug, Clone, Default)]
pub struct Recovering {
    /// Number of patterns.
    pub patterns: usize,
    /// The first of them, sorted.
    pub first: Vec<LackingPattern>,
    /// Names of all members that any of them waits for.
    pub members: BTreeSet<String>,
}

/// A pattern of an app's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LackingPattern {
    /// The app.
    pub app: String,
    /// Pattern of names of objects.
    pub pattern: String,
    /// Names of the members whose objects have not all come.
    pub members: Vec<String>,
}

impl Recovering {
    /// As it is now. Members that have left since have no name and are left out.
    pub(super) fn of(recoveries: &Recoveries, membership: &Membership) -> Self {
        let lacking = recoveries.lacking();
        if lacking.is_empty() {
            return Self::default();
        }
        let names: HashMap<u64, &str> = membership
            .members()
            .map(|member| (member.certificate.node_id(), member.certificate.name()))
            .collect();
        let named = |members: &[u64]| {
            members.iter().filter_map(|id| names.get(id).map(|name| (*name).to_owned())).collect::<Vec<_>>()
        };
        let members = lacking.iter().flat_map(|lacking| named(&lacking.members)).collect();
        let patterns = lacking.len();
        let pattern = |Lacking { app, pattern, members }: Lacking| {
            let members = named(&members);
            LackingPattern { app, pattern, members }
        };
        let first = lacking.into_iter().take(MAX_LISTED).map(pattern).collect();
        Self { patterns, first, members }
    }
}
