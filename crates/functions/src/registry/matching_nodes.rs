//! Members of a cluster that match `[nodes]` of a manifest: an app that no node would run is refused.

use std::fmt;

use edgefaas_manifest::{NodeCount, NodeSelection};

use super::deploy_error::DeployError;

/// The members that match a selection of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MatchingNodes {
    /// Number of matching members that are connected, this node included.
    pub connected: usize,
    /// Number of matching members that are away.
    pub away: usize,
    /// Number of members that may match: their labels or zones are not known yet.
    pub unknown: usize,
    /// Labels and zones of the selection that no member is known to have.
    pub absent: Vec<AbsentWord>,
}

/// A label or a zone of a selection that no member is known to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbsentWord {
    /// A label.
    Label {
        /// The label.
        label: String,
        /// The nearest label of a member.
        near: Option<String>,
    },
    /// A label that is the name of a zone.
    ZoneAsLabel {
        /// The zone.
        zone: String,
    },
    /// A zone.
    Zone {
        /// The zone.
        zone: String,
        /// The nearest zone of a member.
        near: Option<String>,
    },
}

impl fmt::Display for AbsentWord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let near = match self {
            Self::Label { label, near } => {
                write!(out, "no member has the label `{label}`")?;
                near
            }
            Self::ZoneAsLabel { zone } => {
                return write!(
                    out,
                    "no member has the label `{zone}`, which is a zone; write `zones = [\"{zone}\"]`"
                );
            }
            Self::Zone { zone, near } => {
                write!(out, "no member is in the zone `{zone}`")?;
                near
            }
        };
        near.as_ref().map_or(Ok(()), |near| write!(out, "; did you mean `{near}`?"))
    }
}

/// The warnings about `[nodes]` of an app.
///
/// # Errors
/// [`DeployError::NoMatchingNode`] if the labels and zones of all members are known, and none matches.
pub(super) fn check_nodes(
    app: &str,
    selection: &NodeSelection,
    matching: MatchingNodes,
) -> Result<Vec<String>, DeployError> {
    let MatchingNodes { connected, away, unknown, absent } = matching;
    let known = connected + away;
    if known + unknown == 0 {
        return Err(DeployError::NoMatchingNode { app: app.to_owned(), absent });
    }
    let not_known = format!("the labels or zones of {unknown} member(s) are not known yet");
    if known == 0 {
        return Ok(vec![format!(
            "no member is known to match [nodes], and no node runs the app until one does: {not_known}"
        )]);
    }
    let mut warnings = Vec::new();
    if let NodeCount::Count(count) = selection.on
        && known < count as usize
    {
        let but = if unknown > 0 { format!(" ({not_known})") } else { String::new() };
        warnings.push(format!("[nodes] asks for {count} nodes, and {known} member(s) match it{but}"));
    }
    if unknown == 0 {
        warnings.extend(absent.iter().map(|word| format!("[nodes]: {word}")));
    }
    if connected == 0 {
        warnings.push(
            "all members that match [nodes] are away: no node runs the app until one returns".to_owned(),
        );
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(on: NodeCount, matching: MatchingNodes) -> Result<Vec<String>, String> {
        let selection = NodeSelection { on, ..NodeSelection::default() };
        check_nodes("eye", &selection, matching).map_err(|error| error.to_string())
    }

    #[test]
    fn an_app_that_no_node_would_run_is_refused() {
        let zone = AbsentWord::Zone { zone: "nroth".into(), near: Some("north".into()) };
        let nobody = MatchingNodes { absent: vec![zone.clone()], ..MatchingNodes::default() };
        let error = check(NodeCount::All, nobody.clone()).unwrap_err();
        assert!(error.contains("`eye`") && error.contains("did you mean `north`?"), "{error}");
        // Those that have just joined may match.
        let warnings = check(NodeCount::All, MatchingNodes { unknown: 1, ..nobody.clone() }).unwrap();
        assert!(warnings[0].contains("not known yet") && warnings.len() == 1, "{warnings:?}");
        let warnings = check(NodeCount::All, MatchingNodes { away: 1, ..nobody.clone() }).unwrap();
        assert!(warnings[0].contains("nroth") && warnings[1].contains("are away"), "{warnings:?}");
        let one = MatchingNodes { connected: 1, ..MatchingNodes::default() };
        assert_eq!(check(NodeCount::Count(1), one.clone()), Ok(vec![]));
        assert_eq!(check(NodeCount::OnePerZone, one.clone()), Ok(vec![]));
        let warnings = check(NodeCount::Count(2), one).unwrap();
        assert_eq!(warnings, ["[nodes] asks for 2 nodes, and 1 member(s) match it"]);
    }

    #[test]
    fn a_zone_among_the_labels_is_named() {
        let word = AbsentWord::ZoneAsLabel { zone: "north".into() };
        assert!(word.to_string().contains("write `zones = [\"north\"]`"), "{word}");
    }
}
