//! `edgefaas publish TOPIC`

use std::io::{IsTerminal, Read};

use anyhow::Context;
use edgefaas_api::messages as proto;
use serde_json::json;

use crate::args::{Format, Global, Publish};
use crate::{connection, output};

pub async fn run(args: &Publish, global: &Global) -> anyhow::Result<()> {
    let payload = payload_of(args)?;
    let mut client = connection::connect_messages(global).await?;
    let request = proto::PublishRequest {
        topic: args.topic.clone(),
        payload,
        qos: args.qos.into(),
        retain: args.retain,
        content_type: args.content_type.clone().unwrap_or_default(),
    };
    let published = client.publish(request).await.map_err(|status| connection::failure(&status))?;
    let subscribers = published.into_inner().subscribers;
    match global.output {
        Format::Json => output::json(&json!({ "topic": args.topic, "subscribers": subscribers })),
        Format::Table => {
            let subscriptions = if subscribers == 1 { "subscription" } else { "subscriptions" };
            output::text(&format!(
                "{} went to {subscribers} {subscriptions}, beside the functions and workflows that it starts\n",
                output::line(&args.topic)
            ))
        }
    }
}

fn payload_of(args: &Publish) -> anyhow::Result<Vec<u8>> {
    match (&args.data, &args.file) {
        (Some(data), _) => Ok(data.clone().into_bytes()),
        (None, Some(file)) => {
            std::fs::read(file).with_context(|| format!("{} cannot be read", file.display()))
        }
        (None, None) => {
            if std::io::stdin().is_terminal() {
                eprintln!(
                    "the payload is read from stdin up to its end (Ctrl+D); --data and --file give another one"
                );
            }
            let mut payload = Vec::new();
            std::io::stdin().read_to_end(&mut payload).context("stdin cannot be read")?;
            Ok(payload)
        }
    }
}
