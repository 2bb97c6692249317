//! `edgefaas queues [FILTER]`

use edgefaas_api::control as proto;
use serde_json::json;

use crate::args::{Format, Global, Queues};
use crate::connection;
use crate::output;

pub async fn run(args: &Queues, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::ListQueuesRequest { filter: args.filter.clone(), limit: args.limit };
    let response = client.list_queues(request).await.map_err(|status| connection::failure(&status))?;
    let proto::ListQueuesResponse { queues, total } = response.into_inner();
    if global.output == Format::Json {
        let queues: Vec<_> = queues
            .iter()
            .map(|queue| {
                json!({
                    "filter": queue.filter,
                    "subscribers": queue.subscribers,
                    "in": queue.messages_in,
                    "out": queue.messages_out,
                    "waiting": queue.waiting,
                    "dropped": queue.dropped,
                    "rate": queue.rate,
                })
            })
            .collect();
        return output::json(&json!({ "queues": queues, "total": total }));
    }
    let rows = queues.iter().map(|queue| {
        vec![
            queue.filter.clone(),
            queue.subscribers.to_string(),
            queue.messages_in.to_string(),
            queue.messages_out.to_string(),
            queue.waiting.to_string(),
            queue.dropped.to_string(),
            format!("{:.1}", queue.rate),
        ]
    });
    output::table(
        &["FILTER", "SUBSCRIBERS", "IN", "OUT", "WAITING", "DROPPED", "PER SECOND"],
        rows.collect(),
    )
}
