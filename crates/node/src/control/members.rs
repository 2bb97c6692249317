//! The members of the cluster as messages of the control API.

use data_encoding::HEXLOWER;
use edgefaas_api::control as proto;
use edgefaas_cluster::status::{AppFact, LiveRevision, Load, NextState, Readiness, Runs, ZoneSource};

use crate::cluster::{ClusterStatus, LackingPattern, MemberView, Presence};

/// The cluster as the control API shows it.
pub(super) fn cluster(status: ClusterStatus) -> proto::Cluster {
    let id = |node_id: u64| format!("{node_id:016x}");
    let peer = |peer: edgefaas_cluster::PeerInfo| proto::Peer {
        address: peer.address.to_string(),
        transport: crate::cluster::transport_name(peer.transport).to_owned(),
        software: peer.software,
        protocol_version: peer.protocol_version,
        connected_ms: peer.connected_since.elapsed().as_millis() as u64,
        rtt_us: peer.rtt.map(|rtt| rtt.as_micros() as u64),
        bytes_in: peer.bytes_in,
        bytes_out: peer.bytes_out,
        skew_ms: peer.skew_ms,
    };
    let view = status.view;
    let own = (status.cluster.is_some()).then(|| member_status(&view.me));
    let members = status.members.into_iter().map(|member| proto::Member {
        status: view.member(member.node_id).map(member_status),
        away_ms: match view.member(member.node_id).map(|member| member.presence) {
            Some(Presence::Away { since: Some(since) }) if member.peer.is_none() => {
                Some(since.elapsed().as_millis() as u64)
            }
            _ => None,
        },
        name: member.name,
        node_id: id(member.node_id),
        addresses: member.addresses,
        peer: member.peer.map(peer),
        copy_address: member.copy_address,
    });
    proto::Cluster {
        id: status.cluster.unwrap_or_default(),
        name: status.name,
        node_id: id(status.node_id),
        has_key: status.has_key,
        addresses: status.addresses,
        members: members.collect(),
        recovering: status.recovering.patterns as u32,
        recovering_patterns: status.recovering.first.into_iter().map(recovering_pattern).collect(),
        copy: status.copy,
        status: own,
        revoked: status.revoked,
    }
}

fn recovering_pattern(lacking: LackingPattern) -> proto::RecoveringPattern {
    let LackingPattern { app, pattern, members } = lacking;
    proto::RecoveringPattern { app, pattern, members }
}

fn member_status(member: &MemberView) -> proto::MemberStatus {
    let facts = &member.facts;
    let load = |load: &Load| proto::MemberLoad {
        permille: member.load_permille().unwrap_or(0),
        memory_free_bytes: load.memory_free_bytes,
        memory_total_bytes: load.memory_total_bytes,
        isolates_free: load.permits_free,
        isolates_total: load.permits_total,
        running: load.running,
        queued: load.queued,
        pressure_permille: load.pressure_permille.into(),
        readiness: match load.readiness {
            Readiness::Ready => "ready",
            Readiness::Draining => "draining",
            Readiness::Failing => "failing",
        }
        .to_owned(),
    };
    proto::MemberStatus {
        zone: facts.zone.as_ref().map(|zone| zone.name.clone()).unwrap_or_default(),
        zone_is_measured: facts.zone.as_ref().is_some_and(|zone| zone.source == ZoneSource::Measured),
        labels: facts.labels.clone(),
        software: facts.software.clone(),
        apps: facts.apps.iter().map(member_app).collect(),
        apps_omitted: facts.apps_omitted,
        load: member.load.as_ref().map(load),
    }
}

fn member_app(fact: &AppFact) -> proto::MemberApp {
    let (state, permille, reason) = match (fact.next.as_ref().map(|next| &next.state), fact.live) {
        (Some(NextState::Fetching { permille }), _) => ("fetching", (*permille).into(), ""),
        (Some(NextState::Failed { reason }), _) => ("failed", 0, reason.as_str()),
        (None, Some(LiveRevision { runs: Runs::Here, .. })) => ("live", 0, ""),
        (None, Some(LiveRevision { runs: Runs::HereAlone, .. })) => ("this-node", 0, ""),
        (None, Some(LiveRevision { runs: Runs::Elsewhere, .. }) | None) => ("elsewhere", 0, ""),
    };
    let next = fact.next.as_ref().and_then(|next| next.revision.as_ref());
    proto::MemberApp {
        name: fact.app.clone(),
        revision: fact.live.map(|live| HEXLOWER.encode(&live.revision)).unwrap_or_default(),
        state: state.to_owned(),
        permille,
        reason: reason.to_owned(),
        next_revision: next.map(|next| HEXLOWER.encode(next)).unwrap_or_default(),
    }
}
