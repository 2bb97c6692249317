//! `edgefaas status`

use std::time::Duration;

use edgefaas_api::control as proto;
use edgefaas_api::control::warning::Severity;
use edgefaas_platform::Clock;
use serde_json::json;

use crate::args::{Format, Global};
use crate::connection;
use crate::fitting;
use crate::output;
use crate::tables;

pub async fn run(global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let response =
        client.status(proto::StatusRequest {}).await.map_err(|status| connection::failure(&status))?;
    let status = response.into_inner();
    let list =
        client.list(proto::ListRequest::default()).await.map_err(|status| connection::failure(&status))?;
    let apps = list.into_inner().apps;
    let addresses = status.addresses.clone().unwrap_or_default();
    if global.output == Format::Json {
        return output::json(&json!({
            "version": status.version,
            "node_id": status.node_id,
            "uptime_ms": status.uptime_ms,
            "data_dir": status.data_dir,
            "http": addresses.http,
            "mqtt": addresses.mqtt,
            "mqtts": (!addresses.mqtts.is_empty()).then_some(addresses.mqtts),
            "tls_fingerprint": (!status.tls_fingerprint.is_empty()).then_some(status.tls_fingerprint),
            "control": addresses.control,
            "dashboard": (!addresses.dashboard.is_empty()).then_some(addresses.dashboard),
            "rss_bytes": status.rss_bytes,
            "apps": status.apps,
            "functions": status.functions,
            "apps_live": apps.iter().map(output::App::from).collect::<Vec<_>>(),
            "isolates_running": status.isolates_running,
            "isolates_max": status.isolates_max,
            "pool": status.pool.as_ref().map(pool_json),
            "memory": status.memory.as_ref().map(memory_json),
            "invocations": status.invocations,
            "failures": status.failures,
            "pending": status.pending,
            "mqtt_connections": status.mqtt_connections,
            "draining": status.draining,
            "recovering": status.recovering,
            "recovering_from": status.recovering_from,
            "disk": status.disk.as_ref().map(disk_json),
            "bridges": status.bridges.iter().map(bridge_json).collect::<Vec<_>>(),
            "temperature_millicelsius": status.temperature_millicelsius,
            "warnings": status.warnings.iter().map(warning_json).collect::<Vec<_>>(),
        }));
    }
    let warnings: Vec<_> =
        status.warnings.iter().map(|warning| ("warning", warning_text(warning))).collect();
    if !warnings.is_empty() {
        fitting::print_named(&warnings)?;
        output::text("\n")?;
    }
    let uptime = humantime::format_duration(Duration::from_secs(status.uptime_ms / 1000)).to_string();
    let state = if status.draining { "stopping" } else { "running" };
    let secure = |address: String, tls: bool| if tls { format!("{address}, over TLS") } else { address };
    let isolates = isolates_text(&status);
    let mut lines = vec![
        ("state", format!("{state} for {uptime}")),
        ("version", status.version),
        ("node", status.node_id),
        ("data", status.data_dir),
        ("http", secure(addresses.http, addresses.http_tls)),
        ("mqtt", format!("{}, {} connections", addresses.mqtt, status.mqtt_connections)),
        ("control", secure(addresses.control, addresses.control_tls)),
        ("dashboard", addresses.dashboard),
        ("memory", memory_text(status.rss_bytes, status.memory.as_ref())),
        ("budgets", status.memory.as_ref().map(budgets_text).unwrap_or_default()),
        ("apps", format!("{} with {} functions", status.apps, status.functions)),
        ("isolates", isolates),
        ("machine", status.pool.as_ref().map(machine_text).unwrap_or_default()),
        ("invoked", format!("{} times, {} failed", status.invocations, status.failures)),
        ("pending", format!("{} durable invocations", status.pending)),
    ];
    // A node without it, or of an earlier version.
    lines.retain(|(name, text)| *name != "dashboard" || !text.is_empty());
    if status.recovering > 0 {
        let from: Vec<_> = status.recovering_from.iter().map(|member| output::line(member)).collect();
        lines.push((
            "recovers",
            format!("objects of {} patterns from {}", status.recovering, from.join(", ")),
        ));
    }
    lines.extend(status.disk.as_ref().map(|disk| ("disk", disk_text(disk))));
    let temperature = status.temperature_millicelsius;
    lines.extend(temperature.map(|value| ("board", format!("{:.1} °C", f64::from(value) / 1000.0))));
    if !addresses.mqtts.is_empty() {
        lines.push(("mqtts", addresses.mqtts));
    }
    if !status.tls_fingerprint.is_empty() {
        lines.push(("sha-256", status.tls_fingerprint));
    }
    lines.extend(status.bridges.into_iter().map(|bridge| ("bridge", bridge_text(bridge))));
    fitting::print_named(&lines)?;
    let rows: Vec<_> = apps.iter().flat_map(tables::use_rows).collect();
    if rows.is_empty() {
        return Ok(());
    }
    output::text("\n")?;
    fitting::print(&tables::USES, rows)
}

/// A warning with its remedy, and since when there is it.
fn warning_text(warning: &proto::Warning) -> String {
    let proto::Warning { text, remedy, since_unix_ms, .. } = warning;
    let failing = if warning.severity() == Severity::Failing { "failing: " } else { "" };
    let since = match *since_unix_ms {
        0 => String::new(),
        since => format!(" (began {})", output::since(since)),
    };
    format!("{failing}{text}{since}; remedy: {remedy}")
}

