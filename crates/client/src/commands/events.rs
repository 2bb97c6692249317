//! `edgefaas events`

use chrono::{DateTime, Local};
use edgefaas_api::history as proto;
use serde_json::{Value, json};

use crate::args::{Events, Format, Global};
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::output;

pub async fn run(args: &Events, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_history(global).await?;
    let request = proto::EventsRequest { follow: args.follow, tail: args.tail.unwrap_or(0) };
    let response = client.events(request).await.map_err(|status| connection::failure(&status))?;
    let mut events = response.into_inner();
    while let Some(event) = events.message().await.map_err(|status| connection::failure(&status))? {
        match global.output {
            Format::Json => output::json(&as_json(&event))?,
            Format::Table => output::write(line(&event).as_bytes())?,
        }
    }
    match args.follow {
        true => Err(Failure::new(Exit::Unreachable, "the node has stopped")),
        false => Ok(()),
    }
}

/// Events that have no good news.
fn is_bad(kind: &str) -> bool {
    matches!(kind, "warning" | "dead" | "member-away" | "bridge-away")
}

fn line(event: &proto::Event) -> String {
    let time = DateTime::from_timestamp_millis(event.unix_ms as i64).unwrap_or_default();
    let time = console::style(time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S")).dim();
    let kind = console::style(format!("{:<12}", output::line(&event.kind)));
    let kind = if is_bad(&event.kind) { kind.yellow() } else { kind.green() };
    let lost = match event.lost_before {
        0 => String::new(),
        lost => format!("… {lost} events lost\n"),
    };
    format!("{lost}{time} {kind} {}\n", output::indented(&event.text))
}

fn as_json(event: &proto::Event) -> Value {
    let mut value = json!({
        "unix_ms": event.unix_ms,
        "number": event.number,
        "kind": event.kind,
        "subject": event.subject,
        "text": event.text,
    });
    if event.lost_before > 0 {
        value["lost_before"] = event.lost_before.into();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_and_cannot_steer_the_terminal() {
        let event = proto::Event {
            number: 7,
            kind: "bridge-away".into(),
            subject: "cloud".into(),
            text: "bridge `cloud`: \x1b[2J closed\n2026-01-01 00:00:00 deploy forged".into(),
            lost_before: 2,
            ..Default::default()
        };
        let text = console::strip_ansi_codes(&line(&event)).into_owned();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("… 2 events lost"));
        assert!(
            lines.next().unwrap().contains(r" bridge-away  bridge `cloud`: \u{1b}[2J closed"),
            "{text}"
        );
        assert_eq!(lines.next(), Some("    2026-01-01 00:00:00 deploy forged"));
        assert_eq!(as_json(&event)["lost_before"], 2);
    }
}
