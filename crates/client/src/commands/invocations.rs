//! `edgefaas invocations` and `edgefaas dead`

use edgefaas_api::invocations as proto;
use edgefaas_api::invocations::State;
use serde_json::{Value, json};

use crate::args::{Chosen, Format, Global, InvocationChange, Invocations};
use crate::connection;
use crate::exit::{self, Exit, Failure};
use crate::fitting::{self, Column, Fit};
use crate::output;

const PENDING_COLUMNS: [Column; 7] = [
    Column { name: "INVOCATION", fit: Fit::Whole },
    Column { name: "FUNCTION", fit: Fit::Middle(10) },
    Column { name: "STATE", fit: Fit::Whole },
    Column { name: "ATTEMPT", fit: Fit::Whole },
    Column { name: "ACCEPTED", fit: Fit::End(8, 2) },
    Column { name: "BY", fit: Fit::End(8, 1) },
    Column { name: "LAST ERROR", fit: Fit::End(8, 0) },
];
const DEAD_COLUMNS: [Column; 6] = [
    Column { name: "INVOCATION", fit: Fit::Whole },
    Column { name: "FUNCTION", fit: Fit::Middle(10) },
    Column { name: "ENDED", fit: Fit::End(8, 2) },
    Column { name: "ATTEMPTS", fit: Fit::LeftOut(0) },
    Column { name: "BY", fit: Fit::End(8, 1) },
    Column { name: "ERROR", fit: Fit::End(8, 3) },
];
/// Invocations of one request for a list.
const PART: u32 = 1_000;

/// Which invocations a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Those that have not ended.
    Pending,
    /// Those that failed for good.
    Dead,
}

pub async fn run(args: &Invocations, kind: Kind, global: &Global) -> anyhow::Result<()> {
    match &args.change {
        None => list(args, kind, global).await,
        Some(InvocationChange::Show { id }) => show(id, global).await,
        Some(InvocationChange::Retry(chosen)) => retry(chosen, kind, global).await,
        Some(InvocationChange::Discard(chosen)) => discard(chosen, kind, global).await,
    }
}

async fn list(args: &Invocations, kind: Kind, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_invocations(global).await?;
    let mut found = Vec::new();
    let mut after = String::new();
    let (pending, dead) = loop {
        let request = proto::ListRequest {
            function: args.function.clone().unwrap_or_default(),
            dead: kind == Kind::Dead,
            after,
            limit: args.limit.saturating_sub(found.len() as u32).min(PART),
        };
        let response = client.list(request).await.map_err(|status| connection::failure(&status))?;
        let part = response.into_inner();
        found.extend(part.invocations);
        if part.next.is_empty() || found.len() >= args.limit as usize {
            break (part.pending, part.dead);
        }
        after = part.next;
    };
    if let (true, Some(function)) = (found.is_empty(), &args.function) {
        check_function(function, kind, global).await?;
    }
    if global.output == Format::Json {
        let found: Vec<_> = found.iter().map(as_json).collect();
        return output::json(&json!({ "invocations": found, "pending": pending, "dead": dead }));
    }
    if found.is_empty() {
        eprintln!(
            "{}",
            if kind == Kind::Dead {
                "no dead invocation is kept"
            } else {
                "no durable invocation is pending"
            }
        );
        return Ok(());
    }
    let all = if kind == Kind::Dead { dead } else { pending };
    match kind {
        Kind::Pending => fitting::print(&PENDING_COLUMNS, found.iter().map(pending_row).collect())?,
        Kind::Dead => fitting::print(&DEAD_COLUMNS, found.iter().map(dead_row).collect())?,
    }
    if args.function.is_none() && all > found.len() as u64 {
        eprintln!("{all} in all; --limit shows more");
    }
    Ok(())
}

fn pending_row(found: &proto::Invocation) -> Vec<String> {
    let attempt = format!("{} of {}", found.attempt, found.attempts);
    let accepted = output::since(found.accepted_unix_ms);
    vec![
        found.id.clone(),
        found.function.clone(),
        word(found).to_owned(),
        attempt,
        accepted,
        by(found),
        error(found),
    ]
}

