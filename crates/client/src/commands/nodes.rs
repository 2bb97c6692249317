//! `edgefaas nodes`

use std::collections::BTreeMap;
use std::time::Duration;

use edgefaas_api::control as proto;
use serde_json::{Value, json};

use crate::args::{Format, Global, Nodes};
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::output;

/// Smaller clock differences are not shown.
const SKEW_SHOWN_MS: u64 = 1000;
/// Widths of the columns with names; the table has at most 100 columns with them.
const NODE_WIDTH: usize = 20;
const ZONE_WIDTH: usize = 18;
const LABELS_WIDTH: usize = 20;
/// A higher load is not shown.
const MAX_LOAD_PERCENT: u32 = 999;
/// Patterns of one member that are named.
const PATTERNS_SHOWN: usize = 3;

/// A member, or the node that answers.
struct Row<'a> {
    name: &'a str,
    node_id: &'a str,
    addresses: &'a [String],
    status: proto::MemberStatus,
    connection: Connection<'a>,
}

enum Connection<'a> {
    ThisNode { has_key: bool },
    Open { peer: &'a proto::Peer },
    Away { since: Option<Duration> },
}

pub async fn run(args: &Nodes, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::GetClusterRequest {};
    let cluster =
        client.get_cluster(request).await.map_err(|status| connection::failure(&status))?.into_inner();
    if let Some(name) = &args.name {
        return one(&cluster, name, global.output);
    }
    if global.output == Format::Json {
        return output::json(&as_json(&cluster));
    }
    if let Some(revoked) = &cluster.revoked {
        eprintln!(
            "this node was revoked in the cluster {}, and works alone; to join again, stop it, move `cluster/` out of its data \
             directory, start it and use `edgefaas cluster join TOKEN`",
            output::line(revoked)
        );
        return Ok(());
    }
    if cluster.id.is_empty() {
        eprintln!(
            "this node is not in a cluster; `edgefaas cluster init` creates one, `edgefaas cluster join TOKEN` joins one"
        );
        return Ok(());
    }
    let rows = rows(&cluster);
    if args.wide {
        output::table(&WIDE_HEADER, rows.iter().map(Row::wide).collect())?;
    } else {
        let header = ["NODE", "ZONE", "LABELS", "STATE", "LOAD", "ROUND TRIP"];
        output::table(&header, rows.iter().map(Row::short).collect())?;
    }
    warn(&cluster);
    Ok(())
}

/// What needs attention.
fn warn(cluster: &proto::Cluster) {
    if let Some(copy) = &cluster.copy {
        eprintln!(
            "a second node runs with the identity of this one: {}; stop one of them and start it with an empty data directory",
            output::line(copy)
        );
    }
    for member in &cluster.members {
        let name = output::line(&member.name);
        if let Some(copy) = &member.copy_address {
            eprintln!("a second node with the identity of {name} is refused: {}", output::line(copy));
        }
        let skew_ms = member.peer.as_ref().map_or(0, |peer| peer.skew_ms);
        if skew_ms.unsigned_abs() >= SKEW_SHOWN_MS {
            eprintln!("the clock of {name} differs by {:+.1} s", skew_ms as f64 / 1000.0);
        }
    }
    warn_recovering(cluster);
}

/// One line for each member that patterns wait for.
fn warn_recovering(cluster: &proto::Cluster) {
    if cluster.recovering == 0 {
        return;
    }
    let mut members: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for proto::RecoveringPattern { app, pattern, members: from } in &cluster.recovering_patterns {
        let name = format!("{}/{}", output::line(app), output::line(pattern));
        from.iter().for_each(|member| members.entry(member).or_default().push(name.clone()));
    }
    if members.is_empty() {
        eprintln!("objects of {} patterns are still missing from other nodes", cluster.recovering);
    }
    for (member, patterns) in members {
        let is_away = cluster.members.iter().any(|other| other.name == member && other.peer.is_none());
        let (count, shown) = (patterns.len(), patterns.len().min(PATTERNS_SHOWN));
        let more = if count > shown { ", …" } else { "" };
        let shown = patterns[..shown].join(", ");
        let member = output::line(member);
        let state = match is_away {
            true => format!(
                ", which is away; what waits for them goes on when it is back, or after `edgefaas cluster revoke {member}`"
            ),
            false => String::new(),
        };
        let what = if count == 1 { "pattern" } else { "patterns" };
        eprintln!("objects of {count} {what} ({shown}{more}) have not all come from {member}{state}");
    }
}

fn rows(cluster: &proto::Cluster) -> Vec<Row<'_>> {
    let own = Row {
        name: &cluster.name,
        node_id: &cluster.node_id,
        addresses: &cluster.addresses,
        status: cluster.status.clone().unwrap_or_default(),
        connection: Connection::ThisNode { has_key: cluster.has_key },
    };
    std::iter::once(own).chain(cluster.members.iter().map(row)).collect()
}

