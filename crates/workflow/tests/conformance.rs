//! The features of the specification's conformance kit, and our own in the same language, through compiler and engine.

mod host;
#[path = "conformance/steps.rs"]
mod steps;

use std::path::Path;

use edgefaas_workflow::instance::{NoteKind, SentRequest, read_answer};
use edgefaas_workflow::program::HttpOutput;
use edgefaas_workflow::{ErrorKind, WorkflowError};
use gherkin::Step;
use host::{Asked, Host};
use serde_json::Value;
use steps::{Outcome, body_of, check, docstring, needs_network, quoted, scenarios, text_of, yaml};

/// Scenarios of the kit that ask servers in the network: the tests of the node run them, with a server of their own.
const IN_THE_NETWORK: usize = 9;

#[test]
fn the_kit() {
    assert_eq!(run_folder("kit"), (12, IN_THE_NETWORK));
}

#[test]
fn our_own() {
    let (ran, left) = run_folder("own");
    assert!(ran + left >= 10);
}

/// Runs the scenarios of a folder. Returns how many ran, and how many of the kit need the network.
fn run_folder(name: &str) -> (usize, usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance").join(name);
    let (mut ran, mut left, mut failures) = (0, 0, Vec::new());
    for (file, scenario, steps) in scenarios(&folder) {
        if name == "kit" && needs_network(&steps) {
            left += 1;
            continue;
        }
        ran += 1;
        let mut world = World::default();
        for step in &steps {
            if let Err(reason) = world.step(step) {
                failures.push(format!("{file}: {}: {}\n  {reason}", scenario.name, step.value));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    (ran, left)
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
        let text = text_of(step);
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
            return self.outcome()?.check(text, step);
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

    fn outcome(&self) -> Result<Outcome, String> {
        let host = self.host.as_ref().ok_or("the workflow was not executed")?;
        let result = host.instance.result().map(|result| match result {
            Ok(output) => Ok((**output).clone()),
            Err(error) => Err(error.to_json()),
        });
        let ran = host.noted(NoteKind::Started).into_iter().map(str::to_owned).collect();
        Ok(Outcome { result, ran })
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
}
