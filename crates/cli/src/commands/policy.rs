//! `edgefaas policy`

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use edgefaas_client::args::{Format, Global};
use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::output;
use edgefaas_cluster::placement::{self, Known, MAX_POLICY_BYTES, Place, Policy, PolicyError, Warning};
use serde_json::{Value, json};

use crate::args::Policy as Command;

pub fn run(args: &Command, global: &Global) -> anyhow::Result<()> {
    match args {
        Command::Check { file } => check(file, global),
    }
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
    json!({ "line": place.line, "column": place.column, "message": message })
}
