//! `edgefaas workflow list|show|cancel|retry|graph`

use std::path::Path;

use edgefaas_api::control as proto;
use edgefaas_api::control::cancel_instances_request::Of;
use edgefaas_api::control::change_instance_request::Change;
use edgefaas_workflow::{flowchart, graph};
use serde_json::{Value, json};

use super::list::check_app;
use crate::args::{Format, Global, Workflow};
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::fitting::{self, Column, Fit};
use crate::output;

/// The columns of `workflow list`.
const COLUMNS: [Column; 8] = [
    Column { name: "INSTANCE", fit: Fit::Whole },
    Column { name: "WORKFLOW", fit: Fit::Middle(10) },
    Column { name: "STATUS", fit: Fit::Whole },
    Column { name: "STARTED", fit: Fit::End(8, 3) },
    Column { name: "ENDED", fit: Fit::End(8, 2) },
    Column { name: "KEY", fit: Fit::End(8, 4) },
    Column { name: "STEPS", fit: Fit::LeftOut(0) },
    Column { name: "AT", fit: Fit::End(8, 1) },
];

pub async fn run(args: &Workflow, global: &Global) -> anyhow::Result<()> {
    match args {
        Workflow::List { name, key, limit } => list(name.as_deref(), key.as_deref(), *limit, global).await,
        Workflow::Show { id } => show(id, global).await,
        Workflow::Cancel { id: Some(id), .. } => change(id, Change::Cancel, "is cancelled", global).await,
        Workflow::Cancel { all: Some(name), failed, .. } => {
            cancel_all(Of::Workflow(name.clone()), *failed, global).await
        }
        Workflow::Cancel { app, failed, .. } => {
            cancel_all(Of::App(app.clone().unwrap_or_default()), *failed, global).await
        }
        Workflow::Retry { id } => change(id, Change::Retry, "goes on", global).await,
        Workflow::Graph { name, svg } => draw(name, svg.as_deref(), global).await,
    }
}

async fn list(name: Option<&str>, key: Option<&str>, limit: u32, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::ListInstancesRequest {
        workflow: name.unwrap_or_default().to_owned(),
        limit,
        key: key.unwrap_or_default().to_owned(),
    };
    let response = client.list_instances(request).await.map_err(|status| connection::failure(&status))?;
    let proto::ListInstancesResponse { instances, more } = response.into_inner();
    if let (true, Some(name)) = (instances.is_empty(), name) {
        check_name(&Of::Workflow(name.to_owned()), "", global).await?;
    }
    if global.output == Format::Json {
        let instances: Vec<_> = instances.iter().map(as_json).collect();
        return output::json(&json!({ "instances": instances, "more": more }));
    }
    if instances.is_empty() {
        match key {
            Some(key) => eprintln!("no instance has the key `{key}`, or it is no longer kept"),
            None => eprintln!("no instance runs, waits or can be retried, and no ended one is kept"),
        }
        return Ok(());
    }
    let row = |instance: &proto::Instance| {
        vec![
            instance.id.clone(),
            instance.workflow.clone(),
            instance.status.clone(),
            output::since(instance.started_unix_ms),
            ended(instance),
            instance.key.clone(),
            instance.steps.to_string(),
            output::cell(&tasks_of(instance)),
        ]
    };
    fitting::print(&COLUMNS, instances.iter().map(row).collect())?;
    if more > 0 {
        eprintln!("and {more} more; --limit shows them");
    }
    Ok(())
}

async fn show(id: &str, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::GetInstanceRequest { id: id.to_owned() };
    let response = client.get_instance(request).await.map_err(|status| connection::failure(&status))?;
    let instance = response.into_inner();
    if global.output == Format::Json {
        return output::json(&as_json(&instance));
    }
    let mut lines = format!("{} of {} {}\n", instance.id, instance.workflow, instance.version);
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            lines.push_str(&format!("{name:<9}{}\n", output::indented(value)));
        }
    };
    line("status", &instance.status);
    line("started", &output::since(instance.started_unix_ms));
    line("ended", &ended(&instance));
    line("key", &instance.key);
    line("steps", &instance.steps.to_string());
    line("at", &tasks_of(&instance).join("\n"));
    line("input", &instance.input);
    line("context", if instance.context == "null" { "" } else { &instance.context });
    line("output", &instance.output);
    line("error", &instance.error);
    output::text(&lines)
}

