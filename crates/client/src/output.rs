//! Output of commands: tables for people, JSON for programs. The JSON shapes are documented in
//! `docs/cli.md` and only ever gain fields.
//!
//! Functions choose their own texts. Tables show these texts so that they can neither steer the terminal
//! nor look like a line of the CLI: control characters are escaped and further lines indented.

use std::io::{self, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytesize::ByteSize;
use chrono::{DateTime, Local};
use comfy_table::{Table, presets};
use edgefaas_api::control as proto;
use serde::Serialize;
use serde_json::{Value, json};

use crate::app_nodes::{self, NodeApp};
use crate::args::Format;

/// Prints one JSON document on one line.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    write(&text)
}

/// Writes to stdout. If the reader has closed the pipe, such as `head`, the process exits with 0.
pub fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        result => Ok(result?),
    }
}

/// Prints lines for people.
pub fn text(lines: &str) -> anyhow::Result<()> {
    write(laid_out(lines).as_bytes())
}

/// Foreign text in lines of the CLI: it cannot steer the terminal.
pub fn laid_out(text: &str) -> String {
    escape(text, LAYOUT)
}

/// Foreign text inside a line.
pub fn line(text: &str) -> String {
    escape(text, &[])
}

/// Foreign text of one or more lines. All but the first are indented, so that they cannot look like lines of
/// the CLI.
pub fn indented(text: &str) -> String {
    escape(text.trim_end_matches('\n'), LAYOUT).replace('\n', "\n    ")
}

/// A node's error message.
pub fn message(text: &str) -> String {
    // Errors of a manifest have the layout of a compiler's.
    if text.starts_with("error: ") { escape(text, LAYOUT) } else { indented(text) }
}

/// Control characters that only lay text out.
const LAYOUT: &[char] = &['\n', '\t'];

fn escape(text: &str, kept: &[char]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        if char.is_control() && !kept.contains(&char) {
            escaped.extend(char.escape_default());
        } else {
            escaped.push(char);
        }
    }
    escaped
}

/// The node's own diagnostics on stderr, with each event's further lines indented.
pub struct Diagnostics;

impl Write for Diagnostics {
    /// Takes one whole event, as `tracing_subscriber` writes it: it has escaped texts of functions except
    /// some control characters, and the remaining escape sequences are its own colours.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(diagnostic(event).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn diagnostic(event: &[u8]) -> String {
    let event = String::from_utf8_lossy(event);
    let text = escape(event.trim_end_matches('\n'), &['\n', '\t', '\x1b']);
    text.replace('\n', "\n    ") + "\n"
}

/// Prints rows under a header, each on one line. Control characters of the cells are escaped.
pub fn table(header: &[&str], rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    write(table_text(header, rows).as_bytes())
}

/// Several texts in one cell of a table, which has one line.
pub fn cell(texts: &[String]) -> String {
    texts.join("; ")
}

/// A table as text: rows under a header, each on one line.
pub fn table_text(header: &[&str], mut rows: Vec<Vec<String>>) -> String {
    for cell in rows.iter_mut().flatten() {
        *cell = line(cell);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec()).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    format!("{}\n", table.trim_fmt())
}

/// The first characters of a revision, enough to name it.
pub fn short(revision: &str) -> &str {
    revision.get(..12).unwrap_or(revision)
}

/// The state of a revision that is being fetched: a node with all of it compiles it.
pub fn fetching(permille: u32) -> String {
    match permille {
        1000.. => "compiling".to_owned(),
        permille => format!("fetching, {} %", permille / 10),
    }
}

/// A size for people.
pub fn size(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}

/// An app as JSON.
#[derive(Serialize)]
pub struct App<'a> {
    name: &'a str,
    revision: &'a str,
    deployed_unix_ms: i64,
    functions: Vec<Function<'a>>,
    previous_revisions: &'a [String],
    workflows: Vec<Workflow<'a>>,
    this_node: bool,
    lost: Vec<Lost<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<NodeApp<'a>>,
}

/// A deploy that lost against a concurrent one; the revision is empty for a removal.
#[derive(Serialize)]
struct Lost<'a> {
    revision: &'a str,
    node: &'a str,
    deployed_unix_ms: i64,
}

#[derive(Serialize)]
struct Workflow<'a> {
    name: &'a str,
    version: &'a str,
    durable: bool,
    triggers: &'a [String],
    started: u64,
    completed: u64,
    faulted: u64,
    cancelled: u64,
    rejected: u64,
    live: u64,
    retryable: u64,
    mean_us: u64,
}

