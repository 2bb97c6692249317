//! `edgefaas nodes`

use std::time::Duration;

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global};
use crate::connection;
use crate::output;

/// Smaller clock differences are not shown.
const SKEW_SHOWN_MS: u64 = 1000;

pub async fn run(global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::GetClusterRequest {};
    let cluster =
        client.get_cluster(request).await.map_err(|status| connection::failure(&status))?.into_inner();
    if global.output == Format::Json {
        return output::json(&as_json(&cluster));
    }
    if cluster.id.is_empty() {
        eprintln!(
            "this node is not in a cluster; `edgefaas cluster init` creates one, `edgefaas cluster join TOKEN` joins one"
        );
        return Ok(());
    }
    let address = |addresses: &[String]| addresses.first().cloned().unwrap_or_default();
    let own = if cluster.has_key { "this node, has the key" } else { "this node" };
    let mut rows = vec![vec![
        cluster.name.clone(),
        cluster.node_id.clone(),
        own.to_owned(),
        address(&cluster.addresses),
        String::new(),
        String::new(),
    ]];
    for member in &cluster.members {
        let (mut state, at, rtt, traffic) = match &member.peer {
            None => ("away".to_owned(), address(&member.addresses), String::new(), String::new()),
            Some(peer) => {
                let since = humantime::format_duration(Duration::from_secs(peer.connected_ms / 1000));
                let mut state = format!("{} for {since}", peer.transport);
                if peer.skew_ms.unsigned_abs() >= SKEW_SHOWN_MS {
                    state.push_str(&format!(", clock {:+.1} s", peer.skew_ms as f64 / 1000.0));
                }
                let rtt = peer.rtt_us.map(output::micros).unwrap_or_default();
                let traffic =
                    format!("{} in, {} out", output::size(peer.bytes_in), output::size(peer.bytes_out));
                (state, peer.address.clone(), rtt, traffic)
            }
        };
        if let Some(copy) = &member.copy_address {
            state
                .push_str(&format!(", a second node with its identity is refused: {}", output::line(copy)));
        }
        rows.push(vec![output::line(&member.name), member.node_id.clone(), state, at, rtt, traffic]);
    }
    output::table(&["NODE", "ID", "STATE", "ADDRESS", "ROUND TRIP", "TRAFFIC"], rows)?;
    if let Some(copy) = &cluster.copy {
        eprintln!(
            "a second node runs with the identity of this one: {}; stop one of them and start it with an empty data directory",
            output::line(copy)
        );
    }
    if cluster.recovering > 0 {
        eprintln!("objects of {} patterns are still missing from other nodes", cluster.recovering);
    }
    Ok(())
}

fn as_json(cluster: &proto::Cluster) -> serde_json::Value {
    let peer = |peer: &proto::Peer| {
        json!({
            "address": peer.address, "transport": peer.transport, "software": peer.software,
            "protocol_version": peer.protocol_version, "connected_ms": peer.connected_ms, "rtt_us": peer.rtt_us,
            "bytes_in": peer.bytes_in, "bytes_out": peer.bytes_out, "skew_ms": peer.skew_ms,
        })
    };
    let member = |member: &proto::Member| {
        json!({
            "name": member.name, "node_id": member.node_id, "addresses": member.addresses,
            "peer": member.peer.as_ref().map(peer), "copy_address": member.copy_address,
        })
    };
    json!({
        "cluster": (!cluster.id.is_empty()).then_some(&cluster.id),
        "name": cluster.name,
        "node_id": cluster.node_id,
        "has_key": cluster.has_key,
        "addresses": cluster.addresses,
        "recovering": cluster.recovering,
        "copy": cluster.copy,
        "members": cluster.members.iter().map(member).collect::<Vec<_>>(),
    })
}
