//! What evaluating an expression costs: the native form against jaq under the same limits, on the same data.
//!
//! `cargo bench -p edgefaas-workflow --bench expressions [-- --json]`. The two alternate round by round, so that a busy machine
//! slows both down; the figures are medians over the rounds.

use std::hint::black_box;
use std::time::Instant;

use edgefaas_workflow::Data;
use edgefaas_workflow::expression::{Expression, Variables};
use serde_json::{Value, json};

/// Rounds per expression; odd, so that the median is one of them.
const ROUNDS: usize = 2_001;
/// Evaluations per round: so few that most rounds end within one time slice of the scheduler, however busy the machine is.
const EVALUATIONS: u32 = 100;
/// Expressions of a workflow of three steps, and of its conditions.
const EXPRESSIONS: [&str; 9] = [
    ".",
    ".x",
    "{a: .x}",
    ".x + 1",
    ".items | length",
    "${ $context.n < 3 }",
    ".customer.address.city",
    "if .x > 30 then \"high\" else \"low\" end",
    "\"order \\(.id) of \\(.customer.name)\"",
];

struct Context(Data);

impl Variables for Context {
    fn value(&self, name: &str) -> Option<Data> {
        (name == "context").then(|| self.0.clone())
    }
}

/// Nanoseconds of one evaluation, over one round.
fn round(expression: &Expression, input: &Data, context: &Context) -> f64 {
    let started = Instant::now();
    for _ in 0..EVALUATIONS {
        black_box(expression.eval(black_box(input), context, 0)).expect("it has a value");
    }
    started.elapsed().as_nanos() as f64 / f64::from(EVALUATIONS)
}

fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn main() {
    let input = json!({
        "id": "o-4711", "x": 31, "items": [1, 2, 3],
        "customer": {"name": "Ada", "address": {"city": "London", "zip": "W1"}},
    });
    let input = Data::from_json(&input).expect("it is shallow");
    let context = Context(Data::from_json(&json!({"n": 2})).expect("it is shallow"));
    let as_json = std::env::args().any(|argument| argument == "--json");
    let mut figures = Vec::new();
    if !as_json {
        println!("{:>10} {:>10} {:>7}  expression", "native ns", "jaq ns", "ratio");
    }
    for text in EXPRESSIONS {
        let native = Expression::parse(text, &["context"]).expect("it is valid");
        assert!(native.is_native(), "{text} has no native form");
        // Only jaq has definitions; this one is never called.
        let inner = edgefaas_workflow::expression::expression_text(text).unwrap_or(text);
        let jaq = Expression::parse(&format!("def never: 1; {inner}"), &["context"]).expect("it is valid");
        assert!(!jaq.is_native());
        let value =
            |expression: &Expression| expression.eval(&input, &context, 0).map(|value| value.to_json());
        assert_eq!(value(&native), value(&jaq), "{text}");

        let (mut native_ns, mut jaq_ns) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            native_ns.push(round(&native, &input, &context));
            jaq_ns.push(round(&jaq, &input, &context));
        }
        let (native_ns, jaq_ns) = (median(native_ns), median(jaq_ns));
        let ratio = jaq_ns / native_ns;
        if !as_json {
            println!("{native_ns:>10.0} {jaq_ns:>10.0} {ratio:>7.1}  {text}");
        }
        figures.push(json!({"expression": text, "native_ns": native_ns, "jaq_ns": jaq_ns, "ratio": ratio}));
    }
    if as_json {
        println!("{:#}", Value::Array(figures));
    }
}
