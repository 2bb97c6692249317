//! Meaning, limits and messages of expressions.

mod differential;
mod limits;
mod messages;
mod semantics;
mod templates;
mod timing;

use serde_json::Value;

use super::*;

/// Variables from an object's keys.
struct Object<'a>(&'a Value);

impl Variables for Object<'_> {
    fn value(&self, name: &str) -> Option<Data> {
        self.0.get(name).map(of)
    }
}

/// 2001-09-09T01:46:40.5Z.
const NOW_UNIX_MS: u64 = 1_000_000_000_500;

fn eval_with(text: &str, input: &Value, variables: &Value) -> Result<Value, EvalError> {
    let names: Vec<&str> =
        variables.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    let expression = Expression::parse(text, &names).unwrap_or_else(|error| panic!("{text}: {error}"));
    run(&expression, input, &Object(variables))
}

/// A value that does not nest too deep.
fn of(value: &Value) -> Data {
    Data::from_json(value).unwrap()
}

fn run(expression: &Expression, input: &Value, variables: &dyn Variables) -> Result<Value, EvalError> {
    let input = Data::from_json(input).map_err(|_| EvalError::from(meter::Stop::Depth))?;
    expression.eval(&input, variables, NOW_UNIX_MS).map(|value| value.to_json())
}

fn eval(text: &str, input: &Value) -> Result<Value, EvalError> {
    eval_with(text, input, &Value::Null)
}
