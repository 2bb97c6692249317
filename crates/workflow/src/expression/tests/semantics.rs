use serde_json::json;

use super::*;

/// (expression, input, value)
fn table() -> Vec<(&'static str, Value, Value)> {
    vec![
        // Paths.
        (".", json!({"a": 1}), json!({"a": 1})),
        (".a.b[1]", json!({"a": {"b": [1, 2]}}), json!(2)),
        (".a.\"b c\"", json!({"a": {"b c": 3}}), json!(3)),
        (".[\"a\"]", json!({"a": 4}), json!(4)),
        (".[-1]", json!([1, 2]), json!(2)),
        (".[5]", json!([1, 2]), json!(null)),
        (".a.b.c", json!({}), json!(null)),
        (".a?", json!(1), json!(null)),
        ("[.a?]", json!(1), json!([])),
        ("{a: .b?}", json!(1), json!(null)),
        (".[1:3]", json!([0, 1, 2, 3]), json!([1, 2])),
        (".[:-1]", json!("häß"), json!("hä")),
        (".[$i]", json!([5, 6]), json!(6)),
        ("$o.k[0]", json!(null), json!("v")),
        // Numbers keep their value.
        (".n", json!({"n": 9_007_199_254_740_993_i64}), json!(9_007_199_254_740_993_i64)),
        ("{n: .n}", json!({"n": i64::MIN}), json!({"n": i64::MIN})),
        ("[.n]", json!({"n": u64::MAX}), json!([u64::MAX])),
        (
            "[.[] | . + 1]",
            json!([9_007_199_254_740_993_i64, u64::MAX - 1]),
            json!([9_007_199_254_740_994_i64, u64::MAX]),
        ),
        (". + 1", json!(u64::MAX - 1), json!(u64::MAX)),
        (". + 1 - 1", json!(u64::MAX), json!(u64::MAX)),
        ("0 / 0 < 1", json!(null), json!(true)),
        ("1 / 0", json!(null), json!(null)),
        ("7 % 3", json!(null), json!(1)),
        ("7 / 2", json!(null), json!(3.5)),
        ("-.a", json!({"a": 2}), json!(-2)),
        // Text.
        ("\"Hello \\(.x)!\"", json!({"x": "you"}), json!("Hello you!")),
        ("\"\\(.x) and \\(.y)\"", json!({"x": [1, null, "a"], "y": 1.5}), json!("[1,null,\"a\"] and 1.5")),
        (". * 3", json!("ab"), json!("ababab")),
        (". / \",\"", json!("a,b"), json!(["a", "b"])),
        ("tostring", json!({"b": 1, "a": [true]}), json!("{\"b\":1,\"a\":[true]}")),
        ("tonumber", json!("12"), json!(12)),
        // Logic.
        (".a > 30 and .b", json!({"a": 31, "b": 0}), json!(true)),
        ("not", json!(0), json!(false)),
        (".a // \"none\"", json!({"a": false}), json!("none")),
        ("empty // 1", json!(null), json!(1)),
        ("empty", json!(1), json!(null)),
        ("if . > 1 then \"big\" elif . == 1 then \"one\" end", json!(0), json!(0)),
        (
            "null < false and false < true and true < 0 and 0 < \"\" and \"\" < [] and [] < {}",
            json!(0),
            json!(true),
        ),
        ("has(\"a\")", json!({"a": null}), json!(true)),
        ("has(2)", json!([1, 2]), json!(false)),
        ("keys", json!({"b": 1, "a": 2}), json!(["a", "b"])),
        ("type", json!([]), json!("array")),
        ("length", json!("häß"), json!(3)),
        // Construction.
        ("{a, $i, \"b\": 1, (.k): .a}", json!({"a": 1, "k": "c"}), json!({"a": 1, "i": 1, "b": 1, "c": 1})),
        ("[1, .a, [2]]", json!({"a": 0}), json!([1, 0, [2]])),
        (". + {b: 2}", json!({"a": 1}), json!({"a": 1, "b": 2})),
        (". * {a: {c: 2}}", json!({"a": {"b": 1}}), json!({"a": {"b": 1, "c": 2}})),
        (". - [2]", json!([1, 2, 2, 3]), json!([1, 3])),
        // With jaq.
        ("map(.x) | add", json!([{"x": 1}, {"x": 2}]), json!(3)),
        (".a += 1", json!({"a": 1}), json!({"a": 2})),
        (".a.b |= . + 1", json!({}), json!({"a": {"b": 1}})),
        ("del(.a)", json!({"a": 1, "b": 2, "c": 3}), json!({"b": 2, "c": 3})),
        ("[.[] | select(. > 1)]", json!([1, 2, 3]), json!([2, 3])),
        ("to_entries", json!({"a": 1}), json!([{"key": "a", "value": 1}])),
        ("with_entries(.value += 1)", json!({"a": 1}), json!({"a": 2})),
        ("reduce .[] as $x (0; . + $x)", json!([1, 2, 3]), json!(6)),
        ("[foreach .[] as $x (0; . + $x)]", json!([1, 2, 3]), json!([1, 3, 6])),
        ("def f(x): x * 2; f(.)", json!(4), json!(8)),
        ("def f: if . > 3 then . else . + 1 | f end; f", json!(0), json!(4)),
        ("[limit(3; repeat(1))]", json!(null), json!([1, 1, 1])),
        ("first(range(10))", json!(null), json!(0)),
        ("[range(0; 10; 3)]", json!(null), json!([0, 3, 6, 9])),
        ("[.. | numbers]", json!([1, [2]]), json!([1, 2])),
        ("until(. > 100; . * 2)", json!(1), json!(128)),
        ("[while(. < 10; . * 2)]", json!(1), json!([1, 2, 4, 8])),
        ("[recurse(if . < 3 then . + 1 else empty end)]", json!(0), json!([0, 1, 2, 3])),
        ("try error(\"x\") catch .", json!(null), json!("x")),
        ("[.[] | try tonumber catch \"no\"]", json!(["1", "x"]), json!([1, "no"])),
        (". as [$a, {b: $c}] | $a + $c", json!([1, {"b": 2}]), json!(3)),
        ("label $out | 1, break $out", json!(null), json!(1)),
        ("sort_by(.a) | map(.a)", json!([{"a": 2}, {"a": 1}]), json!([1, 2])),
        ("group_by(. % 2) | map(length)", json!([1, 2, 3]), json!([1, 2])),
        ("[paths]", json!({"a": [1]}), json!([["a"], ["a", 0]])),
        ("getpath([\"a\", \"b\"])", json!({"a": {"b": 1}}), json!(1)),
        ("setpath([\"a\"]; 1)", json!({}), json!({"a": 1})),
        ("test(\"^r[0-9]+$\")", json!("r12"), json!(true)),
        ("capture(\"(?<a>[a-z]+)-(?<n>[0-9]+)\")", json!("xyz-14"), json!({"a": "xyz", "n": "14"})),
        ("gsub(\"a\"; \"b\")", json!("banana"), json!("bbnbnb")),
        ("[splits(\", *\")]", json!("a, b,c"), json!(["a", "b", "c"])),
        ("split(\"/\") | last", json!("a/b/c"), json!("c")),
        ("join(\"-\")", json!(["a", "b"]), json!("a-b")),
        ("ascii_downcase | ltrimstr(\"a\")", json!("ABC"), json!("bc")),
        ("@base64 | ., (. | @base64d) | select(. == \"hi\")", json!("hi"), json!("hi")),
        ("@uri", json!("a b"), json!("a%20b")),
        ("@json \"x \\(.)\"", json!([1]), json!("x [1]")),
        ("tojson | fromjson", json!({"a": [1.5, null]}), json!({"a": [1.5, null]})),
        ("now", json!(null), json!(1_000_000_000.5)),
        ("now | floor | todate", json!(null), json!("2001-09-09T01:46:40Z")),
        ("0 | localtime | mktime", json!(null), json!(0)),
        ("0 | strflocaltime(\"%H\")", json!(null), json!("00")),
        ("contains({a: [1]})", json!({"a": [1, 2]}), json!(true)),
        ("index(\"b\")", json!("abb"), json!(1)),
        ("indices(1)", json!([1, 2, 1]), json!([0, 2])),
        ("[min, max]", json!([2, 3, 1]), json!([1, 3])),
        ("unique", json!([2, 1, 2]), json!([1, 2])),
        ("flatten", json!([1, [2, [3]]]), json!([1, 2, 3])),
        ("transpose", json!([[1, 2], [3, 4]]), json!([[1, 3], [2, 4]])),
        ("walk(if type == \"number\" then . + 1 else . end)", json!([1, {"a": 2}]), json!([2, {"a": 3}])),
        ("any(. > 2)", json!([1, 3]), json!(true)),
        ("IN(1, 2)", json!(2), json!(true)),
        ("INDEX(.id)", json!([{"id": 1}]), json!({"1": {"id": 1}})),
        ("[combinations]", json!([[1, 2], [3]]), json!([[1, 3], [2, 3]])),
        ("$i + $o.n", json!(null), json!(8)),
        ("def f: $i; [1, 2] | map(. + f)", json!(null), json!([2, 3])),
    ]
}

