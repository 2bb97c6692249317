//! Clients of the broker: lists, one client with its subscriptions, and clients that are dropped.

use std::time::Duration;

use edgefaas_api::messages as proto;
use edgefaas_broker::{Broker, ClientFigures, ClientQuery, Fate, Search, Transport, Version};
use tonic::Status;

use super::limit_of;

/// Maximum number of filters of one client in an answer.
const MAX_FILTERS: usize = 1000;
/// Maximum time until a dropped client has given its session back.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn list(broker: &Broker, request: proto::ListClientsRequest) -> proto::ListClientsResponse {
    let proto::ListClientsRequest { search, after, limit, connected } = request;
    let page = broker.clients(&ClientQuery {
        search: Search::new(&search),
        after: (!after.is_empty()).then_some(after),
        limit: limit_of(limit),
        connected_only: connected,
    });
    proto::ListClientsResponse {
        clients: page.clients.iter().map(convert).collect(),
        more: page.more,
        total: page.sessions as u64,
        connected: page.connected as u64,
    }
}

pub(super) fn get(broker: &Broker, id: &str) -> Result<proto::Client, Status> {
    let (client, filters) = broker.client(id).ok_or_else(|| unknown(id))?;
    let filters = filters.into_iter().take(MAX_FILTERS);
    let filters = filters
        .map(|(filter, qos)| proto::Subscription { filter: filter.as_str().to_owned(), qos: qos as u32 });
    Ok(proto::Client { filters: filters.collect(), ..convert(&client) })
}

pub(super) async fn drop(
    broker: &Broker,
    request: proto::DropClientRequest,
) -> Result<proto::DropClientResponse, Status> {
    let proto::DropClientRequest { id, forget } = request;
    let fate = if forget { Fate::Forgotten } else { Fate::Kept };
    let dropped = tokio::time::timeout(DROP_TIMEOUT, broker.drop_client(&id, fate)).await;
    let dropped = dropped.map_err(|_| {
        Status::deadline_exceeded(format!(
            "client `{id}` was asked to end its connection and has not done so yet; its last message may wait for room"
        ))
    })?;
    let was_connected = dropped.ok_or_else(|| unknown(&id))?;
    Ok(proto::DropClientResponse { was_connected })
}

fn unknown(id: &str) -> Status {
    Status::not_found(format!("there is no client `{id}` with a session; `edgefaas clients` lists them"))
}

fn convert(client: &ClientFigures) -> proto::Client {
    let connection = client.connection.as_ref();
    let text = |text: &str| text.to_owned();
    let address = connection.filter(|connection| connection.transport != Transport::Internal);
    proto::Client {
        id: text(&client.client_id),
        user: client.username.as_deref().unwrap_or_default().to_owned(),
        connected: connection.is_some(),
        address: address.map(|connection| connection.address.to_string()).unwrap_or_default(),
        version: connection.map(|connection| text(version(connection.version))).unwrap_or_default(),
        transport: connection.map(|connection| text(transport(connection.transport))).unwrap_or_default(),
        since_unix_ms: client.since_unix_ms,
        subscriptions: u32::try_from(client.subscriptions).unwrap_or(u32::MAX),
        waiting: client.waiting + client.in_flight,
        in_flight: client.in_flight,
        filters: Vec::new(),
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::V311 => "3.1.1",
        Version::V5 => "5",
    }
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Tls => "tls",
        Transport::WebSocket => "ws",
        Transport::SecureWebSocket => "wss",
        // A bridge, or a subscription of the control API.
        Transport::Internal => "internal",
    }
}
