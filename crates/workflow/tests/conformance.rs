//! The features of the specification's conformance kit, and our own in the same language, through compiler and engine.

mod host;

use std::path::{Path, PathBuf};

use edgefaas_workflow::instance::{NoteKind, SentRequest, read_answer};
use edgefaas_workflow::program::HttpOutput;
use edgefaas_workflow::{ErrorKind, WorkflowError};
use gherkin::{Feature, GherkinEnv, Step};
use host::{Asked, Host};
use serde_json::{Value, json};

#[test]
fn the_kit() {
    assert!(run_folder("kit") >= 6);
}

#[test]
fn our_own() {
    assert!(run_folder("own") >= 10);
}

fn run_folder(name: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(name);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "feature"));
    files.sort();
    let (mut scenarios, mut failures) = (0, Vec::new());
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let feature = Feature::parse(format!("{text}\n"), GherkinEnv::default()).unwrap();
        for scenario in &feature.scenarios {
            scenarios += 1;
            let mut world = World::default();
            let steps =
                feature.background.iter().flat_map(|background| &background.steps).chain(&scenario.steps);
            for step in steps {
                if let Err(reason) = world.step(step) {
                    let file = path.file_name().unwrap_or_default().display();
                    failures.push(format!("{file}: {}: {}\n  {reason}", scenario.name, step.value));
                    break;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    scenarios
}

/// What the steps of a scenario have said so far.
#[derive(Default)]
struct World {
    definition: String,
    input: Value,
    answers: Vec<(String, Answer)>,
    host: Option<Host>,
}

/// What a server or a function says.
#[derive(Clone)]
struct Answer {
    status: u16,
    body: Value,
}

impl World {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let text = step.value.trim().trim_start_matches("given ").trim();
        if let Some(rest) = text.strip_prefix("a workflow with definition") {
            check(rest == ":", "the step is not known")?;
            self.definition = docstring(step)?;
        } else if text == "the workflow input is:" {
            self.input = yaml(&docstring(step)?)?;
        } else if let Some(rest) = text.strip_prefix("calls of ") {
            return self.table(rest, step);
        } else if text == "the workflow is executed" {
            self.execute();
        } else {
            return self.check(text, step);
        }
        Ok(())
    }

    /// `calls of 'NAME' answer STATUS:`, each time the next of such answers and the last of them for ever.
    fn table(&mut self, rest: &str, step: &Step) -> Result<(), String> {
        let name = quoted(rest).into_iter().next().ok_or("there is no name in quotes")?;
        let status = rest.trim_end_matches(':').rsplit(' ').next().and_then(|status| status.parse().ok());
        let status = status.ok_or("there is no status")?;
        let body = step.docstring.as_ref().map(|text| yaml(&body_of(text))).transpose()?;
        self.answers.push((name, Answer { status, body: body.unwrap_or_default() }));
        Ok(())
    }

    fn execute(&mut self) {
        let mut host = Host::new(&self.definition, self.input.clone());
        host.start();
        while !host.status().is_ended() {
            if let Some((frame, asked)) =
                host.asked.iter().next().map(|(frame, asked)| (*frame, asked.clone()))
            {
                let result = self.answer(&asked);
                host.ended(frame, result);
            } else if let Some(due_ms) = host.instance.due_ms() {
                host.until(due_ms);
            } else {
                break;
            }
        }
        self.host = Some(host);
    }

    fn answer(&mut self, asked: &Asked) -> Result<Value, WorkflowError> {
        let of_name = |(name, _): &&(String, Answer)| name == asked.name();
        let many = self.answers.iter().filter(of_name).count();
        let index = self.answers.iter().position(|(name, _)| name == asked.name());
        let Some(index) = index else {
            return Err(WorkflowError::new(
                ErrorKind::Communication,
                format!("nobody is at {}", asked.name()),
            ));
        };
        let answer = match many {
            1 => self.answers[index].1.clone(),
            _ => self.answers.remove(index).1,
        };
        let body = serde_json::to_vec(&answer.body).unwrap();
        read_answer(HttpOutput::Content, false, &SentRequest::default(), answer.status, &[], &body)
    }

    fn check(&self, text: &str, step: &Step) -> Result<(), String> {
        let host = self.host.as_ref().ok_or("the workflow was not executed")?;
        let result = host.instance.result().ok_or("it has not ended");
        let output = || match result? {
            Ok(output) => Ok((**output).clone()),
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
                Err(error) => includes(&error.to_json(), &yaml(&docstring(step)?)?),
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
            _ => self.order(host, text, &names),
        }
    }

    fn order(&self, host: &Host, text: &str, names: &[String]) -> Result<(), String> {
        let ran = host.noted(NoteKind::Started);
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
                check(ran.first() == Some(&name.as_str()), &format!("the order was {ran:?}"))
            }
            ["should", "run", "last"] => {
                check(ran.last() == Some(&name.as_str()), &format!("the order was {ran:?}"))
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

fn check(holds: bool, reason: &str) -> Result<(), String> {
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

fn quoted(text: &str) -> Vec<String> {
    text.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}

fn docstring(step: &Step) -> Result<String, String> {
    step.docstring.as_deref().map(body_of).ok_or_else(|| "there is no text below the step".to_owned())
}

/// Without the media type that stands behind the opening quotes.
fn body_of(text: &str) -> String {
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

fn yaml(text: &str) -> Result<Value, String> {
    match edgefaas_workflow::document::read(text) {
        Ok(value) => Ok(value.to_json()),
        Err(_) if text.trim().is_empty() => Ok(json!(null)),
        Err(error) => Err(error.to_string()),
    }
}
