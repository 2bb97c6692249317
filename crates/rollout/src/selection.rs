//! The nodes that run an app, as `[nodes]` of its manifest says: a pure function that every node evaluates for itself.

use std::collections::BTreeSet;

use edgefaas_functions::registry::{AbsentWord, MatchingNodes, near};
use edgefaas_manifest::{NodeCount, NodeSelection};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::members::{Member, Members, Presence};

/// Whether this node runs an app.
///
/// Of the members with the labels and in the zones, those with the greatest rendezvous weight are chosen (Thaler and Ravishankar,
/// "Using name-based mappings to increase hit rates", 1998): if a member leaves, only its place is filled anew. Members that
/// are away are not counted, so each side of a network partition has its own nodes.
pub fn runs_here(app: &str, selection: &NodeSelection, members: &Members) -> bool {
    if !is_eligible(selection, &members.me) {
        return false;
    }
    let mine = weight(app, &members.me);
    let is_before = |other: &&Member| {
        other.presence != Presence::Away
            && is_eligible(selection, other)
            && (weight(app, other), other.node_id) > (mine, members.me.node_id)
    };
    match selection.on {
        NodeCount::All => true,
        NodeCount::Count(count) => members.others.iter().filter(is_before).count() < count as usize,
        NodeCount::OnePerZone => !members
            .others
            .iter()
            .filter(|other| other.zone == members.me.zone)
            .any(|other| is_before(&other)),
    }
}

/// The numbers of the members that run an app: as [`runs_here`] on each of them, if it sees the same members.
pub(crate) fn selected(app: &str, selection: &NodeSelection, members: &Members) -> BTreeSet<u64> {
    let is_counted = |member: &&Member| member.presence != Presence::Away && is_eligible(selection, member);
    let mut counted: Vec<_> =
        members.all().filter(is_counted).map(|one| ((weight(app, one), one.node_id), &one.zone)).collect();
    counted.sort_unstable_by_key(|one| std::cmp::Reverse(one.0));
    let mut zones = BTreeSet::new();
    match selection.on {
        NodeCount::All => {}
        NodeCount::Count(count) => counted.truncate(count as usize),
        NodeCount::OnePerZone => counted.retain(|(_, zone)| zones.insert(*zone)),
    }
    counted.into_iter().map(|((_, node_id), _)| node_id).collect()
}

/// The members with the labels and in the zones of a selection, whether or not they are connected.
pub fn matching_nodes(selection: &NodeSelection, members: &Members) -> MatchingNodes {
    let mut matching = MatchingNodes::default();
    for member in members.all() {
        if is_eligible(selection, member) {
            match member.presence {
                Presence::Connected => matching.connected += 1,
                Presence::Missing | Presence::Away => matching.away += 1,
            }
        } else if may_be_eligible(selection, member) {
            matching.unknown += 1;
        }
    }
    let labels = || members.all().flat_map(|member| member.labels.iter().map(String::as_str));
    let zones = || members.all().map(|member| member.zone.as_str()).filter(|zone| !zone.is_empty());
    for label in selection.labels.iter().filter(|label| labels().all(|known| known != *label)) {
        matching.absent.push(match zones().any(|zone| zone == label) {
            true => AbsentWord::ZoneAsLabel { zone: label.clone() },
            false => {
                AbsentWord::Label { label: label.clone(), near: near(label, labels()).into_iter().next() }
            }
        });
    }
    for zone in selection.zones.iter().filter(|zone| zones().all(|known| known != *zone)) {
        let near = near(zone, zones()).into_iter().next();
        matching.absent.push(AbsentWord::Zone { zone: zone.clone(), near });
    }
    matching
}

/// True if what is not known yet of a member decides whether it is eligible.
fn may_be_eligible(selection: &NodeSelection, member: &Member) -> bool {
    let has_labels = selection.labels.iter().all(|label| member.labels.contains(label));
    let is_zone_unknown = !selection.zones.is_empty() && member.zone.is_empty();
    !member.has_reported || (has_labels && is_zone_unknown)
}

/// The members that come before this node for an occurrence of a schedule: of those that are connected and run the revision,
/// the ones with a greater rendezvous weight for this occurrence. The member that has none before it fires.
///
/// `runs` says of a member whether it runs the app.
pub fn before_here(
    schedule: &str,
    occurrence_unix_ms: u64,
    members: &Members,
    runs: impl Fn(&Member) -> bool,
) -> Vec<u64> {
    let weight = |member: &Member| {
        let seed = member.node_id ^ occurrence_unix_ms.rotate_left(32);
        (xxh3_64_with_seed(schedule.as_bytes(), seed), member.node_id)
    };
    let mine = weight(&members.me);
    let others = members.others.iter().filter(|other| other.presence == Presence::Connected && runs(other));
    others.filter(|other| weight(other) > mine).map(|other| other.node_id).collect()
}

fn is_eligible(selection: &NodeSelection, member: &Member) -> bool {
    selection.labels.iter().all(|label| member.labels.contains(label))
        && (selection.zones.is_empty() || selection.zones.contains(&member.zone))
}

