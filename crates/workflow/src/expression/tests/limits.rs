use serde_json::json;

use super::*;

/// Runs `f` on a thread with the stack that a server's threads have.
fn on_a_small_stack<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(2 << 20).spawn(f).unwrap().join().unwrap()
}

fn ends(text: &str, input: Value) -> EvalError {
    match counted(text, input) {
        Ok(value) => panic!("{text} gave {}", value.to_string().chars().take(100).collect::<String>()),
        Err(error) => error,
    }
}

/// The outcome, which must be the same each time, after the same number of steps.
fn counted(text: &str, input: Value) -> Result<Value, EvalError> {
    let once = || {
        let (text, input) = (text.to_owned(), input.clone());
        on_a_small_stack(move || {
            let before = spent();
            let result = eval(&text, &input);
            (result, spent() - before)
        })
    };
    let (result, steps) = once();
    assert!(steps <= 2 * meter::STEPS, "{text} took {steps} steps");
    assert_eq!(once(), (result.clone(), steps), "{text}");
    result
}

#[test]
fn loops_end() {
    let mut wrong = Vec::new();
    for text in [
        "def f: f; f",
        "def f: f | f; f",
        "def f: f, f; f",
        "def f(x): f(x | x); f(.)",
        "def f(x): f(x + 1); f(.)",
        "def f(x): f(x | .); f(.)",
        "def f(x; y): f(y; x | y); f(.; .)",
        "null | def f: .[0] | f; path(f)",
        "null | def f(g): .a | f(g | .b); path(f(.))",
        "null | [path(recurse(.a))]",
        "def f: . as $x | [$x] | f; f",
        "def f: . as [$x] | f | $x; f",
        "def f: label $a | f; f",
        "def f: f, 1; f",
        "def f: try f catch f; f",
        "def f: (try (1 + 1) catch 2) | f; f",
        "def f: try error(1) catch f; f",
        "repeat(.)",
        "[repeat(.)]",
        "last(repeat(1))",
        "first(repeat(empty))",
        "repeat(.) | empty",
        "[range(1e12)]",
        "range(1e12) | empty",
        "range(0; 1e12; 1e-9) | empty",
        "[range(0; 1; 0)]",
        "last(range(1e12))",
        "isempty(range(1e12) | empty)",
        "any(range(1e12); false)",
        "[limit(1e12; repeat(1))]",
        "skip(1e12; repeat(1))",
        "nth(1e12; repeat(1))",
        "[range(1e6)] | [.[] as $a | .[] as $b | 1]",
        "until(false; .)",
        "0 | until(false; . + 1)",
        "[while(true; .)]",
        "while(true; .) | empty",
        "[recurse(.)]",
        "recurse(.) | empty",
        "reduce repeat(1) as $x (0; . + $x)",
        "foreach repeat(1) as $x (0; .; empty)",
        "label $out | repeat(1) | if . == 2 then break $out else empty end",
        "[range(100)] | [., ., ., ., ., .] | [combinations]",
        "[combinations(40)]",
        "[(1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2) | (1, 2)] | length",
        "repeat(.)?",
        "path(repeat(.))",
        "[paths(repeat(1))]",
        "null | def f: .a |= f; f",
        "def f: . |= f; f",
        "repeat(.) |= 1",
        "(recurse(.)) |= .",
        "walk(repeat(.) | empty)",
        "def f: reduce f as $x (0; f); f",
        "def f: [f]; f",
        "def f: {a: f}; f",
        "def f: \"\\(f)\"; f",
        "def f: if f then 1 else 2 end; f",
        "def f: f // f; f",
        "def f: f as $x | f; f",
        "def f: -f; f",
        "def f: .[f]; f",
        "def f: 1 + f; f",
        "def f: f + 1; f",
        "def f(g): def h: f(g); h; f(1)",
    ] {
        let input = json!([[1, 2], [3]]);
        let limit =
            |error: &EvalError| matches!(error, EvalError::Budget { .. } | EvalError::TooLarge { .. });
        // Two outputs are enough for an error.
        let error = ends(text, input.clone());
        if !limit(&error) && !matches!(error, EvalError::Several { .. }) {
            wrong.push(format!("{text}: {error:?}"));
        }
        let all = format!("[{text}] | length");
        let result = on_a_small_stack(move || eval(&all, &input));
        let all = format!("[{text}] | length");
        let Err(error) = result else {
            wrong.push(format!("{all}: {result:?}"));
            continue;
        };
        if !limit(&error) {
            wrong.push(format!("{all}: {error:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn values_do_not_grow_without_end() {
    for text in [
        "\"x\" * 1000000000000",
        "1000000000000 * \"x\"",
        "\"x\" * 1e12 | . * 1000000000000",
        "[\"x\"] | .[0] * 99999999999999",
        "reduce range(60) as $i (\"x\"; . + .)",
        "reduce range(60) as $i (1; [., .])",
        "reduce range(60) as $i (1; [., .]) | tojson",
        "reduce range(60) as $i (1; [., .]) | . == .",
        "reduce range(60) as $i (1; {a: ., b: .}) | tojson",
        "reduce range(60) as $i ([1]; . + .)",
        "reduce range(1e6) as $i (1; [.])",
        "reduce range(1e6) as $i (null; {a: .})",
        "[foreach range(60) as $i (\"x\"; . + .)]",
        "[range(100) | \"x\" * 10000000] | length",
        "[range(10000) | \"x\" * 10000000 | length] | add",
        "[limit(1000; repeat(\"xxxxxxxxxx\" * 1000000))] | join(\"\")",
        "reduce range(1e9) as $i (\"\"; . + \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\")",
        "def f: [., .] | f; f",
        "def f: (. + .) | f; \"x\" | f",
        "\"x\" * 10000000 | [., .] | tojson | [., .] | tojson",
        "[1, 2] | .[5000000000:] = [1] | .[10000000000]",
        "\"a\" * 16000000 | explode",
        "\"a\" * 16000000 | [match(\"\"; \"g\")]",
        "\"a,\" * 8000000 | split(\",\")",
        "\"a\" * 1000000 | test(\"(a*)*(a*)*(a*)*b\")",
        "\"a\" * 1000000 | gsub(\"a\"; \"bbbbbbbbbbbbbbbbbbbbbbbbb\")",
        "\"a\" * 16000000 | [.[range(1000)]?, indices(\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\")] | length",
    ] {
        let result = counted(text, Value::Null);
        // Some are only slow, and end in time with a faster machine, or are errors of jq's.
        if let Ok(value) = &result {
            assert!(value.to_string().len() < 1_000, "{text} gave much");
        }
        if text.starts_with("reduce range(60)")
            || text.starts_with("\"x\" * 1000000000000")
            || text.starts_with("1000")
        {
            assert!(
                matches!(result, Err(EvalError::Budget { .. } | EvalError::TooLarge { .. })),
                "{text}: {result:?}"
            );
        }
    }
}

#[test]
fn native_values_do_not_grow_without_end() {
    let mut doubled = "[1, 2]".to_owned();
    for _ in 0..60 {
        doubled.push_str(" | [., .]");
    }
    for text in [
        doubled,
        format!("\"x\"{}", " | . + .".repeat(60)),
        format!("\"x\"{}", " | \"\\(.)\\(.)\"".repeat(60)),
        format!("[1]{}", " | . + .".repeat(60)),
        "\"x\" * 1000000000000".into(),
        "1000000000000 * \"x\"".into(),
    ] {
        assert!(Expression::parse(&text, &[]).unwrap().is_native(), "{text}");
        let error = ends(&text, Value::Null);
        let limit = matches!(error, EvalError::TooLarge { .. } | EvalError::Budget { .. });
        assert!(limit, "{text}: {error:?}");
    }
}

#[test]
fn the_stack_is_enough() {
    for text in ["[recurse(if . < 100000 then . + 1 else empty end)]", "def f: 1 + f; f", "def f: [f]; f"] {
        let error = ends(text, json!(0));
        assert!(matches!(error, EvalError::Budget { .. }), "{text}: {error:?}");
    }
    // Two hundred levels are fine, and more if the last thing that a function does is to call itself.
    assert_eq!(eval("def f: if . > 0 then . - 1 | 1 + f else 0 end; f", &json!(200)), Ok(json!(200)));
    assert_eq!(
        eval("[recurse(if . < 2000 then . + 1 else empty end)] | length", &json!(0)),
        Ok(json!(2001))
    );
    assert_eq!(eval("[while(. > 0; . - 1)] | length", &json!(2000)), Ok(json!(2000)));
    assert_eq!(eval("until(. > 5000; . + 1)", &json!(0)), Ok(json!(5001)));
}

#[test]
fn deep_inputs() {
    let deep = |levels: usize| (0..levels).fold(json!(1), |inner, _| Value::Array(vec![inner]));
    for text in [
        ".",
        "[.]",
        ". == .",
        "tostring",
        "{a: .}",
        "\"\\(.)\"",
        ". + .",
        ". - .",
        ".[0]",
        "[..]",
        "tojson",
        "map(.)",
        ".[0][0]",
        "-.",
        ". + 1",
        ".a",
        "flatten",
        "walk(.)",
        "sort",
        "error",
        "try error catch .",
    ] {
        let expression = Expression::parse(text, &[]).unwrap();
        on_a_small_stack(move || {
            let input = deep(10_000);
            let result = run(&expression, &input, &());
            // What it gives as an error matters less than that it ends.
            assert!(result.is_err(), "{text}");
        });
    }
    assert_eq!(eval(".[0][0] | type", &deep(200)), Ok(json!("array")));
    assert_eq!(eval("[..] | length", &deep(200)), Ok(json!(201)));
}

#[test]
fn large_and_deep_texts() {
    let wrong =
        |text: String| on_a_small_stack(move || Expression::parse(&text, &[]).map(|_| ()).unwrap_err());
    for (open, close) in [("(", ")"), ("[", "]"), ("{a:", "}"), ("\"\\(", ")\""), (".[", "]")] {
        for levels in [70, 1_000, 10_000] {
            let text = format!("{}1{}", open.repeat(levels), close.repeat(levels));
            let error = wrong(text);
            assert!(
                error.message.contains("within each other") || error.message.contains("of at most"),
                "{error}"
            );
            wrong(open.repeat(levels));
        }
    }
    for (unit, end) in [
        ("1 + ", "1"),
        ("1 | ", "1"),
        ("-", "1"),
        ("1 as $x | ", "1"),
        ("if 1 then ", "1"),
        ("try ", "1"),
        ("def f: ", "1"),
        ("reduce ", "1"),
        ("label $x | ", "1"),
        ("1 // ", "1"),
        (". as [$a] | ", "."),
        (".a |= ", "1"),
        ("try 1 catch ", "1"),
        ("1 < ", "1"),
    ] {
        for times in [300, 2_000, 5_000] {
            let text = format!("{}{end}", unit.repeat(times));
            wrong(text);
        }
    }
    // Many, but not deep.
    for text in ["def f: 1; ".repeat(1_000) + "f", "[".to_owned() + &"{a: 1},".repeat(1_000) + "1]"] {
        on_a_small_stack(move || Expression::parse(&text, &[]).map(|_| ()).unwrap());
    }
    wrong("1 ".repeat(40_000));
    wrong(" ".repeat(70_000));
    // Long lists are fine.
    let list = format!("[{}]", vec!["1"; 3_000].join(","));
    let text = list.clone();
    let expected: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(on_a_small_stack(move || eval(&text, &Value::Null)), Ok(expected.clone()));
    let text = format!("{list} | map(.)");
    assert_eq!(on_a_small_stack(move || eval(&text, &Value::Null)), Ok(expected));
    let text = format!("[{} | . + 0] | length", vec!["1"; 3_000].join(","));
    assert_eq!(on_a_small_stack(move || eval(&text, &Value::Null)), Ok(json!(3_000)));
}

#[test]
fn large_regular_expressions() {
    for text in [
        "\"a\" | test(\"(a{1000}){1000}\")",
        "\"a\" | test(\"(\\\\pL{100}){100}\")",
        "\"a\" | test(\"a{99999999999999999999}\")",
        "\"a\" | test(\"((((a{50}){50}){50}){50}){50}\")",
        "\"a\" | test(\"(\" * 5000)",
    ] {
        let error = ends(text, Value::Null);
        assert!(matches!(error, EvalError::Failed { .. }), "{text}: {error:?}");
    }
}

/// As on a machine with many more threads than processors: most of the time each waits.
#[test]
fn a_busy_machine_counts_the_same() {
    let run = |text: &'static str| {
        let run = move || {
            let before = spent();
            let result = eval(text, &Value::Null);
            (result, spent() - before)
        };
        let threads: Vec<_> = (0..16).map(|_| std::thread::spawn(run)).collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(all.iter().all(|one| *one == all[0]), "{text}: {all:?}");
        all[0].clone()
    };
    let (result, steps) = run("[range(20000)] | map(. + 1) | add");
    assert_eq!(result, Ok(json!(200_010_000)));
    assert!(steps > meter::STEPS / 8, "{steps} steps");
    let (result, steps) = run("[repeat(1) | empty]");
    assert_eq!(result, Err(EvalError::from(meter::Stop::Steps)));
    assert!(steps <= meter::STEPS, "{steps} steps");
}

#[test]
fn sorting_ends_with_the_steps() {
    // Each comparison is of 8 MB; the list itself is short.
    let texts = "(\"x\" * 8000000) as $a | (\"x\" * 8000000) as $b | [range(1000)]";
    for by in ["sort_by", "group_by", "min_by", "unique_by"] {
        let error = ends(&format!("{texts} | {by}(if . % 2 == 0 then $a else $b end)"), Value::Null);
        assert!(matches!(error, EvalError::Budget { .. }), "{by}: {error:?}");
    }
    assert_eq!(eval("[3, 1, 2] | sort", &Value::Null), Ok(json!([1, 2, 3])));
    assert_eq!(
        eval("[{a: 2, b: 1}, {a: 1, b: 2}, {a: 2, b: 3}] | sort_by(.a, -.b)", &Value::Null),
        Ok(json!([{"a": 1, "b": 2}, {"a": 2, "b": 3}, {"a": 2, "b": 1}]))
    );
    assert_eq!(eval("[3, 1, 4, 2] | group_by(. % 2)", &Value::Null), Ok(json!([[4, 2], [3, 1]])));
    assert_eq!(
        eval("[3, 1, 2] | [min, max, (min_by(-.)), (max_by(-.))]", &Value::Null),
        Ok(json!([1, 3, 3, 1]))
    );
    assert_eq!(eval("[] | [min, max, sort, group_by(.)]", &Value::Null), Ok(json!([null, null, [], []])));
}

/// Whatever the text, parsing and evaluating end, without a panic.
mod any_text {
    use proptest::prelude::*;

    use super::*;

    fn words() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            ".",
            ".a",
            "..",
            "[",
            "]",
            "{",
            "}",
            "(",
            ")",
            "|",
            ",",
            "+",
            "-",
            "*",
            "/",
            "%",
            "==",
            "<",
            "and",
            "or",
            "not",
            "//",
            "?",
            ":",
            ";",
            "$x",
            "as",
            "def",
            "f",
            "if",
            "then",
            "elif",
            "else",
            "end",
            "try",
            "catch",
            "reduce",
            "foreach",
            "label",
            "break",
            "$out",
            "1",
            "0",
            "-1",
            "1e3",
            "\"s\"",
            "\"\\(",
            ")\"",
            "@json",
            "@base64",
            "map",
            "range",
            "repeat",
            "recurse",
            "limit",
            "first",
            "last",
            "error",
            "empty",
            "|=",
            "=",
            "+=",
            "path",
            "length",
            "keys",
            "tojson",
            "fromjson",
            "test",
            "split",
            "now",
            "todate",
            "strptime",
            "#",
            "del",
            "to_entries",
            "while",
            "until",
            "tonumber",
            "tostring",
            "implode",
            "explode",
            "sort_by",
            "min_by",
            "group_by",
            "getpath",
            "setpath",
            "paths",
            "splits",
            "sub",
            "ltrimstr",
            "bsearch",
            "indices",
            "has",
        ]);
        prop::collection::vec(word, 0..14).prop_map(|words| words.join(" "))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]
        #[test]
        fn ends(text in prop_oneof![words(), ".{0,40}"]) {
            let input = json!({"a": [1, "s", null, {"a": 2.5}]});
            if let Ok(expression) = Expression::parse(&text, &["x"]) {
                let _ = run(&expression, &input, &Object(&json!({"x": [1]})));
            }
        }
    }
}