impl<'a> From<&'a proto::Workflow> for Workflow<'a> {
    fn from(workflow: &'a proto::Workflow) -> Self {
        Self {
            name: &workflow.name,
            version: &workflow.version,
            durable: workflow.durable,
            triggers: &workflow.triggers,
            started: workflow.started,
            completed: workflow.completed,
            faulted: workflow.faulted,
            cancelled: workflow.cancelled,
            rejected: workflow.rejected,
            live: workflow.live,
            retryable: workflow.retryable,
            mean_us: workflow.mean_us,
        }
    }
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    kind: &'a str,
    source_bytes: u64,
    triggers: &'a [String],
    error: Option<&'a str>,
    invocations: u64,
    failures: u64,
    rejected: u64,
    running: u32,
    queued: u32,
    pending: u64,
    prepare_us: u64,
    cold_starts: u64,
    warm_starts: u64,
    cpu_us: u64,
    memory_peak_bytes: u64,
    duration_p50_us: u64,
    duration_p90_us: u64,
    duration_p99_us: u64,
}

impl<'a> From<&'a proto::App> for App<'a> {
    fn from(app: &'a proto::App) -> Self {
        let function = |function: &'a proto::Function| {
            let stats = function.stats.unwrap_or_default();
            Function {
                name: &function.name,
                kind: &function.kind,
                source_bytes: function.source_bytes,
                triggers: &function.triggers,
                error: Some(function.error.as_str()).filter(|error| !error.is_empty()),
                invocations: stats.invocations,
                failures: stats.failures,
                rejected: stats.rejected,
                running: stats.running,
                queued: stats.queued,
                pending: stats.pending,
                prepare_us: function.prepare_us,
                cold_starts: stats.cold_starts,
                warm_starts: stats.warm_starts,
                cpu_us: stats.cpu_us,
                memory_peak_bytes: stats.memory_peak_bytes,
                duration_p50_us: stats.duration_p50_us,
                duration_p90_us: stats.duration_p90_us,
                duration_p99_us: stats.duration_p99_us,
            }
        };
        let lost = |lost: &'a proto::LostDeploy| Lost {
            revision: &lost.revision,
            node: &lost.node,
            deployed_unix_ms: lost.deployed_unix_ms,
        };
        Self {
            name: &app.name,
            revision: &app.revision,
            deployed_unix_ms: app.deployed_unix_ms,
            functions: app.functions.iter().map(function).collect(),
            workflows: app.workflows.iter().map(Workflow::from).collect(),
            previous_revisions: &app.previous_revisions,
            this_node: app.this_node,
            lost: app.lost.iter().map(lost).collect(),
            nodes: app_nodes::json(&app.nodes),
        }
    }
}

/// The short names of the revisions that a rollback can go back to, the last one first.
pub fn earlier_revisions(app: &proto::App) -> String {
    app.previous_revisions.iter().map(|revision| short(revision)).collect::<Vec<_>>().join(", ")
}

/// A time with a suitable unit.
pub fn micros(us: u64) -> String {
    match us {
        0 => "-".to_owned(),
        1..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.1} s", us as f64 / 1e6),
    }
}

/// An invocation as JSON.
pub fn invocation(response: &proto::InvokeResponse) -> Value {
    use proto::invoke_response::Outcome;
    let timing = response.timing.unwrap_or_default();
    let mut value = json!({
        "invocation_id": response.invocation_id,
        "timing": {
            "queue_us": timing.queue_us, "start_us": timing.start_us, "exec_us": timing.exec_us,
        },
    });
    if !response.node.is_empty() {
        value["node"] = response.node.as_str().into();
    }
    match &response.outcome {
        Some(Outcome::Reply(reply)) => value["reply"] = reply_json(reply),
        Some(Outcome::Failure(proto::Failure { status, title, detail })) => {
            value["failure"] = json!({ "status": status, "title": title, "detail": detail });
        }
        None => {}
    }
    value
}

/// The body under `json`, `text` or `base64`.
fn reply_json(reply: &proto::Reply) -> Value {
    let mut value = json!({ "kind": reply.kind });
    if reply.kind == "http" {
        let header = |header: &proto::Header| json!([header.name, header.value]);
        value["status"] = reply.status.into();
        value["headers"] = reply.headers.iter().map(header).collect();
    }
    let parsed =
        if reply.kind == "json" { serde_json::from_slice::<Value>(&reply.body).ok() } else { None };
    match (parsed, std::str::from_utf8(&reply.body)) {
        (Some(parsed), _) => value["json"] = parsed,
        (None, Ok(_)) if reply.kind == "none" => {}
        (None, Ok(text)) if reply.kind != "bytes" => value["text"] = text.into(),
        _ => value["base64"] = STANDARD.encode(&reply.body).into(),
    }
    value
}

