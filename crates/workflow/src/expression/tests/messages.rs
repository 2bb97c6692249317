use serde_json::json;

use super::*;

fn error(text: &str) -> ExpressionError {
    match Expression::parse(text, &["context", "input"]) {
        Ok(_) => panic!("{text} is an expression"),
        Err(error) => error,
    }
}

#[test]
fn what_is_wrong_with_the_text() {
    for (text, offset, message) in [
        ("", 0, "it is empty"),
        ("${ }", 2, "it is empty"),
        (".a + ", 5, "expected term at the end"),
        ("${ .a + }", 7, "expected term at the end"),
        (".a ]", 3, "expected token here"),
        ("[1", 2, "expected closing bracket here"),
        ("\"abc", 4, "expected closing quote here"),
        ("if . then 1", 11, "expected else or end at the end"),
        (".a 1", 3, "expected nothing instead of `1`"),
        ("$contxt.a", 0, "there is no variable `$contxt` here; is it `$context`?"),
        ("${ $workflow }", 3, "there is no variable `$workflow` here; there are `$context`, `$input`"),
        ("[.[] | selct(.a)]", 7, "there is no function `selct`; is it `select`?"),
        ("lenght", 0, "there is no function `lenght`; is it `length`?"),
        ("map", 0, "function `map` takes arguments"),
        ("map(1; 2)", 0, "function `map` does not take 2 arguments"),
        ("1 | env", 4, "there is no `env`: an expression sees no environment"),
        ("$ENV.HOME", 0, "there is no `$ENV`: an expression sees no environment"),
        ("input", 0, "there is no `input`: an expression has one input, `.`"),
        ("[inputs]", 1, "there is no `inputs`: an expression has one input, `.`"),
        ("input_filename", 0, "there is no `input_filename`: an expression reads no files"),
        ("debug", 0, "there is no `debug`: an expression has no terminal"),
        ("debug(1)", 0, "there is no `debug`: an expression has no terminal"),
        ("stderr", 0, "there is no `stderr`: an expression has no terminal"),
        ("halt", 0, "there is no `halt`: `error` ends an expression"),
        ("1 | halt_error(2)", 4, "there is no `halt_error`: `error` ends an expression"),
        ("$__loc__", 0, "there is no `$__loc__`: an expression is not a file"),
        ("import \"a\" as a; .", 0, "there is no `import`: there are no modules"),
        ("include \"a\"; .", 0, "there is no `include`: there are no modules"),
        ("a::b", 0, "there is no module `a`: there are no modules"),
        ("break $out", 6, "there is no `label $out` around this `break`"),
        ("debug_empty", 0, "there is no function `debug_empty`"),
        ("stderr_empty", 0, "there is no function `stderr_empty`"),
    ] {
        let error = error(text);
        assert_eq!((error.offset, error.message.as_str()), (offset, message), "{text}");
        assert_eq!(error.text, text);
    }
}

#[test]
fn a_whole_message() {
    assert_eq!(
        error("${ $contxt.a }").to_string(),
        "in the expression `${ $contxt.a }`, at byte 3: there is no variable `$contxt` here; is it `$context`?",
    );
    let long = format!("{} + $nope", vec!["1"; 40].join(" + "));
    let message = error(&long).to_string();
    assert!(message.contains("`…1 + 1") && message.contains("$nope"), "{message}");
}

#[test]
fn what_went_wrong() {
    for (text, input, message) in [
        (".a.b", json!({"a": 1}), "`.a.b`: cannot index 1 with \"b\""),
        (".[0]", json!("x"), "`.[0]`: cannot index \"x\" with 0"),
        ("1 + .", json!("x"), "`1 + .`: cannot calculate 1 + \"x\""),
        ("1 % 0", json!(null), "`1 % 0`: cannot calculate 1 % 0"),
        ("-.", json!([]), "`-.`: cannot use [] as number"),
        ("{(.): 1}", json!(1), "`{(.): 1}`: cannot use 1 as object key, which is a string"),
        ("tonumber", json!("x"), "`tonumber`: \"x\" is not JSON: expected value at line 1 column 1"),
        ("length", json!(true), "`length`: true has no length"),
        ("error(\"no\")", json!(null), "`error(\"no\")`: no"),
        ("error({a: 1})", json!(null), "`error({a: 1})`: {\"a\":1}"),
        ("[.[] | .a]", json!([1]), "`[.[] | .a]`: cannot index 1 with \"a\""),
        (
            "1, 2",
            json!(null),
            "`1, 2` has several values, and one is wanted; put `[` and `]` around it for an array",
        ),
    ] {
        assert_eq!(eval(text, &input).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn messages_show_little_of_the_data() {
    let secret = "s".repeat(100_000);
    let input = json!({"s": secret, "o": {"k": [secret]}, "m": {secret.as_str(): 1}});
    for text in [
        ".s.a",
        ".s + 1",
        ".o + 1",
        "-.o",
        "{(.o): 1}",
        ".s | tonumber",
        "error(.s)",
        "error(.o)",
        "error",
        ".[.s] | .a.b | error",
        ".s | fromjson",
        "[.s[]]",
        ".m | error",
        ".s | strptime(\"%Y\")",
        ".s | todate",
        ".s | test(\"(\")",
        ".s as $s | test($s)",
        ". as $i | \"x\" | test($i.s)",
        "[.s] | implode",
        ".s | @base64d",
        ".s | .[.] = 1",
        ".o[.s:]",
        "\"\" | test(\"\"; \"q\")",
        "def f: .s | error; f",
    ] {
        let message = eval(text, &input).map_err(|error| error.to_string());
        let Err(message) = message else { continue };
        let shown = message.matches('s').count();
        assert!(
            shown <= 120 && message.len() < 320,
            "{text}: {} bytes, {shown} of the secret",
            message.len()
        );
    }
}
