//! What native expressions give must be what jaq gives: ours with limits, and the original with its own values.

use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Vars, data};
use jaq_json::Val;
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// An outcome without messages: a value (null for none), or false.
fn outcome(result: Result<Value, EvalError>) -> Result<Value, bool> {
    result.map_err(|error| matches!(error, EvalError::Failed { .. }))
}

fn guarded(text: &str, input: &Value, variables: &Value) -> Result<Value, EvalError> {
    let names: Vec<&str> =
        variables.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    // Nothing but a native expression has a `def`.
    let text = format!("def never: 1; {text}");
    let expression = Expression::parse(&text, &names).unwrap_or_else(|error| panic!("{error}"));
    assert!(!expression.is_native());
    run(&expression, input, &Object(variables))
}

/// What the original gives.
fn original(text: &str, input: &Value, variables: &Value) -> Result<Value, bool> {
    let arena = Arena::default();
    let defs = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
    let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs());
    let modules = Loader::new(defs).load(&arena, File { code: text, path: () }).ok().unwrap();
    let keys: Vec<String> = variables.as_object().unwrap().keys().map(|name| format!("${name}")).collect();
    let compiler = Compiler::default().with_funs(funs).with_global_vars(keys.iter().map(String::as_str));
    let filter = compiler.compile(modules).ok().unwrap();
    let val = |value: &Value| -> Val { serde_json::from_value(value.clone()).unwrap() };
    let values: Vec<Val> = variables.as_object().unwrap().values().map(val).collect();
    let context = Ctx::<data::JustLut<Val>>::new(&filter.lut, Vars::new(values));
    let mut outputs = filter.id.run((context, val(input)));
    match outputs.next() {
        None => Ok(Value::Null),
        Some(Ok(value)) => Ok(json_of(&value)),
        Some(Err(_)) => Err(true),
    }
}

fn json_of(value: &Val) -> Value {
    match value {
        Val::Null => Value::Null,
        Val::Bool(value) => Value::Bool(*value),
        Val::Num(number) => {
            crate::data::Num::parse(&number.to_string().replace("NaN", "nan").replace("Infinity", "inf"))
                .json()
        }
        Val::TStr(text) | Val::BStr(text) => Value::String(String::from_utf8_lossy(text).into_owned()),
        Val::Arr(items) => Value::Array(items.iter().map(json_of).collect()),
        Val::Obj(keys) => keys
            .iter()
            .map(|(key, value)| match json_of(key) {
                Value::String(key) => (key, json_of(value)),
                other => (other.to_string(), json_of(value)),
            })
            .collect(),
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        (-3_i64..5).prop_map(Value::from),
        prop::sample::select(vec![
            json!(i64::MAX),
            json!(i64::MIN),
            json!(u64::MAX),
            json!(9_007_199_254_740_993_i64),
            json!(0.5),
            json!(-1.5),
            json!(1e300),
            json!(1e-9),
            json!(3.0),
            json!(-0.0),
            json!(1e16),
            json!(123456789.125),
        ]),
        prop::sample::select(vec!["", "a", "b", "äß", "a,b", "1", "2.5", "x\n\"\u{7f}\\", "null", " 3 "])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::vec((prop::sample::select(vec!["a", "b", "c d"]), inner), 0..3)
                .prop_map(|keys| keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

fn texts() -> impl Strategy<Value = String> {
    let leaf = prop::sample::select(vec![
        ".",
        ".a",
        ".b",
        ".a.b",
        ".\"c d\"",
        ".a?",
        ".[0]",
        ".[1]",
        ".[-1]",
        ".[0]?",
        ".a[0]",
        ".[1:]",
        ".[:1]",
        ".[0:1]?",
        "$x",
        "$y",
        "$x.a",
        "$y[0]?",
        "null",
        "true",
        "false",
        "0",
        "1",
        "2",
        "-1",
        "0.5",
        "\"a\"",
        "\"\"",
        "\"b\"",
        "\"a,b\"",
        "[]",
        "{}",
        "empty",
        "length",
        "not",
        "tostring",
        "tonumber",
        "type",
        "keys",
        "9007199254740993",
        ".a.b.a",
        "{a}",
        "{$x}",
        "{\"a\"}",
        "has(\"a\")",
        "has(0)",
        "\"\\u00e4\\n\"",
        "1000000000000",
        "100.25",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(4, 24, 3, |inner| {
        let pair = (inner.clone(), inner.clone());
        let operator = prop::sample::select(vec![
            "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or", "//", "|", "+", "|",
        ]);
        prop_oneof![
            4 => (pair.clone(), operator).prop_map(|((left, right), op)| format!("({left} {op} {right})")),
            1 => inner.clone().prop_map(|inner| format!("(-{inner})")),
            1 => inner.clone().prop_map(|inner| format!("[{inner}]")),
            1 => pair.clone().prop_map(|(left, right)| format!("[{left}, {right}]")),
            1 => pair.clone().prop_map(|(left, right)| format!("{{a: {left}, b: ({right})}}")),
            1 => pair.clone().prop_map(|(left, right)| format!("{{({left}): {right}}}")),
            1 => pair.clone().prop_map(|(left, right)| format!("\"x\\({left}) \\({right})\"")),
            1 => pair.clone().prop_map(|(left, right)| format!("({left} | has({right}))")),
            1 => pair.clone().prop_map(|(left, right)| format!("({left})[{right}]")),
            1 => pair.clone().prop_map(|(left, right)| format!("({left})[{right}]?.a")),
            1 => (pair, inner.clone()).prop_map(|((l, r), c)| format!("({l})[{r}:{c}]?")),
            1 => (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(c, t, e)| format!("(if {c} then {t} else {e} end)")),
            1 => (inner.clone(), inner.clone(), inner)
                .prop_map(|(c, t, e)| format!("(if {c} then {t} elif {e} then 1 end)")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    /// Errors are errors, and the same values the same, digit by digit.
    #[test]
    fn native_is_as_guarded(text in texts(), input in values(), x in values(), y in values()) {
        let variables = json!({"x": x, "y": y});
        let expression = Expression::parse(&text, &["x", "y"]).unwrap();
        prop_assume!(expression.is_native());
        let native = outcome(run(&expression, &input, &Object(&variables)));
        let jaq = outcome(guarded(&text, &input, &variables));
        // jaq goes through an index that a path does not get to, and may meet a limit there.
        prop_assume!(jaq != Err(false) || native == jaq);
        prop_assert_eq!(format!("{native:?}"), format!("{jaq:?}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn native_is_as_the_original(text in texts(), input in values(), x in values(), y in values()) {
        let variables = json!({"x": x, "y": y});
        let expression = Expression::parse(&text, &["x", "y"]).unwrap();
        prop_assume!(expression.is_native());
        let native = outcome(run(&expression, &input, &Object(&variables)));
        // The original has no limits, and ends the process for want of memory.
        prop_assume!(outcome(guarded(&text, &input, &variables)) != Err(false));
        // The original has keys that are not strings, and no output for no number.
        prop_assume!(!text.contains("{(") && !text.contains("tonumber"));
        // Its `length` of the lowest number overflows.
        prop_assume!(!text.contains("length") || !format!("{input}{variables}").contains("-9223372036854775808"));
        let jaq = original(&text, &input, &variables);
        prop_assert_eq!(format!("{native:?}"), format!("{jaq:?}"));
    }
}