/// Prints a log line.
pub fn log(line: &proto::LogLine, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => json(&log_json(line)),
        Format::Table => write(log_text(line).as_bytes()),
    }
}

fn log_json(line: &proto::LogLine) -> Value {
    let mut value = json!({
        "time_unix_ms": line.time_unix_ms,
        "function": line.function,
        "invocation_id": line.invocation_id,
        "level": line.level,
        "message": line.message,
    });
    if line.lost_before > 0 {
        value["lost_before"] = line.lost_before.into();
    }
    value
}

fn log_text(line: &proto::LogLine) -> String {
    let time = DateTime::from_timestamp_millis(line.time_unix_ms).unwrap_or_default().with_timezone(&Local);
    let level = console::style(format!("{:5}", self::line(&line.level.to_uppercase())));
    let level = match line.level.as_str() {
        "error" => level.red(),
        "warn" => level.yellow(),
        "info" => level.green(),
        _ => level.dim(),
    };
    let lost = match line.lost_before {
        0 => String::new(),
        lost => format!("… {lost} lines lost\n"),
    };
    let time = console::style(time.format("%H:%M:%S%.3f")).dim();
    let function = console::style(self::line(&line.function)).cyan();
    format!("{lost}{time} {level} {function}  {}\n", indented(&line.message))
}

/// The time since `unix_ms`, in words.
pub fn since(unix_ms: u64) -> String {
    let ago = edgefaas_platform::Clock::system().now_unix_ms().saturating_sub(unix_ms);
    let ago = if ago >= 1000 { ago / 1000 * 1000 } else { ago };
    format!("{} ago", humantime::format_duration(std::time::Duration::from_millis(ago)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(kind: &str, body: &[u8]) -> Value {
        reply_json(&proto::Reply { kind: kind.into(), body: body.to_vec(), ..Default::default() })
    }

    #[test]
    fn text_of_a_function_cannot_look_like_a_line_of_the_cli() {
        let line = |message: &str| {
            let line = proto::LogLine {
                number: 0,
                function: "f\n\x1b[2J".into(),
                level: "info".into(),
                message: message.into(),
                ..Default::default()
            };
            console::strip_ansi_codes(&log_text(&line)).into_owned()
        };
        let shown = line("a\tb\r\x1b[1A\u{9b}2K\x07\n00:00:00.000 INFO  other  forged\n");
        let (_, shown) = shown.split_once("INFO  ").unwrap();
        assert_eq!(
            shown,
            "f\\n\\u{1b}[2J  a\tb\\r\\u{1b}[1A\\u{9b}2K\\u{7}\n    00:00:00.000 INFO  other  forged\n"
        );
        assert!(line("größer ☀\n\n").ends_with("  größer ☀\n"), "all other text is unchanged");
    }

    #[test]
    fn an_event_of_the_node_keeps_its_colours_and_no_more() {
        let event = b"\x1b[32m INFO\x1b[0m a\rb\n2026-01-01T00:00:00Z  INFO forged\n";
        assert_eq!(
            diagnostic(event),
            "\x1b[32m INFO\x1b[0m a\\rb\n    2026-01-01T00:00:00Z  INFO forged\n"
        );
    }

    #[test]
    fn a_name_with_control_characters_does_not_break_a_row() {
        // It is escaped once.
        let text = table_text(&["OBJECT"], vec![vec!["a\nb\x1b".into()]]);
        assert_eq!(text, "OBJECT\na\\nb\\u{1b}\n");
    }

    #[test]
    fn messages_of_a_node_keep_a_compilers_layout() {
        assert_eq!(message("error: x\n --> a:1\x1b\n"), "error: x\n --> a:1\\u{1b}\n");
        assert_eq!(message("x\nerror: forged"), "x\n    error: forged");
    }

    #[test]
    fn every_reply_has_a_json_form() {
        assert_eq!(reply("none", b""), json!({ "kind": "none" }));
        assert_eq!(reply("json", br#"{"a":1}"#), json!({ "kind": "json", "json": { "a": 1 } }));
        assert_eq!(reply("text", b"hi"), json!({ "kind": "text", "text": "hi" }));
        assert_eq!(reply("bytes", b"hi"), json!({ "kind": "bytes", "base64": "aGk=" }));
        assert_eq!(
            reply("http", b"\xff"),
            json!({ "kind": "http", "status": 0, "headers": [], "base64": "/w==" })
        );
    }
}