fn dead_row(found: &proto::Invocation) -> Vec<String> {
    let (ended, attempts) = (output::since(found.ended_unix_ms), found.attempt.to_string());
    vec![found.id.clone(), found.function.clone(), ended, attempts, by(found), error(found)]
}

fn word(found: &proto::Invocation) -> &'static str {
    match found.state() {
        State::Waiting => "waiting",
        State::Running => "running",
        State::Retrying => "retrying",
        State::Dead => "dead",
        State::Unspecified => "",
    }
}

fn by(found: &proto::Invocation) -> String {
    output::line(format!("{} {}", found.trigger, found.source).trim_end())
}

fn error(found: &proto::Invocation) -> String {
    let both = [&*found.title, &*found.detail].into_iter().filter(|text| !text.is_empty());
    output::line(&both.collect::<Vec<_>>().join(": "))
}

async fn show(id: &str, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_invocations(global).await?;
    let request = proto::GetRequest { id: id.to_owned() };
    let response = client.get(request).await.map_err(|status| connection::failure(&status))?;
    let found = response.into_inner();
    if global.output == Format::Json {
        let mut shown = as_json(&found);
        shown["payload"] = payload_json(&found.payload);
        return output::json(&shown);
    }
    let mut lines = format!("{} of {}\n", found.id, found.function);
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            lines.push_str(&format!("{name:<9}{}\n", output::indented(&output::message(value))));
        }
    };
    line("state", word(&found));
    line("attempt", &format!("{} of {}", found.attempt, found.attempts));
    line("accepted", &output::since(found.accepted_unix_ms));
    let time = |unix_ms: u64| if unix_ms == 0 { String::new() } else { output::since(unix_ms) };
    line("ended", &time(found.ended_unix_ms));
    line("by", &by(&found));
    line("error", &error(&found));
    line("type", &found.content_type);
    let payload = String::from_utf8_lossy(&found.payload);
    line("payload", &payload);
    if found.payload_bytes > found.payload.len() as u64 {
        line("", &format!("… {} in all", output::size(found.payload_bytes)));
    }
    output::text(&lines)
}

type Client = connection::InvocationsClient;

async fn retry(chosen: &Chosen, kind: Kind, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_invocations(global).await?;
    let can_be = |state| matches!(state, State::Dead | State::Retrying);
    let ids = ids_of(chosen, kind, &mut client, can_be).await?;
    change(&ids, chosen, kind, global, async |id| {
        let request = proto::RetryRequest { id: id.to_owned() };
        let now = client.retry(request).await?.into_inner().id;
        let text = match now == id {
            true => format!("{id} makes its next attempt"),
            false => format!("{id} starts again as {now}"),
        };
        Ok((json!({ "id": id, "now": now }), text))
    })
    .await
}

async fn discard(chosen: &Chosen, kind: Kind, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_invocations(global).await?;
    let can_be = |state| state != State::Running;
    let ids = ids_of(chosen, kind, &mut client, can_be).await?;
    change(&ids, chosen, kind, global, async |id| {
        client.discard(proto::DiscardRequest { id: id.to_owned() }).await?;
        Ok((json!({ "id": id }), format!("{id} is discarded")))
    })
    .await
}

/// The ids that were chosen; of all those in a state for which the change is meant, the oldest first.
async fn ids_of(
    chosen: &Chosen,
    kind: Kind,
    client: &mut Client,
    can_be: impl Fn(State) -> bool,
) -> anyhow::Result<Vec<String>> {
    if !chosen.all {
        return Ok(chosen.ids.clone());
    }
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let function = chosen.function.clone().unwrap_or_default();
        let request = proto::ListRequest { function, dead: kind == Kind::Dead, after, limit: PART };
        let response = client.list(request).await.map_err(|status| connection::failure(&status))?;
        let part = response.into_inner();
        ids.extend(
            part.invocations.into_iter().filter(|found| can_be(found.state())).map(|found| found.id),
        );
        if part.next.is_empty() {
            break;
        }
        after = part.next;
    }
    if kind == Kind::Dead {
        // The list has the last one first.
        ids.reverse();
    }
    Ok(ids)
}