#[test]
fn means() {
    let variables = json!({"i": 1, "o": {"k": ["v"], "n": 7}});
    for (text, input, expected) in table() {
        assert_eq!(eval_with(text, &input, &variables), Ok(expected.clone()), "{text}");
        let wrapped = format!(" ${{ {text} }} ");
        assert_eq!(eval_with(&wrapped, &input, &variables), Ok(expected), "{wrapped}");
    }
}

#[test]
fn which_are_native() {
    for native in [
        ".data.temp > 30",
        "{a: .x, b: [$item.y]}",
        "\"Hello \\(.x)\"",
        ".a[0].b?",
        "if .a then 1 else 2 end",
        ".a | length",
        "[1, 2, 3] - [1]",
        ".a // empty",
        ".[1:$item]",
    ] {
        assert!(Expression::parse(native, &["item"]).unwrap().is_native(), "{native}");
    }
    for jaq in [".[]", "map(.)", "1, 2", ". as $x | $x", "now", "try .a", "def f: 1; f"] {
        assert!(!Expression::parse(jaq, &[]).unwrap().is_native(), "{jaq}");
    }
}

#[test]
fn truth() {
    for (text, expected) in [("null", false), ("false", false), ("0", true), ("empty", false), ("[]", true)]
    {
        let expression = Expression::parse(text, &[]).unwrap();
        assert_eq!(expression.is_true(&Data::Null, &(), 0), Ok(expected), "{text}");
    }
    assert!(Expression::parse("1, 2", &[]).unwrap().is_true(&Data::Null, &(), 0).is_err());
}

#[test]
fn text_of_an_expression() {
    assert_eq!(expression_text("${ .a }"), Some(".a"));
    assert_eq!(expression_text("  ${.a}\n"), Some(".a"));
    assert_eq!(expression_text(".a"), None);
    assert_eq!(expression_text("x ${ .a }"), None);
    assert_eq!(expression_text("${ .a"), None);
    assert_eq!(expression_text("${}"), Some(""));
    let expression = Expression::parse("${ .a }", &[]).unwrap();
    assert_eq!(expression.source(), ".a");
}

#[test]
fn expressions_go_between_threads() {
    fn check<T: Send + Sync + Clone>() {}
    check::<Expression>();
    check::<Template>();
}
