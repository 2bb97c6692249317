//! Scenarios of features, and what their steps say about a workflow that has run. The tests of the node use it too.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::{Path, PathBuf};

use gherkin::{Feature, GherkinEnv, Scenario, Step};
use serde_json::{Value, json};

/// The scenarios of the features in a folder below `conformance`, each with its file and its steps, those of the background first.
pub fn scenarios(folder: &Path) -> Vec<(String, Scenario, Vec<Step>)> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "feature"));
    files.sort();
    let mut scenarios = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let feature = Feature::parse(format!("{text}\n"), GherkinEnv::default()).unwrap();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for scenario in &feature.scenarios {
            let background = feature.background.iter().flat_map(|background| &background.steps);
            let steps = background.chain(&scenario.steps).cloned().collect();
            scenarios.push((file.clone(), scenario.clone(), steps));
        }
    }
    scenarios
}

/// True if a scenario asks a server in the network.
pub fn needs_network(steps: &[Step]) -> bool {
    let asks = |text: &String| text.contains("call: http") || text.contains("call: openapi");
    steps.iter().any(|step| step.docstring.as_ref().is_some_and(asks))
}

/// The text of a step without its keywords.
pub fn text_of(step: &Step) -> &str {
    step.value.trim().trim_start_matches("given ").trim()
}

/// A workflow that has run.
pub struct Outcome {
    /// Its output or its error; `None` if it has not ended.
    pub result: Option<Result<Value, Value>>,
    /// The names of its tasks, in the order of their starts.
    pub ran: Vec<String>,
}

impl Outcome {
    /// Checks what a step says.
    pub fn check(&self, text: &str, step: &Step) -> Result<(), String> {
        let result = self.result.as_ref().ok_or("it has not ended");
        let output = || match result? {
            Ok(output) => Ok(output.clone()),
            Err(error) => Err(format!("it failed: {error}")),
        };
        let names = quoted(text);
        match text.split('\'').next().unwrap_or_default().trim() {
            "the workflow should complete" => output().map(drop),
            "the workflow should complete with output:" => same(&output()?, &yaml(&docstring(step)?)?),
            "the workflow should fault" => match result? {
                Ok(output) => Err(format!("it completed with {output}")),
                Err(_) => Ok(()),
            },
            "the workflow should fault with error:" => match result? {
                Ok(output) => Err(format!("it completed with {output}")),
                Err(error) => includes(error, &yaml(&docstring(step)?)?),
            },
            "the workflow output should have properties" => {
                let output = output()?;
                let missing = names.iter().find(|name| at(&output, name).is_none());
                missing.map_or(Ok(()), |name| Err(format!("there is no `{name}` in {output}")))
            }
            "the workflow output should have a" => {
                let output = output()?;
                let name = names.first().ok_or("there is no name in quotes")?;
                let value = at(&output, name).ok_or_else(|| format!("there is no `{name}` in {output}"))?;
                match text.rsplit('\'').next().unwrap_or_default().trim() {
                    "property with value:" => same(value, &yaml(&docstring(step)?)?),
                    "property" => Ok(()),
                    rest => items(rest, value),
                }
            }
            _ => self.order(text, &names),
        }
    }

    fn order(&self, text: &str, names: &[String]) -> Result<(), String> {
        let ran = &self.ran;
        let outside: String = text.split('\'').step_by(2).collect();
        let position = |name: &String| {
            ran.iter().position(|ran| ran == name).ok_or(format!("`{name}` did not run: {ran:?}"))
        };
        let name = names
            .first()
            .cloned()
            .or_else(|| text.split(' ').next().map(str::to_owned))
            .unwrap_or_default();
        // Names may stand without quotes: `greet should run first`.
        let words: Vec<&str> = outside.split_whitespace().skip(usize::from(names.is_empty())).collect();
        let other =
            names.get(1).cloned().or_else(|| words.last().map(|&word| word.to_owned())).unwrap_or_default();
        match words.as_slice() {
            ["should", "run", "first"] => {
                check(ran.first() == Some(&name), &format!("the order was {ran:?}"))
            }
            ["should", "run", "last"] => {
                check(ran.last() == Some(&name), &format!("the order was {ran:?}"))
            }
            ["should", "run", "before", ..] => {
                check(position(&name)? < position(&other)?, &format!("the order was {ran:?}"))
            }
            ["should", "run", "after", ..] => {
                check(position(&name)? > position(&other)?, &format!("the order was {ran:?}"))
            }
            ["should", "have", "executed"] | ["should", "execute"] => position(&name).map(drop),
            ["should", "not", "have", "executed"]
            | ["should", "have", "not", "executed"]
            | ["should", "not", "execute"] => {
                check(position(&name).is_err(), &format!("the order was {ran:?}"))
            }
            ["should", "have", "executed", times, "times"] => {
                let found = ran.iter().filter(|ran| **ran == name).count();
                check(times.parse() == Ok(found), &format!("it ran {found} times"))
            }
            _ => Err("the step is not known".to_owned()),
        }
    }
}

/// `property containing N items`
fn items(text: &str, value: &Value) -> Result<(), String> {
    let wanted =
        text.strip_prefix("property containing ").and_then(|rest| rest.split(' ').next()?.parse().ok());
    let wanted: usize = wanted.ok_or("the step is not known")?;
    let found = value.as_array().map(Vec::len).or(value.as_object().map(serde_json::Map::len));
    check(found == Some(wanted), &format!("it is {value}"))
}

pub fn check(holds: bool, reason: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason.to_owned()) }
}

fn same(found: &Value, wanted: &Value) -> Result<(), String> {
    check(found == wanted, &format!("found  {found}\n  wanted {wanted}"))
}

fn includes(found: &Value, wanted: &Value) -> Result<(), String> {
    check(edgefaas_workflow::event::subset(wanted, found), &format!("found  {found}\n  wanted {wanted}"))
}

/// `a.b` within a value.
fn at<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    name.split('.').try_fold(value, |value, part| value.get(part))
}

pub fn quoted(text: &str) -> Vec<String> {
    text.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}

pub fn docstring(step: &Step) -> Result<String, String> {
    step.docstring.as_deref().map(body_of).ok_or_else(|| "there is no text below the step".to_owned())
}

/// Without the media type that stands behind the opening quotes.
pub fn body_of(text: &str) -> String {
    match text.split_once('\n') {
        Some((first, rest))
            if first.trim() == "yaml" || first.trim() == "json" || first.trim().is_empty() =>
        {
            dedent(rest)
        }
        _ => dedent(text),
    }
}

fn dedent(text: &str) -> String {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let least = text.lines().filter(|line| !line.trim().is_empty()).map(indent).min().unwrap_or_default();
    text.lines().map(|line| line.get(least..).unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

pub fn yaml(text: &str) -> Result<Value, String> {
    match edgefaas_workflow::document::read(text) {
        Ok(value) => Ok(value.to_json()),
        Err(_) if text.trim().is_empty() => Ok(json!(null)),
        Err(error) => Err(error.to_string()),
    }
}