fn row(member: &proto::Member) -> Row<'_> {
    let proto::Member { name, node_id, addresses, peer, status, away_ms, .. } = member;
    let connection = match peer {
        Some(peer) => Connection::Open { peer },
        None => Connection::Away { since: away_ms.map(Duration::from_millis) },
    };
    Row { name, node_id, addresses, status: status.clone().unwrap_or_default(), connection }
}

const WIDE_HEADER: [&str; 13] = [
    "NODE",
    "ID",
    "ZONE",
    "LABELS",
    "STATE",
    "LOAD",
    "MEMORY FREE",
    "ISOLATES FREE",
    "RUNNING",
    "QUEUED",
    "ROUND TRIP",
    "ADDRESS",
    "TRAFFIC",
];

impl Row<'_> {
    fn short(&self) -> Vec<String> {
        vec![
            cut(self.name, NODE_WIDTH),
            cut(&self.zone(), ZONE_WIDTH),
            cut(&self.status.labels.join(" "), LABELS_WIDTH),
            self.state(),
            self.load(),
            self.round_trip(),
        ]
    }

    fn wide(&self) -> Vec<String> {
        let load = self.status.load.as_ref();
        let of = |free: String, total: String| format!("{free} of {total}");
        let count = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
        vec![
            self.name.to_owned(),
            self.node_id.to_owned(),
            self.zone(),
            self.status.labels.join(" "),
            self.long_state(),
            self.load(),
            load.map(|load| {
                of(output::size(load.memory_free_bytes), output::size(load.memory_total_bytes))
            })
            .unwrap_or_default(),
            load.map(|load| of(load.isolates_free.to_string(), load.isolates_total.to_string()))
                .unwrap_or_default(),
            count(load.map(|load| load.running)),
            count(load.map(|load| load.queued)),
            self.round_trip(),
            self.address().to_owned(),
            self.traffic(),
        ]
    }

    /// A measured zone is marked with `~`.
    fn zone(&self) -> String {
        let mark = if self.status.zone_is_measured { "~" } else { "" };
        format!("{mark}{}", self.status.zone)
    }

    fn state(&self) -> String {
        let readiness = self.status.load.as_ref().map_or("ready", |load| load.readiness.as_str());
        match &self.connection {
            Connection::Away { since: None } => "away".to_owned(),
            Connection::Away { since: Some(since) } => format!("away {}", rounded(*since)),
            _ if readiness != "ready" => readiness.to_owned(),
            Connection::ThisNode { .. } => "this node".to_owned(),
            Connection::Open { .. } => "connected".to_owned(),
        }
    }

    fn long_state(&self) -> String {
        let state = self.state();
        match &self.connection {
            Connection::ThisNode { has_key: true } => format!("{state}, has the key"),
            Connection::Open { peer } => {
                let since = Duration::from_secs(peer.connected_ms / 1000);
                format!("{state}, {} for {}", peer.transport, humantime::format_duration(since))
            }
            Connection::ThisNode { has_key: false } | Connection::Away { .. } => state,
        }
    }

    fn load(&self) -> String {
        let permille = self.status.load.as_ref().map(|load| load.permille);
        match permille.map(|permille| permille.div_ceil(10)) {
            None => String::new(),
            Some(percent) if percent > MAX_LOAD_PERCENT => format!("> {MAX_LOAD_PERCENT} %"),
            Some(percent) => format!("{percent} %"),
        }
    }

    fn round_trip(&self) -> String {
        match &self.connection {
            Connection::Open { peer } => peer.rtt_us.map(output::micros).unwrap_or_default(),
            Connection::ThisNode { .. } | Connection::Away { .. } => String::new(),
        }
    }

    fn address(&self) -> &str {
        match &self.connection {
            Connection::Open { peer } => &peer.address,
            Connection::ThisNode { .. } | Connection::Away { .. } => {
                self.addresses.first().map(String::as_str).unwrap_or_default()
            }
        }
    }

    fn traffic(&self) -> String {
        match &self.connection {
            Connection::Open { peer } => {
                format!("{} in, {} out", output::size(peer.bytes_in), output::size(peer.bytes_out))
            }
            Connection::ThisNode { .. } | Connection::Away { .. } => String::new(),
        }
    }
}

