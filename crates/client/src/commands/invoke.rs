//! `edgefaas invoke NAME`

use std::io::Read;

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_api::control::invoke_request::Event;
use edgefaas_api::control::invoke_response::Outcome;
use edgefaas_platform::Clock;

use crate::args::{Format, Global, Invoke};
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::progress::Step;

pub async fn run(args: &Invoke, global: &Global) -> anyhow::Result<()> {
    let data = data(args.data.as_deref())?;
    let event = event(args)?;
    let mut client = connection::connect(global).await?;
    let request = proto::InvokeRequest { function: args.name.clone(), data, event };
    let response = {
        let _step = std::io::IsTerminal::is_terminal(&std::io::stderr())
            .then(|| Step::start(format!("Running {}", args.name)));
        client.invoke(request).await.map_err(|status| connection::failure(&status))?.into_inner()
    };
    if global.output == Format::Json {
        output::json(&output::invocation(&response))?;
    }
    match response.outcome {
        Some(Outcome::Failure(failure)) => {
            let proto::Failure { status, title, detail } = failure;
            let title = output::line(&title);
            let detail = match detail.as_str() {
                "" => String::new(),
                detail => format!(": {}", output::indented(detail)),
            };
            let node = match response.node.as_str() {
                "" => String::new(),
                node => format!(" on node {}", output::line(node)),
            };
            let message = format!(
                "the function `{}` failed{node} ({status} {title}){detail}; see `edgefaas logs {}`",
                args.name, args.name
            );
            Err(Failure::new(Exit::FunctionFailed, message))
        }
        Some(Outcome::Reply(reply)) if global.output == Format::Table => {
            print(reply)?;
            // Beside the output, which is the reply alone.
            if !response.node.is_empty() {
                eprintln!("ran on node {}", output::line(&response.node));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Prints the unchanged body, text with a newline at its end.
fn print(reply: proto::Reply) -> anyhow::Result<()> {
    let proto::Reply { kind, mut body, status, .. } = reply;
    if kind == "http" && status >= 400 {
        eprintln!("the function answered HTTP {status}");
    }
    let is_text = kind != "bytes" && std::str::from_utf8(&body).is_ok();
    if is_text && !body.is_empty() && !body.ends_with(b"\n") {
        body.push(b'\n');
    }
    output::write(&body)
}

/// The event that the options select; `None` for a direct call.
fn event(args: &Invoke) -> anyhow::Result<Option<Event>> {
    if let Some([method, target]) = args.http.as_deref() {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers = args.headers.iter().map(|header| match header.split_once(':') {
            Some((name, value)) => {
                Ok(proto::Header { name: name.trim().to_owned(), value: value.trim().to_owned() })
            }
            None => {
                let message = format!("`{header}` is not a header; write NAME: VALUE");
                Err(Failure::new(Exit::Usage, message))
            }
        });
        return Ok(Some(Event::Http(proto::HttpEvent {
            method: method.to_ascii_uppercase(),
            path: path.to_owned(),
            query: query.to_owned(),
            headers: headers.collect::<anyhow::Result<_>>()?,
        })));
    }
    if let Some(topic) = &args.mqtt {
        return Ok(Some(Event::Mqtt(proto::MqttEvent {
            topic: topic.clone(),
            qos: args.qos.into(),
            retain: args.retain,
            content_type: String::new(),
        })));
    }
    if let Some(schedule) = &args.cron {
        let scheduled_unix_ms = Clock::system().now_unix_ms();
        return Ok(Some(Event::Cron(proto::CronEvent { schedule: schedule.clone(), scheduled_unix_ms })));
    }
    if let Some([object, field]) = args.object.as_deref() {
        let (object, field) = (object.clone(), field.clone());
        return Ok(Some(Event::Object(proto::ObjectEvent { object, field })));
    }
    Ok(None)
}

fn data(argument: Option<&str>) -> anyhow::Result<Vec<u8>> {
    match argument {
        None => Ok(Vec::new()),
        Some("-") => {
            let mut data = Vec::new();
            std::io::stdin().read_to_end(&mut data).context("stdin cannot be read")?;
            Ok(data)
        }
        Some(text) => match text.strip_prefix('@') {
            Some(file) => std::fs::read(file)
                .map_err(|error| Failure::new(Exit::Usage, format!("-d @{file}: {error}"))),
            None => Ok(text.as_bytes().to_vec()),
        },
    }
}
