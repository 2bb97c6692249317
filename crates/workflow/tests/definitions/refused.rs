//! What is refused, where, with which words, and what is said to do about it.

use edgefaas_workflow::{compile, compile_for_deploy};

/// The line in front of each definition.
pub const HEAD: &str = "document: {dsl: '1.0.0', namespace: test, name: test, version: '1.0.0'}";

/// Definitions, each with its problems below it as they are told.
const CASES: &str = include_str!("refused.txt");

#[test]
fn every_problem_has_its_place_and_words() {
    let mut wrong = Vec::new();
    for case in CASES.trim_end().split("\n\n") {
        let is_problem = |line: &&str| line.starts_with("  = ") || is_place(line);
        let definition: Vec<&str> = case.lines().take_while(|line| !is_problem(line)).collect();
        let wanted: Vec<&str> = case.lines().skip(definition.len()).collect();
        let found = match compile_for_deploy(&format!("{HEAD}\n{}", definition.join("\n")), "test.yaml") {
            Ok(_) => vec!["it is accepted".to_owned()],
            Err(error) => error.problems.iter().flat_map(lines).collect(),
        };
        if wanted.is_empty() || found != wanted {
            wrong.push(format!("{}\n{}", definition.join("\n"), found.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn the_head_is_looked_at() {
    for (head, problem) in [
        ("document: {dsl: '2.0.0', namespace: a, name: b, version: '1'}", "1:17: DSL 2.0.0 is not known"),
        (
            "document: {dsl: '1.0.0', namespace: a, name: 'b c', version: '1'}",
            "1:46: `b c` is not a valid name",
        ),
        ("document: {dsl: '1.0.0', namespace: a, version: '1'}", "1:11: `document` needs `name`"),
        ("document: {dsl: '1.0.0', namespace: a, name: b}", "1:11: `document` needs `version`"),
        ("document: 5", "1:11: `document` is an object, not a number"),
        ("{}", "1:1: a workflow needs `document`"),
        ("[]", "1:1: a workflow is an object, not a list"),
        (
            "document: {dsl: 1.0.0, namespace: a, name: b, version: 1, metadata: {steps: 0}}",
            "1:77: `metadata.steps` is a whole number from 1 to 1000000000",
        ),
        (
            "document: {dsl: 1.0.0, namespace: a, name: b, version: 1, metadata: {events: {count: 2}}}",
            "1:78: there is no `schedule.on` it could be for",
        ),
    ] {
        let text = if head.len() < 3 { head.to_owned() } else { format!("{head}\ndo: [a: {{set: {{}}}}]") };
        let error = compile(&text, "test.yaml").unwrap_err();
        assert!(error.problems.iter().flat_map(lines).any(|line| line == problem), "{head}: {error}");
    }
}

#[test]
fn a_report_shows_the_line() {
    let error = compile(&format!("{HEAD}\ndo:\n  - a:\n      sett: {{}}\n"), "test.yaml").unwrap_err();
    let wanted = "test.yaml:3:5: task `a` does nothing that is known\n  |   - a:\n  |     ^\n  = did you mean `set`?";
    assert_eq!(error.to_string(), wanted);
}

#[test]
fn what_is_odd_is_a_warning() {
    let text = format!(
        "{HEAD}\ndo: [a: {{call: asyncapi, with: {{document: {{endpoint: x}}, channel: a, message: {{payload: 1}}}}}}]"
    );
    let warnings = compile(&text, "test.yaml").unwrap().warnings.unwrap();
    assert!(
        warnings.to_string().starts_with("test.yaml:2:43: the AsyncAPI document is not fetched"),
        "{warnings}"
    );
}

fn lines(problem: &edgefaas_workflow::document::Problem) -> Vec<String> {
    let mut lines = vec![format!("{}:{}: {}", problem.place.line, problem.place.column, problem.message)];
    lines.extend(problem.help.iter().filter(|help| !help.is_empty()).map(|help| format!("  = {help}")));
    lines
}

/// `LINE:COLUMN: …`
fn is_place(line: &str) -> bool {
    let mut parts = line.splitn(3, ':');
    let mut number = || {
        parts.next().is_some_and(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    number() && number()
}
