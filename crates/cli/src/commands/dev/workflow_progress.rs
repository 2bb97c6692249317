//! Lines about the workflows of a node under `edgefaas dev`, from the lifecycle events that it publishes.

use std::time::{Duration, Instant};

use edgefaas_broker::Broker;
use edgefaas_client::output;
use edgefaas_node::LocalSubscription;
use serde::Deserialize;

/// Events of all workflows and tasks.
const FILTER: &str = "$faas/events/workflow/+/+/+";
/// Maximum of lines in [`PERIOD`]; the others are counted.
const MAX_LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
/// Length of the end of an instance's id that a line shows.
const SHORT_ID: usize = 6;

/// A CloudEvent in structured form.
#[derive(Deserialize)]
struct Envelope {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    #[serde(default)]
    instance: String,
    #[serde(default)]
    task: String,
    #[serde(default)]
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    title: String,
    #[serde(default)]
    detail: String,
}

/// Shows workflows and tasks that start and end, until the broker ends.
pub async fn show(broker: Broker) {
    let Ok(mut events) = LocalSubscription::open(&broker, "edgefaas-dev", &[FILTER]).await else { return };
    let (mut since, mut lines) = (Instant::now(), 0);
    while let Ok(event) = events.next().await {
        let Some(line) = line(&event.topic, &event.payload) else { continue };
        if since.elapsed() > PERIOD {
            if lines > MAX_LINES {
                eprintln!("workflows: {} more events", lines - MAX_LINES);
            }
            (since, lines) = (Instant::now(), 0);
        }
        lines += 1;
        if lines <= MAX_LINES {
            eprintln!("{line}");
        }
    }
}

/// The line about an event; `None` for events that say nothing new.
fn line(topic: &str, payload: &[u8]) -> Option<String> {
    let mut levels = topic.split('/').skip(3);
    let (workflow, subject, happened) = (levels.next()?, levels.next()?, levels.next()?);
    let Envelope { data } = serde_json::from_slice(payload).ok()?;
    let id = &data.instance[data.instance.len().saturating_sub(SHORT_ID)..];
    let what = match (subject, happened) {
        ("workflow", "started" | "completed" | "faulted" | "cancelled") => happened.to_owned(),
        ("task", "started" | "completed" | "faulted" | "retried") => {
            format!("{} {happened}", output::line(&data.task))
        }
        _ => return None,
    };
    let reason = match data.error {
        Some(Problem { title, detail }) if !detail.is_empty() => format!(": {title}: {detail}"),
        Some(Problem { title, .. }) => format!(": {title}"),
        None => String::new(),
    };
    Some(format!(
        "workflow {} {}  {what}{}",
        output::line(workflow),
        output::line(id),
        output::line(&reason)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_become_lines() {
        let event = |last: &str, data: &str| {
            line(
                &format!("$faas/events/workflow/order/{last}"),
                format!(r#"{{"specversion":"1.0","data":{data}}}"#).as_bytes(),
            )
        };
        let id = r#""instance":"01ABCDEFGH""#;
        assert_eq!(
            event("workflow/started", &format!("{{{id}}}")).unwrap(),
            "workflow order CDEFGH  started"
        );
        let faulted = format!(r#"{{{id},"task":"/do/0/pay","error":{{"title":"No","detail":"a\nb"}}}}"#);
        assert_eq!(
            event("task/faulted", &faulted).unwrap(),
            "workflow order CDEFGH  /do/0/pay faulted: No: a\\nb"
        );
        assert_eq!(event("task/created", &format!("{{{id}}}")), None);
        assert_eq!(event("workflow/started", "no json"), None);
    }
}
