//! `edgefaas subscribe FILTER`

use edgefaas_api::messages as proto;

use crate::args::{Format, Global, Subscribe};
use crate::exit::{Exit, Failure};
use crate::{connection, output, payload};

pub async fn run(args: &Subscribe, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_messages(global).await?;
    let request = proto::SubscribeRequest { filter: args.filter.clone(), retained: args.retained };
    let messages = client.subscribe(request).await.map_err(|status| connection::failure(&status))?;
    let mut messages = messages.into_inner();
    let mut count = 0;
    while let Some(message) = messages.message().await.map_err(|status| connection::failure(&status))? {
        if message.lost_before > 0 {
            eprintln!(
                "{} messages were lost: they came faster than this command reads",
                message.lost_before
            );
        }
        match global.output {
            Format::Json => output::json(&payload::as_json(&message))?,
            Format::Table => {
                let topic = console::style(output::line(&message.topic)).cyan();
                let retained = if message.retain { "  (retained)" } else { "" };
                output::write(
                    format!("{topic}  {}{retained}\n", output::line(&payload::text(&message))).as_bytes(),
                )?;
            }
        }
        count += 1;
        if args.count == Some(count) {
            return Ok(());
        }
    }
    Err(Failure::new(Exit::Unreachable, "the node has stopped"))
}