fn warning_json(warning: &proto::Warning) -> serde_json::Value {
    let severity = match warning.severity() {
        Severity::Failing => "failing",
        Severity::Caution | Severity::Unspecified => "caution",
    };
    json!({
        "code": warning.code,
        "severity": severity,
        "subject": warning.subject,
        "app": warning.app,
        "text": warning.text,
        "remedy": warning.remedy,
        "since_unix_ms": warning.since_unix_ms,
    })
}

fn isolates_text(status: &proto::StatusResponse) -> String {
    let count = format!("{} of {}", status.isolates_running, status.isolates_max);
    match &status.pool {
        Some(pool) => format!(
            "{count}, each with up to {} and {} of address space",
            output::size(pool.max_memory_bytes),
            output::size(pool.reservation_bytes)
        ),
        None => count,
    }
}

fn machine_text(pool: &proto::Pool) -> String {
    let has = |yes: bool, name: &str| format!("{} {name}", if yes { "with" } else { "without" });
    format!(
        "{} cores, {} of memory, {}-bit addresses, pages of {}, {}, {}",
        pool.cores,
        output::size(pool.memory_bytes),
        pool.address_bits,
        output::size(pool.page_bytes.into()),
        has(pool.pagemap_scan, "pagemap_scan"),
        has(pool.copy_on_write, "copy-on-write"),
    )
}

fn memory_text(rss_bytes: u64, memory: Option<&proto::Memory>) -> String {
    let resident = output::size(rss_bytes);
    let Some(memory) = memory else { return resident };
    let (limit, source) = (output::size(memory.limit_bytes), &memory.limit_source);
    let mut text = format!(
        "{resident} resident; limit {limit} ({source}), {} of it left; functions have reserved {}",
        output::size(memory.available_bytes),
        output::size(memory.function_bytes)
    );
    if memory.withheld_bytes > 0 {
        text += &format!(", {} are withheld while memory is short", output::size(memory.withheld_bytes));
    }
    if memory.waiting > 0 || memory.refused > 0 {
        text +=
            &format!(", {} invocations wait for memory, {} were refused", memory.waiting, memory.refused);
    }
    text
}

fn budgets_text(memory: &proto::Memory) -> String {
    let share = |share: &proto::MemoryShare| format!("{} {}", share.name, output::size(share.bytes));
    memory.shares.iter().map(share).collect::<Vec<_>>().join(", ")
}

fn memory_json(memory: &proto::Memory) -> serde_json::Value {
    let shares: serde_json::Map<_, _> =
        memory.shares.iter().map(|share| (share.name.replace(' ', "_"), share.bytes.into())).collect();
    json!({
        "limit_bytes": memory.limit_bytes,
        "limit_source": memory.limit_source,
        "available_bytes": memory.available_bytes,
        "budgets_bytes": shares,
        "function_bytes": memory.function_bytes,
        "withheld_bytes": memory.withheld_bytes,
        "waiting": memory.waiting,
        "refused": memory.refused,
    })
}

fn pool_json(pool: &proto::Pool) -> serde_json::Value {
    json!({
        "max_memory_bytes": pool.max_memory_bytes,
        "reservation_bytes": pool.reservation_bytes,
        "cores": pool.cores,
        "memory_bytes": pool.memory_bytes,
        "address_bits": pool.address_bits,
        "page_bytes": pool.page_bytes,
        "pagemap_scan": pool.pagemap_scan,
        "copy_on_write": pool.copy_on_write,
    })
}

fn disk_json(disk: &proto::Disk) -> serde_json::Value {
    json!({
        "full": disk.full,
        "free_bytes": disk.free_bytes,
        "needed_bytes": disk.needed_bytes,
        "refused": disk.refused,
    })
}

fn disk_text(disk: &proto::Disk) -> String {
    let (free, needed) = (output::size(disk.free_bytes), output::size(disk.needed_bytes));
    match disk.full {
        true => format!(
            "full: {free} free, {needed} needed; writes that need space are refused, deletions and deliveries go on"
        ),
        false => format!("{free} free, of which {needed} are reserved for the store"),
    }
}

fn bridge_json(bridge: &proto::Bridge) -> serde_json::Value {
    json!({
        "name": bridge.name,
        "url": bridge.url,
        "connected": bridge.connected_since_ms.is_some(),
        "connected_since_ms": bridge.connected_since_ms,
        "queued": bridge.queued,
        "messages_in": bridge.messages_in,
        "messages_out": bridge.messages_out,
        "dropped": bridge.dropped,
        "last_error": (!bridge.last_error.is_empty()).then_some(&bridge.last_error),
    })
}

fn bridge_text(bridge: proto::Bridge) -> String {
    let since = bridge.connected_since_ms.map(|since| {
        let time = Clock::system().now_unix_ms().saturating_sub(since) / 1000;
        format!("connected for {}", humantime::format_duration(Duration::from_secs(time)))
    });
    let state = match since {
        Some(since) => since,
        None if bridge.last_error.is_empty() => "not connected".into(),
        None => format!("not connected: {}", bridge.last_error),
    };
    let proto::Bridge { name, url, queued, messages_in, messages_out, dropped, .. } = bridge;
    format!(
        "{name} to {url}, {state}; {queued} queued, {messages_in} in, {messages_out} out, {dropped} dropped"
    )
}