/// The tasks at which an instance runs or waits, or the one at which it failed.
fn tasks_of(instance: &proto::Instance) -> Vec<String> {
    let failed_at = || {
        let error: Value = serde_json::from_str(&instance.error).ok()?;
        Some(vec![error["instance"].as_str()?.to_owned()])
    };
    failed_at().unwrap_or_else(|| instance.tasks.clone())
}

/// The time since the end, or nothing.
fn ended(instance: &proto::Instance) -> String {
    match instance.ended_unix_ms {
        0 => String::new(),
        ended => output::since(ended),
    }
}

async fn change(id: &str, change: Change, what: &str, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::ChangeInstanceRequest { id: id.to_owned(), change: change.into() };
    client.change_instance(request).await.map_err(|status| connection::failure(&status))?;
    match global.output {
        Format::Json => output::json(&json!({ "id": id })),
        Format::Table => output::text(&format!("{id} {what}\n")),
    }
}

async fn cancel_all(of: Of, failed: bool, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let request = proto::CancelInstancesRequest { of: Some(of.clone()), failed };
    let response = client.cancel_instances(request).await.map_err(|status| connection::failure(&status))?;
    let cancelled = response.into_inner().cancelled;
    if cancelled == 0 {
        check_name(&of, if failed { "failed " } else { "live " }, global).await?;
    }
    match global.output {
        Format::Json => output::json(&json!({ "cancelled": cancelled })),
        Format::Table => output::text(&format!("{cancelled} cancelled\n")),
    }
}

/// Fails if nothing has the name of which no instance was found: it is probably misspelt.
async fn check_name(of: &Of, which: &str, global: &Global) -> anyhow::Result<()> {
    let name = match of {
        Of::App(name) => {
            return check_app(name, &format!("{which}instance of its workflows"), global).await;
        }
        Of::Workflow(name) => name,
    };
    let mut client = connection::connect(global).await?;
    let request = proto::ListRequest::default();
    let response = client.list(request).await.map_err(|status| connection::failure(&status))?;
    let apps = response.into_inner().apps;
    if apps.iter().flat_map(|app| &app.workflows).any(|workflow| workflow.name == *name) {
        return Ok(());
    }
    let text =
        format!("there is no workflow `{name}`, and no {which}instance of it; `edgefaas list` shows all");
    Err(Failure::new(Exit::NotFound, text))
}

async fn draw(name: &str, svg: Option<&Path>, global: &Global) -> anyhow::Result<()> {
    if let Some(file) = svg {
        let message = format!(
            "SVG is not written any more ({}); draw the Mermaid text instead: `edgefaas workflow graph {name} > graph.mmd`, \
             then `mmdc -i graph.mmd -o {}` or https://mermaid.live",
            file.display(),
            file.display(),
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let is_file = [".yaml", ".yml", ".json"].iter().any(|extension| name.ends_with(extension));
    let mermaid = if is_file {
        let text = std::fs::read_to_string(name)
            .map_err(|error| Failure::new(Exit::Invalid, format!("{name}: {error}")))?;
        let compiled = edgefaas_workflow::compile(&text, name)?;
        graph::mermaid(&flowchart(&compiled.program))
    } else {
        let mut client = connection::connect(global).await?;
        let request = proto::GraphRequest { workflow: name.to_owned() };
        let response = client.graph(request).await.map_err(|status| connection::failure(&status))?;
        response.into_inner().mermaid
    };
    match global.output {
        Format::Json => output::json(&json!({ "mermaid": mermaid })),
        Format::Table => output::text(&mermaid),
    }
}

fn as_json(instance: &proto::Instance) -> Value {
    let data = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    json!({
        "id": instance.id,
        "workflow": instance.workflow,
        "version": instance.version,
        "status": instance.status,
        "started_unix_ms": instance.started_unix_ms,
        "ended_unix_ms": (instance.ended_unix_ms > 0).then_some(instance.ended_unix_ms),
        "key": (!instance.key.is_empty()).then_some(&instance.key),
        "tasks": instance.tasks,
        "steps": instance.steps,
        "durable": instance.durable,
        "input": data(&instance.input),
        "context": data(&instance.context),
        "output": data(&instance.output),
        "error": data(&instance.error),
    })
}
