//! `edgefaas clients`, `clients show` and `clients drop`

use edgefaas_api::messages as proto;
use serde_json::{Value, json};

use crate::args::{Clients, ClientsCommand, Format, Global};
use crate::connection::{self, MessagesClient};
use crate::fitting::{self, Column, Fit};
use crate::output;

/// Clients in one request.
const PAGE: u32 = 1000;

/// The columns of `clients`.
const COLUMNS: [Column; 8] = [
    Column { name: "CLIENT", fit: Fit::Middle(12) },
    Column { name: "USER", fit: Fit::End(8, 3) },
    Column { name: "STATE", fit: Fit::Whole },
    Column { name: "ADDRESS", fit: Fit::LeftOut(1) },
    Column { name: "MQTT", fit: Fit::LeftOut(0) },
    Column { name: "SUBSCRIPTIONS", fit: Fit::LeftOut(2) },
    Column { name: "WAITING", fit: Fit::Whole },
    Column { name: "IN FLIGHT", fit: Fit::Whole },
];

pub async fn run(args: &Clients, global: &Global) -> anyhow::Result<()> {
    let client = connection::connect_messages(global).await?;
    match &args.command {
        None => list(client, args, global).await,
        Some(ClientsCommand::Show { id }) => show(client, id, global).await,
        Some(ClientsCommand::Drop { id, forget }) => drop(client, id, *forget, global).await,
    }
}

async fn list(mut client: MessagesClient, args: &Clients, global: &Global) -> anyhow::Result<()> {
    let mut clients: Vec<proto::Client> = Vec::new();
    let (more, total, connected) = loop {
        let left = args.limit - clients.len() as u32;
        let request = proto::ListClientsRequest {
            search: args.search.clone().unwrap_or_default(),
            after: clients.last().map(|client| client.id.clone()).unwrap_or_default(),
            limit: left.min(PAGE),
            connected: args.connected,
        };
        let page = client.list_clients(request).await.map_err(|status| connection::failure(&status))?;
        let page = page.into_inner();
        clients.extend(page.clients);
        if !page.more || clients.len() as u32 >= args.limit {
            break (page.more, page.total, page.connected);
        }
    };
    if global.output == Format::Json {
        let clients: Vec<_> = clients.iter().map(as_json).collect();
        return output::json(
            &json!({ "clients": clients, "more": more, "total": total, "connected": connected }),
        );
    }
    if clients.is_empty() {
        eprintln!("there are no such clients; the broker has {total}, {connected} of them connected");
        return Ok(());
    }
    fitting::print(&COLUMNS, clients.iter().map(row).collect())?;
    if more {
        eprintln!("there are more clients; --limit shows more of them, --search fewer");
    }
    Ok(())
}

async fn show(mut client: MessagesClient, id: &str, global: &Global) -> anyhow::Result<()> {
    let request = proto::GetClientRequest { id: id.to_owned() };
    let found = client.get_client(request).await.map_err(|status| connection::failure(&status))?;
    let found = found.into_inner();
    if global.output == Format::Json {
        let mut value = as_json(&found);
        let filters = found.filters.iter();
        value["filters"] = filters
            .map(|subscription| json!({ "filter": subscription.filter, "qos": subscription.qos }))
            .collect();
        return output::json(&value);
    }
    fitting::print(&COLUMNS, vec![row(&found)])?;
    if found.filters.is_empty() {
        return Ok(());
    }
    output::text("\n")?;
    let rows = found
        .filters
        .iter()
        .map(|subscription| vec![subscription.filter.clone(), subscription.qos.to_string()]);
    output::table(&["FILTER", "QOS"], rows.collect())?;
    let left_out = u64::from(found.subscriptions).saturating_sub(found.filters.len() as u64);
    if left_out > 0 {
        eprintln!("{left_out} subscriptions are not shown");
    }
    Ok(())
}

async fn drop(mut client: MessagesClient, id: &str, forget: bool, global: &Global) -> anyhow::Result<()> {
    let request = proto::DropClientRequest { id: id.to_owned(), forget };
    let dropped = client.drop_client(request).await.map_err(|status| connection::failure(&status))?;
    let was_connected = dropped.into_inner().was_connected;
    if global.output == Format::Json {
        return output::json(&json!({ "client": id, "was_connected": was_connected, "forgotten": forget }));
    }
    let done = match (was_connected, forget) {
        (true, true) => "its connection and its session are ended",
        (true, false) => "its connection is ended",
        (false, true) => "it was not connected; its session is ended",
        (false, false) => "it was not connected",
    };
    output::text(&format!("{}: {done}\n", output::line(id)))
}

fn row(client: &proto::Client) -> Vec<String> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let state = if client.connected { "connected" } else { "away" };
    let state = match client.since_unix_ms {
        0 => state.to_owned(),
        since => format!("{state}, {}", output::since(since)),
    };
    let mqtt = match client.connected {
        true => format!("{} {}", client.version, client.transport),
        false => "-".to_owned(),
    };
    vec![
        client.id.clone(),
        or_dash(&client.user),
        state,
        or_dash(&client.address),
        mqtt,
        client.subscriptions.to_string(),
        client.waiting.to_string(),
        client.in_flight.to_string(),
    ]
}

fn as_json(client: &proto::Client) -> Value {
    json!({
        "id": client.id,
        "user": client.user,
        "connected": client.connected,
        "address": client.address,
        "version": client.version,
        "transport": client.transport,
        "since_unix_ms": client.since_unix_ms,
        "subscriptions": client.subscriptions,
        "waiting": client.waiting,
        "in_flight": client.in_flight,
    })
}
