//! The next step of a node for one app of the cluster: a pure function.

use edgefaas_functions::registry::{ClusterApp, Code, Deployment, Reach};

/// The app on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// The deployment that is live, or that a deploy to this node alone has overridden.
    pub deployment: Option<String>,
    /// The reach of the deploy.
    pub reach: Reach,
    /// Whether this node runs the functions.
    pub code: Code,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The node has carried out the decision.
    Nothing,
    /// The app is no longer deployed.
    Remove,
    /// The revision becomes live, once all of it is here.
    Adopt(Deployment),
}

/// The step that brings an app to the decision of the cluster. `code` says whether this node shall run it; `None` if that
/// is not known yet because the manifest is not here.
pub fn next_step(decided: &ClusterApp, local: Option<&Local>, code: Option<Code>) -> Step {
    let winner = &decided.winner;
    let is_same = local.is_some_and(|local| local.deployment.as_ref() == Some(&winner.id()));
    match (&winner.revision, local) {
        (None, None) => Step::Nothing,
        // Deployed to this node alone, before it was a member or after the removal.
        (None, Some(local))
            if local.reach == Reach::ThisNode && (is_same || local.deployment.is_none()) =>
        {
            Step::Nothing
        }
        (None, Some(_)) => Step::Remove,
        // A deploy to this node alone holds until the next deploy to the cluster.
        (Some(_), Some(local)) if is_same && local.reach == Reach::ThisNode => Step::Nothing,
        (Some(_), Some(local)) if is_same && code.is_none_or(|code| code == local.code) => Step::Nothing,
        (Some(_), _) => Step::Adopt(winner.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(number: u64, revision: Option<&str>) -> ClusterApp {
        let winner = Deployment {
            number,
            revision: revision.map(str::to_owned),
            node: "a".into(),
            deployed_unix_ms: 0,
            format: 1,
        };
        ClusterApp { winner, lost: Vec::new() }
    }

    #[test]
    fn a_node_carries_out_the_decision_and_keeps_what_was_deployed_to_it_alone() {
        let (first, second, removed) = (decided(1, Some("r1")), decided(2, Some("r2")), decided(3, None));
        let local = |deployment: Option<&ClusterApp>, reach, code| {
            let deployment = deployment.map(|decided| decided.winner.id());
            Some(Local { deployment, reach, code })
        };
        let here = Some(Code::Here);
        let live = local(Some(&first), Reach::Cluster, Code::Here);
        let own = local(Some(&second), Reach::ThisNode, Code::Here);
        let older = local(None, Reach::ThisNode, Code::Here);
        let adopt = |decided: &ClusterApp| Step::Adopt(decided.winner.clone());
        for (decided, local, code, expected) in [
            (&first, &None, None, adopt(&first)),
            (&first, &live, here, Step::Nothing),
            (&first, &live, None, Step::Nothing),
            (&first, &live, Some(Code::Elsewhere), adopt(&first)),
            (&second, &live, here, adopt(&second)),
            (&second, &own, Some(Code::Elsewhere), Step::Nothing),
            (&first, &older, here, adopt(&first)),
            (&removed, &None, None, Step::Nothing),
            (&removed, &live, here, Step::Remove),
            (&removed, &own, here, Step::Remove),
            (&removed, &older, here, Step::Nothing),
            (&removed, &local(Some(&removed), Reach::ThisNode, Code::Here), here, Step::Nothing),
        ] {
            assert_eq!(
                next_step(decided, local.as_ref(), code),
                expected,
                "{decided:?} {local:?} {code:?}"
            );
        }
    }
}