/// The two largest units of a time.
fn rounded(time: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// A text in at most `width` columns.
fn cut(text: &str, width: usize) -> String {
    let text = output::line(text);
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

/// All that is known of one member.
fn one(cluster: &proto::Cluster, name: &str, format: Format) -> anyhow::Result<()> {
    let rows = rows(cluster);
    let Some(row) = rows.iter().find(|row| row.name == name || row.node_id == name) else {
        let message = format!("member `{name}` does not exist; `edgefaas nodes` lists the members");
        return Err(Failure::new(Exit::NotFound, message));
    };
    if format == Format::Json {
        let member = cluster.members.iter().find(|member| member.node_id == row.node_id);
        return output::json(&member.map_or_else(|| own_json(cluster), member_json));
    }
    let mut lines = vec![
        ("id", row.node_id.to_owned()),
        ("state", row.long_state()),
        (
            "zone",
            match row.status.zone_is_measured {
                true => format!("{} (measured)", row.status.zone),
                false => row.status.zone.clone(),
            },
        ),
        ("labels", row.status.labels.join(" ")),
        ("version", row.status.software.clone()),
        ("addresses", row.addresses.join(" ")),
        ("connection", row.address().to_owned()),
        ("round trip", row.round_trip()),
        ("traffic", row.traffic()),
    ];
    if let Some(load) = &row.status.load {
        lines.extend([
            ("load", row.load()),
            (
                "memory",
                format!(
                    "{} of {} free",
                    output::size(load.memory_free_bytes),
                    output::size(load.memory_total_bytes)
                ),
            ),
            ("isolates", format!("{} of {} free", load.isolates_free, load.isolates_total)),
            ("running", load.running.to_string()),
            ("queued", load.queued.to_string()),
            ("pressure", format!("{:.1} %", f64::from(load.pressure_permille) / 10.0)),
        ]);
    }
    let lines = lines.into_iter().filter(|(_, value)| !value.is_empty());
    let lines = lines.map(|(key, value)| format!("{key:<11} {}\n", output::line(&value)));
    output::text(&lines.collect::<String>())?;
    if !row.status.apps.is_empty() {
        let app = |app: &proto::MemberApp| {
            let state = match app.state.as_str() {
                "fetching" => output::fetching(app.permille),
                "failed" => format!("failed: {}", app.reason),
                state => state.to_owned(),
            };
            let state = match output::short(&app.next_revision) {
                "" => state,
                next => format!("{next} {state}"),
            };
            let live = match output::short(&app.revision) {
                "" => "-",
                live => live,
            };
            vec![app.name.clone(), live.to_owned(), state]
        };
        output::table(&["APP", "REVISION", "STATE"], row.status.apps.iter().map(app).collect())?;
    }
    if row.status.apps_omitted > 0 {
        eprintln!("{} more apps", row.status.apps_omitted);
    }
    Ok(())
}

fn as_json(cluster: &proto::Cluster) -> Value {
    let mut value = own_json(cluster);
    value["members"] = cluster.members.iter().map(member_json).collect();
    value
}

fn own_json(cluster: &proto::Cluster) -> Value {
    json!({
        "cluster": (!cluster.id.is_empty()).then_some(&cluster.id),
        "name": cluster.name,
        "node_id": cluster.node_id,
        "has_key": cluster.has_key,
        "addresses": cluster.addresses,
        "recovering": cluster.recovering,
        "recovering_patterns": cluster.recovering_patterns.iter().map(|pattern| json!({
            "app": pattern.app, "pattern": pattern.pattern, "members": pattern.members,
        })).collect::<Value>(),
        "copy": cluster.copy,
        "revoked": cluster.revoked,
        "status": cluster.status.as_ref().map(status_json),
    })
}

fn member_json(member: &proto::Member) -> Value {
    let peer = |peer: &proto::Peer| {
        json!({
            "address": peer.address, "transport": peer.transport, "software": peer.software,
            "protocol_version": peer.protocol_version, "connected_ms": peer.connected_ms, "rtt_us": peer.rtt_us,
            "bytes_in": peer.bytes_in, "bytes_out": peer.bytes_out, "skew_ms": peer.skew_ms,
        })
    };
    json!({
        "name": member.name, "node_id": member.node_id, "addresses": member.addresses,
        "peer": member.peer.as_ref().map(peer), "copy_address": member.copy_address,
        "away_ms": member.away_ms, "status": member.status.as_ref().map(status_json),
    })
}

fn status_json(status: &proto::MemberStatus) -> Value {
    let load = |load: &proto::MemberLoad| {
        json!({
            "permille": load.permille, "memory_free_bytes": load.memory_free_bytes,
            "memory_total_bytes": load.memory_total_bytes, "isolates_free": load.isolates_free,
            "isolates_total": load.isolates_total, "running": load.running, "queued": load.queued,
            "pressure_permille": load.pressure_permille, "readiness": load.readiness,
        })
    };
    let app = |app: &proto::MemberApp| {
        json!({
            "name": app.name, "revision": app.revision, "state": app.state,
            "permille": app.permille, "reason": app.reason, "next_revision": app.next_revision,
        })
    };
    json!({
        "zone": (!status.zone.is_empty()).then_some(&status.zone),
        "zone_is_measured": status.zone_is_measured,
        "labels": status.labels,
        "software": status.software,
        "apps": status.apps.iter().map(app).collect::<Vec<_>>(),
        "apps_omitted": status.apps_omitted,
        "load": status.load.as_ref().map(load),
    })
}
