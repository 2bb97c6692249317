//! `edgefaas policy`

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_api::control::node_policy::State;
use edgefaas_client::args::{Format, Global};
use edgefaas_client::connection;
use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::output;
use edgefaas_cluster::placement::{self, Known, MAX_POLICY_BYTES, Place, Policy, PolicyError, Warning};
use serde_json::{Value, json};

use crate::args::Policy as Command;

pub async fn run(args: &Command, global: &Global) -> anyhow::Result<()> {
    match args {
        Command::Check { file } => check(file, global),
        Command::Set { file, wait } => set(file, wait.wait_ms(), global).await,
        Command::Rm { wait } => remove(wait.wait_ms(), global).await,
        Command::Show => show(global).await,
        Command::Explain { function, entry } => explain(function, entry.as_deref(), global).await,
    }
}

async fn set(file: &Path, wait_ms: u32, global: &Global) -> anyhow::Result<()> {
    let name = file.display().to_string();
    let text = read(file)?;
    if let Err(error) = Policy::parse(&text) {
        let report = error.report(&name, &text);
        return Err(Failure::new(
            Exit::Invalid,
            format!("{name} is no valid policy\n{}", report.trim_end()),
        ));
    }
    let mut client = connection::connect(global).await?;
    let set = client.set_policy(proto::SetPolicyRequest { text: text.clone(), wait_ms }).await;
    let proto::SetPolicyResponse { warnings, nodes } =
        set.map_err(|status| connection::failure(&status))?.into_inner();
    let place = |warning: &proto::PolicyWarning| Place { line: warning.line, column: warning.column };
    if global.output == Format::Json {
        let warnings: Vec<_> =
            warnings.iter().map(|warning| placed(place(warning), &warning.message)).collect();
        return output::json(&json!({ "set": true, "warnings": warnings, "nodes": nodes_json(&nodes) }));
    }
    let shown = warnings.iter().map(|warning| (place(warning), output::line(&warning.message)));
    eprint!("{}", placement::report_messages(&name, &text, shown));
    table(&nodes)
}

async fn remove(wait_ms: u32, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let removed = client.remove_policy(proto::RemovePolicyRequest { wait_ms }).await;
    let nodes = removed.map_err(|status| connection::failure(&status))?.into_inner().nodes;
    if global.output == Format::Json {
        return output::json(&json!({ "set": false, "nodes": nodes_json(&nodes) }));
    }
    output::text("the placement policies are removed\n")?;
    table(&nodes)
}

fn table(nodes: &[proto::NodePolicy]) -> anyhow::Result<()> {
    let row = |node: &proto::NodePolicy| {
        let zone = if node.zone.is_empty() { "-" } else { &node.zone };
        vec![node.node.clone(), zone.to_owned(), sentence(node)]
    };
    output::table(&["NODE", "ZONE", "POLICY"], nodes.iter().map(row).collect())
}

fn sentence(node: &proto::NodePolicy) -> String {
    match node.state() {
        State::InForce => "in force".to_owned(),
        State::Waiting | State::Unspecified => "waiting".to_owned(),
        State::Refused => format!("refused: {}", node.detail),
        State::Away => "away; gets it when it returns".to_owned(),
    }
}

fn nodes_json(nodes: &[proto::NodePolicy]) -> Value {
    let word = |state| match state {
        State::InForce => "in-force",
        State::Waiting | State::Unspecified => "waiting",
        State::Refused => "refused",
        State::Away => "away",
    };
    let node = |node: &proto::NodePolicy| {
        let reason = Some(&node.detail).filter(|detail| !detail.is_empty());
        json!({ "node": node.node, "zone": node.zone, "state": word(node.state()), "reason": reason })
    };
    nodes.iter().map(node).collect()
}