/// Changes one after the other. A failure does not stop those behind it; of all ones those that have ended meanwhile are no failures,
/// and a node that has no room for more ends it.
async fn change(
    ids: &[String],
    chosen: &Chosen,
    kind: Kind,
    global: &Global,
    mut one: impl AsyncFnMut(&str) -> Result<(Value, String), tonic::Status>,
) -> anyhow::Result<()> {
    let (mut failures, mut changed) = (Vec::new(), 0);
    for id in ids {
        match one(id).await {
            Ok((value, text)) => {
                changed += 1;
                match global.output {
                    Format::Json => output::json(&value)?,
                    Format::Table => output::text(&format!("{text}\n"))?,
                }
            }
            Err(status) if chosen.all && status.code() == tonic::Code::NotFound => {}
            Err(status) if chosen.all && is_lasting(&status) => {
                let (failure, left) = (connection::failure(&status), ids.len() - changed);
                let text = format!("{failure}; {changed} of {} are done, {left} are left", ids.len());
                return Err(Failure::new(Exit::Failed, text));
            }
            Err(status) => failures.push(connection::failure(&status)),
        }
    }
    if ids.is_empty() {
        if let Some(function) = &chosen.function {
            check_function(function, kind, global).await?;
        }
        let of = chosen.function.as_ref().map(|function| format!(" of `{function}`")).unwrap_or_default();
        eprintln!("there is none{of}");
    }
    let count = failures.len();
    // All for the same reason, or for several.
    let exit =
        failures.iter().map(exit::code).reduce(|one, next| if one == next { one } else { Exit::Failed });
    match failures.into_iter().next() {
        None => Ok(()),
        Some(first) if count == 1 => Err(first),
        Some(first) => Err(Failure::new(
            exit.unwrap_or(Exit::Failed),
            format!("{count} of {} failed; the first one: {first}", ids.len()),
        )),
    }
}

/// Fails if no function has the name of which nothing was found, and there is none of the other kind: it is probably misspelt.
async fn check_function(name: &str, kind: Kind, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = edgefaas_api::control::ListRequest::default();
    let response = client.list(request).await.map_err(|status| connection::failure(&status))?;
    let apps = response.into_inner().apps;
    if apps.iter().flat_map(|app| &app.functions).any(|function| function.name == name) {
        return Ok(());
    }
    let mut client = connection::connect_invocations(global).await?;
    let dead = kind != Kind::Dead;
    let request = proto::ListRequest { function: name.to_owned(), dead, after: String::new(), limit: 1 };
    let response = client.list(request).await.map_err(|status| connection::failure(&status))?;
    if !response.into_inner().invocations.is_empty() {
        return Ok(());
    }
    let text = format!("there is no function `{name}`, and no invocation of it; `edgefaas list` shows all");
    Err(Failure::new(Exit::NotFound, text))
}

/// True for an error that the next one would have too.
fn is_lasting(status: &tonic::Status) -> bool {
    use tonic::Code::{PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable};
    matches!(status.code(), ResourceExhausted | Unavailable | Unauthenticated | PermissionDenied)
}

fn payload_json(payload: &[u8]) -> Value {
    match std::str::from_utf8(payload) {
        Ok(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        Err(_) => Value::from(payload),
    }
}

fn as_json(found: &proto::Invocation) -> Value {
    let time = |unix_ms: u64| (unix_ms > 0).then_some(unix_ms);
    json!({
        "id": found.id,
        "function": found.function,
        "state": word(found),
        "attempt": found.attempt,
        "attempts": found.attempts,
        "accepted_unix_ms": found.accepted_unix_ms,
        "next_unix_ms": time(found.next_unix_ms),
        "ended_unix_ms": time(found.ended_unix_ms),
        "status": (found.status > 0).then_some(found.status),
        "title": found.title,
        "detail": found.detail,
        "trigger": found.trigger,
        "source": found.source,
        "content_type": found.content_type,
        "payload_bytes": found.payload_bytes,
    })
}
