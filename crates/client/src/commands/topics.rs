//! `edgefaas topics [FILTER]`

use edgefaas_api::messages as proto;
use serde_json::{Value, json};

use crate::args::{Format, Global, Topics};
use crate::connection;
use crate::fitting::{self, Column, Fit};
use crate::{output, payload};

/// Topics in one request.
const PAGE: u32 = 1000;

const COLUMNS: [Column; 5] = [
    Column { name: "TOPIC", fit: Fit::Middle(16) },
    Column { name: "PER SECOND", fit: Fit::Whole },
    Column { name: "MESSAGES", fit: Fit::LeftOut(1) },
    Column { name: "LAST", fit: Fit::LeftOut(0) },
    Column { name: "PAYLOAD", fit: Fit::End(12, 2) },
];

pub async fn run(args: &Topics, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_messages(global).await?;
    let mut topics: Vec<proto::Topic> = Vec::new();
    let last = loop {
        let left = args.limit - topics.len() as u32;
        let request = proto::ListTopicsRequest {
            filter: args.filter.clone().unwrap_or_default(),
            search: args.search.clone().unwrap_or_default(),
            after: topics.last().map(|topic| topic.name.clone()).unwrap_or_default(),
            limit: left.min(PAGE),
            branch: None,
        };
        let page = client.list_topics(request).await.map_err(|status| connection::failure(&status))?;
        let mut page = page.into_inner();
        topics.append(&mut page.topics);
        if !page.more || topics.len() as u32 >= args.limit {
            break page;
        }
    };
    let proto::ListTopicsResponse { more, total, left_out, .. } = last;
    if global.output == Format::Json {
        let topics: Vec<_> = topics.iter().map(as_json).collect();
        return output::json(
            &json!({ "topics": topics, "more": more, "total": total, "left_out": left_out }),
        );
    }
    if topics.is_empty() {
        eprintln!(
            "there are no such topics: none has a retained message, and the node has seen none since it counts, from the first \
             call of this command until 30 s after the last"
        );
        return Ok(());
    }
    fitting::print(&COLUMNS, topics.iter().map(row).collect())?;
    if more {
        eprintln!("there are more topics; --limit shows more of them, a filter or --search fewer");
    }
    if left_out > 0 {
        eprintln!("{left_out} topics found no room in the node's list");
    }
    Ok(())
}

fn row(topic: &proto::Topic) -> Vec<String> {
    let last = topic.last.as_ref();
    vec![
        topic.name.clone(),
        format!("{:.1}", topic.rate),
        topic.messages.to_string(),
        last.map_or_else(|| "-".to_owned(), |last| output::since(last.unix_ms)),
        last.map(payload::text).unwrap_or_default(),
    ]
}

fn as_json(topic: &proto::Topic) -> Value {
    json!({
        "name": topic.name,
        "rate": topic.rate,
        "messages": topic.messages,
        "last": topic.last.as_ref().map(payload::as_json),
        "retained_bytes": topic.retained_bytes,
    })
}
