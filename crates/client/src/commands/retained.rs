//! `edgefaas retained [FILTER]` and `retained rm`

use edgefaas_api::messages as proto;
use serde_json::json;

use crate::args::{Format, Global, Retained, RetainedCommand};
use crate::connection::{self, MessagesClient};
use crate::fitting::{self, Column, Fit};
use crate::{output, payload};

/// Messages in one request.
const PAGE: u32 = 1000;

const COLUMNS: [Column; 5] = [
    Column { name: "TOPIC", fit: Fit::Middle(16) },
    Column { name: "SIZE", fit: Fit::Whole },
    Column { name: "QOS", fit: Fit::LeftOut(0) },
    Column { name: "RETAINED", fit: Fit::LeftOut(1) },
    Column { name: "PAYLOAD", fit: Fit::End(12, 2) },
];

pub async fn run(args: &Retained, global: &Global) -> anyhow::Result<()> {
    let client = connection::connect_messages(global).await?;
    match &args.command {
        None => list(client, args, global).await,
        Some(RetainedCommand::Rm { topic }) => remove(client, topic, global).await,
    }
}

async fn list(mut client: MessagesClient, args: &Retained, global: &Global) -> anyhow::Result<()> {
    let mut messages: Vec<proto::Message> = Vec::new();
    let (more, total) = loop {
        let left = args.limit - messages.len() as u32;
        let request = proto::ListRetainedRequest {
            filter: args.filter.clone().unwrap_or_default(),
            search: args.search.clone().unwrap_or_default(),
            after: messages.last().map(|message| message.topic.clone()).unwrap_or_default(),
            limit: left.min(PAGE),
        };
        let page = client.list_retained(request).await.map_err(|status| connection::failure(&status))?;
        let page = page.into_inner();
        messages.extend(page.messages);
        if !page.more || messages.len() as u32 >= args.limit {
            break (page.more, page.total);
        }
    };
    if global.output == Format::Json {
        let messages: Vec<_> = messages.iter().map(payload::as_json).collect();
        return output::json(&json!({ "retained": messages, "more": more, "total": total }));
    }
    if messages.is_empty() {
        eprintln!("there are no such retained messages; the broker has {total} in all");
        return Ok(());
    }
    let row = |message: &proto::Message| {
        vec![
            message.topic.clone(),
            output::size(message.payload_bytes),
            message.qos.to_string(),
            output::since(message.unix_ms),
            payload::text(message),
        ]
    };
    fitting::print(&COLUMNS, messages.iter().map(row).collect())?;
    if more {
        eprintln!("there are more; --limit shows more of them, a filter or --search fewer");
    }
    Ok(())
}

async fn remove(mut client: MessagesClient, topic: &str, global: &Global) -> anyhow::Result<()> {
    let request =
        proto::PublishRequest { topic: topic.to_owned(), qos: 1, retain: true, ..Default::default() };
    client.publish(request).await.map_err(|status| connection::failure(&status))?;
    if global.output == Format::Json {
        return output::json(&json!({ "topic": topic, "removed": true }));
    }
    output::text(&format!("{} has no retained message any more\n", output::line(topic)))
}