async fn show(global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let policy = client.get_policy(proto::GetPolicyRequest {}).await;
    let policy = policy.map_err(|status| connection::failure(&status))?.into_inner();
    for lost in &policy.lost {
        let (node, since) = (&lost.node, output::since(lost.set_unix_ms as u64));
        eprintln!(
            "warning: the policies were set twice at the same time, or on two sides of a network partition: those set on `{node}` \
             {since} lost; set the right ones again"
        );
    }
    if let Some(reason) = &policy.ignored {
        eprintln!(
            "warning: this node does not follow these policies: {}; it runs all its functions itself",
            output::indented(reason)
        );
    }
    for node in policy.nodes.iter().filter(|node| node.state() != State::InForce) {
        let (name, state) = (&node.node, output::indented(&sentence(node)));
        eprintln!("warning: node `{name}` does not follow these policies: {state}");
    }
    match global.output {
        Format::Json => {
            let lost = |lost: &proto::Policy| json!({ "text": lost.text, "node": lost.node, "set_unix_ms": lost.set_unix_ms });
            output::json(&json!({
                "text": policy.text,
                "node": policy.node,
                "set_unix_ms": policy.set_unix_ms,
                "lost": policy.lost.iter().map(lost).collect::<Vec<_>>(),
                "nodes": nodes_json(&policy.nodes),
                "ignored": policy.ignored,
            }))
        }
        Format::Table if policy.text.is_empty() => {
            eprintln!("the cluster has no placement policies; `edgefaas policy set FILE` sets some");
            Ok(())
        }
        Format::Table if policy.text.ends_with('\n') => output::text(&policy.text),
        Format::Table => output::text(&format!("{}\n", policy.text)),
    }
}

async fn explain(function: &str, entry: Option<&str>, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    let (function, entry) = (function.to_owned(), entry.unwrap_or_default().to_owned());
    let request = proto::ExplainPlacementRequest { function: function.clone(), entry };
    let explained = client.explain_placement(request).await;
    let proto::ExplainPlacementResponse { node, steps } =
        explained.map_err(|status| connection::failure(&status))?.into_inner();
    if global.output == Format::Json {
        let node = Some(&node).filter(|node| !node.is_empty());
        return output::json(&json!({ "function": function, "node": node, "steps": steps }));
    }
    let mut text: String = steps.iter().map(|step| format!("{}\n", output::line(step))).collect();
    text += &match node.as_str() {
        "" => format!("a call of {function} runs on no node\n"),
        node => format!("a call of {function} runs on {node}\n"),
    };
    output::text(&text)
}

fn check(file: &Path, global: &Global) -> anyhow::Result<()> {
    let name = file.display().to_string();
    let text = read(file)?;
    match Policy::parse(&text) {
        Ok(policy) => {
            let warnings = placement::check(&policy, &Known::default());
            match global.output {
                Format::Json => output::json(&as_json(Some(&policy), &[], &warnings))?,
                Format::Table => output::text(&as_text(&name, &policy))?,
            }
            eprint!("{}", placement::report_warnings(&warnings, &name, &text));
            Ok(())
        }
        Err(error) => {
            if global.output == Format::Json {
                output::json(&as_json(None, &problems(&error), &[]))?;
            }
            let report = error.report(&name, &text);
            Err(Failure::new(Exit::Invalid, format!("{name} is no valid policy\n{}", report.trim_end())))
        }
    }
}

/// The text of the file, or of stdin for `-`. A longer text than a policy may have is cut after its maximum, so that it
/// is refused for its size.
fn read(file: &Path) -> anyhow::Result<String> {
    let limit = MAX_POLICY_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut bytes).context("stdin cannot be read")?;
    } else {
        let open = std::fs::File::open(file);
        let read = open.and_then(|open| open.take(limit).read_to_end(&mut bytes));
        read.map_err(|error| {
            Failure::new(Exit::Usage, format!("{} cannot be read: {error}", file.display()))
        })?;
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let name = file.display();
        Failure::new(Exit::Invalid, format!("{name} is not UTF-8 text: the byte at {at} is invalid"))
    })
}

fn as_text(name: &str, policy: &Policy) -> String {
    let mut text = format!("{name} is valid; distribution: {}\n", policy.distribution.word());
    for tag in &policy.tags {
        let (blocks, followup) = (tag.blocks.len(), tag.followup.word());
        text += &format!("{:<24} {blocks} block(s), followup: {followup}\n", tag.name);
    }
    text
}

fn as_json(policy: Option<&Policy>, problems: &[Value], warnings: &[Warning]) -> Value {
    let warnings: Vec<Value> =
        warnings.iter().map(|warning| placed(warning.place, &warning.kind.to_string())).collect();
    let tags = policy.map(|policy| policy.tags.iter().map(|tag| tag.name.as_str()).collect::<Vec<_>>());
    json!({ "valid": policy.is_some(), "tags": tags, "problems": problems, "warnings": warnings })
}

fn problems(error: &PolicyError) -> Vec<Value> {
    error.problems.iter().map(|problem| placed(problem.place, &problem.fault.to_string())).collect()
}

fn placed(place: Place, message: &str) -> Value {
    let number = |number: u32| (number > 0).then_some(number);
    json!({ "line": number(place.line), "column": number(place.column), "message": message })
}