fn weight(app: &str, member: &Member) -> u64 {
    xxh3_64_with_seed(app.as_bytes(), member.node_id)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(node_id: u64, zone: u64) -> Member {
        Member { node_id, name: format!("n{node_id}"), zone: format!("z{zone}"), ..Member::default() }
    }

    /// The cluster as each of its members sees it.
    fn views(all: &[Member]) -> Vec<Members> {
        let view = |at: usize| Members {
            me: Member { presence: Presence::Connected, ..all[at].clone() },
            others: all
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != at)
                .map(|(_, one)| one.clone())
                .collect(),
        };
        (0..all.len()).filter(|at| all[*at].presence == Presence::Connected).map(view).collect()
    }

    fn running(all: &[Member], selection: &NodeSelection) -> Vec<u64> {
        let views = views(all);
        let runs = |view: &&Members| {
            let runs = runs_here("app", selection, view);
            assert_eq!(selected("app", selection, view).contains(&view.me.node_id), runs);
            runs
        };
        views.iter().filter(runs).map(|view| view.me.node_id).collect()
    }

    #[test]
    fn labels_and_zones_are_needed() {
        let mut all: Vec<_> = (1..=4).map(|id| member(id, id % 2)).collect();
        all[0].labels = vec!["camera".into(), "gpu".into()];
        all[1].labels = vec!["camera".into()];
        let selection = |labels: &[&str], zones: &[&str]| NodeSelection {
            on: NodeCount::All,
            labels: labels.iter().map(ToString::to_string).collect(),
            zones: zones.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(running(&all, &selection(&[], &[])), [1, 2, 3, 4]);
        assert_eq!(running(&all, &selection(&["camera"], &[])), [1, 2]);
        assert_eq!(running(&all, &selection(&["camera", "gpu"], &[])), [1]);
        assert_eq!(running(&all, &selection(&[], &["z1", "z7"])), [1, 3]);
        assert_eq!(running(&all, &selection(&["tpm"], &[])), [] as [u64; 0]);
    }

    #[test]
    fn matching_members_are_counted_as_far_as_they_are_known() {
        let of = |labels: &[&str], zones: &[&str]| NodeSelection {
            on: NodeCount::All,
            labels: labels.iter().map(ToString::to_string).collect(),
            zones: zones.iter().map(ToString::to_string).collect(),
        };
        let reported = |id, zone: &str, label: &str| Member {
            zone: zone.into(),
            labels: vec![label.into()],
            has_reported: true,
            ..member(id, 0)
        };
        let away = Member { presence: Presence::Away, ..reported(2, "north", "camera") };
        let mut members = Members { me: reported(1, "south", "gpu"), others: vec![away] };
        let counts = |matching: &MatchingNodes| (matching.connected, matching.away, matching.unknown);
        assert_eq!(counts(&matching_nodes(&of(&[], &[]), &members)), (1, 1, 0));
        let north = matching_nodes(&of(&["camera"], &["north"]), &members);
        assert_eq!((counts(&north), north.absent.len()), ((0, 1, 0), 0));
        let apart = matching_nodes(&of(&["camera"], &["south"]), &members);
        assert_eq!((counts(&apart), apart.absent.len()), ((0, 0, 0), 0));
        let wrong = matching_nodes(&of(&["camra", "north"], &["nroth"]), &members);
        assert_eq!(counts(&wrong), (0, 0, 0));
        let words: Vec<_> = wrong.absent.iter().map(ToString::to_string).collect();
        assert_eq!(words[0], "no member has the label `camra`; did you mean `camera`?");
        assert!(words[1].contains("`north`, which is a zone"), "{words:?}");
        assert_eq!(words[2], "no member is in the zone `nroth`; did you mean `north`?");
        // One that has just joined, and one that measures its zone.
        members.others.push(Member { zone: String::new(), ..member(3, 0) });
        members.others.push(reported(4, "", "camera"));
        assert_eq!(counts(&matching_nodes(&of(&["camera"], &["west"]), &members)), (0, 0, 2));
        assert_eq!(counts(&matching_nodes(&of(&["none"], &["west"]), &members)), (0, 0, 1));
    }

    proptest! {
        #[test]
        fn every_node_agrees_and_a_place_of_an_absent_node_is_filled(
            nodes in 1..40_u64, zones in 1..5_u64, count in 1..6_u32, gone in 0..40_usize,
        ) {
            let mut all: Vec<_> = (0..nodes).map(|id| member(id, id % zones)).collect();
            let counted = NodeSelection { on: NodeCount::Count(count), ..NodeSelection::default() };
            let before = running(&all, &counted);
            prop_assert_eq!(before.len() as u64, nodes.min(u64::from(count)));
            let per_zone = NodeSelection { on: NodeCount::OnePerZone, ..NodeSelection::default() };
            prop_assert_eq!(running(&all, &per_zone).len() as u64, zones.min(nodes));
            let gone = gone % all.len();
            all[gone].presence = Presence::Missing;
            let missing = running(&all, &counted);
            prop_assert!(missing.iter().all(|node| before.contains(node)), "a missing node keeps its place");
            all[gone].presence = Presence::Away;
            let after = running(&all, &counted);
            prop_assert_eq!(after.len() as u64, (nodes - 1).min(u64::from(count)));
            let kept = before.iter().filter(|node| **node != gone as u64);
            prop_assert!(kept.clone().all(|node| after.contains(node)), "the others stay");
        }

        #[test]
        fn one_connected_node_fires_each_occurrence(nodes in 1..30_u64, at in 0..1_000_000_u64) {
            let all: Vec<_> = (0..nodes).map(|id| member(id, 0)).collect();
            let runs = |member: &Member| member.node_id.is_multiple_of(3);
            let views = views(&all);
            let able = views.iter().filter(|view| runs(&view.me));
            let fired = able.filter(|view| before_here("f */5 * * * *", at * 60_000, view, runs).is_empty()).count();
            prop_assert_eq!(fired, 1);
        }
    }
}
