//! What is refused, where, and with what advice.

use serde_json::json;

use super::*;
use crate::synthesizer::rule::Kind;

/// The pointer and the message of the error.
fn refused(value: Value) -> (String, String) {
    let error = Rule::parse(&value, 2, &compile).unwrap_err();
    (error.pointer().to_owned(), error.to_string())
}

#[test]
fn what_is_wrong_and_where() {
    for (rule, pointer, message) in [
        (json!([]), "", "`events` is a list, not an object"),
        (json!({}), "", "has no condition; add one of `count`, `window`"),
        (json!({ "kount": 1 }), "/kount", "did you mean `count`?"),
        (json!({ "a/b~": 1 }), "/a~1b~0", "there are `key`, `count`"),
        (json!({ "count": 1, "silence": "1s" }), "/silence", "does not go with `/count`; a rule has one"),
        (json!({ "count": 0 }), "/count", "`/count` is 0, but must be a whole number from 1 to 10000"),
        (json!({ "count": 1.5 }), "/count", "is 1.5, but"),
        (json!({ "count": -1 }), "/count", "is -1, but"),
        (json!({ "count": "5" }), "/count", "is a text, not a number"),
        (json!({ "count": null }), "/count", "is null, not a number"),
        (json!({ "count": 5, "within": "soon" }), "/within", "a number is expected; write `200ms`"),
        (json!({ "window": {} }), "/window/every", "is missing; write `window: { every: 10s }`"),
        (json!({ "window": { "evry": "1s" } }), "/window/evry", "did you mean `every`?"),
        (json!({ "window": { "every": "0s" } }), "/window/every", "it is zero"),
        (json!({ "window": { "every": { "seconds": 0 } } }), "/window/every", "it is zero"),
        (json!({ "window": { "every": { "second": 1 } } }), "/window/every/second", "`seconds`?"),
        (json!({ "window": { "every": 10 } }), "/window/every", "is a number, not a duration such as"),
        (json!({ "window": { "every": "2s", "of": "1s" } }), "/window/of", "between the windows"),
        (json!({ "window": { "every": "1ms", "of": "1d" } }), "/window/of", "at most 10000 times"),
        (json!({ "window": { "every": "1s", "empty": 1 } }), "/window/empty", "not `true` or `false`"),
        (json!({ "window": { "every": "1s" }, "within": "1s" }), "/within", "only `count` and `all`"),
        (json!({ "rate": { "per": "1s" } }), "/rate/above", "is missing"),
        (json!({ "rate": { "above": 1 } }), "/rate/per", "is missing"),
        (json!({ "rate": { "above": 1, "below": 2, "per": "1s" } }), "/rate/below", "/rate/above"),
        (json!({ "rate": { "below": 0, "per": "1s" } }), "/rate/below", "from 1 to 1000000"),
        (json!({ "silence": "P1M" }), "/silence", "no fixed length"),
        (json!({ "all": 3 }), "/all", "is 3, but must be 2, the number of filters"),
        (json!({ "all": [{}] }), "/all", "is a list of 1, but must be 2"),
        (json!({ "all": false }), "/all", "is a boolean, not `true` or a list"),
        (json!({ "threshold": { "above": 1 } }), "/threshold/value", "is missing"),
        (json!({ "threshold": { "value": "${ .v }" } }), "/threshold/above", "is missing"),
        (json!({ "threshold": { "value": ".v", "above": 1 } }), "/threshold/value", "not of the form `${"),
        (
            json!({ "threshold": { "value": "${.v}", "above": 1, "below": 2 } }),
            "/threshold/below",
            "is 2, but must be at most 1",
        ),
        (
            json!({ "threshold": { "value": "${.v}", "below": 5, "back": 4 } }),
            "/threshold/back",
            "must be at least 5",
        ),
        (
            json!({ "threshold": { "value": "${.v}", "above": 1, "below": 1, "back": 1 } }),
            "/threshold/back",
            "remove one",
        ),
        (json!({ "queue": { "longer_than": 1 } }), "/queue/function", "is missing"),
        (json!({ "queue": { "function": "f" } }), "/queue/longer_than", "is missing"),
        (
            json!({ "queue": { "function": "", "longer_than": 1 } }),
            "/queue/function",
            "the function's name",
        ),
        (json!({ "queue": { "filter": "a/#/b", "longer_than": 1 } }), "/queue/filter", "at the end only"),
        (json!({ "queue": { "filter": "a#", "longer_than": 1 } }), "/queue/filter", "whole levels"),
        (
            json!({ "queue": { "function": "f", "filter": "a", "longer_than": 1 } }),
            "/queue/filter",
            "watches one queue",
        ),
        (
            json!({ "queue": { "function": "f", "longer_than": 1 }, "key": "${ .k }" }),
            "/key",
            "one length for all",
        ),
        (json!({ "count": 1, "limit": 5 }), "/key", "add `key` or remove `limit`"),
        (json!({ "count": 1, "limit": 0, "key": "${ .k }" }), "/limit", "from 1 to 100000"),
        (json!({ "count": 1, "key": "${ }" }), "/key", "it is empty"),
        (
            json!({ "count": 1, "key": "${ room }" }),
            "/key",
            "cannot be used: in the expression `room`, at byte 0: it is not a path",
        ),
        (json!({ "count": 1, "key": 5 }), "/key", "not an expression such as"),
    ] {
        let shown = rule.to_string();
        let (at, said) = refused(rule);
        assert_eq!(at, pointer, "{shown}: {said}");
        assert!(said.contains(message), "{shown}: {said}");
    }
    let error = Rule::parse(&json!({ "all": true }), 0, &compile).unwrap_err();
    assert!(error.to_string().contains("is over 0 filters"), "{error}");
}

#[test]
fn rules_say_what_they_need() {
    for (value, condition, ticks) in [
        (json!({ "count": 5.0 }), "count", false),
        (json!({ "count": 5, "within": "1s" }), "count", true),
        (json!({ "window": { "every": { "minutes": 1, "seconds": 30 } } }), "window", true),
        (json!({ "rate": { "above": 0, "per": "1s" } }), "rate", false),
        (json!({ "rate": { "below": 1, "per": "1s" } }), "rate", true),
        (json!({ "silence": "PT1M", "key": " ${.k} ", "limit": 1 }), "silence", true),
        (json!({ "all": 2 }), "all", false),
        (json!({ "all": [{}, {}], "within": "1h" }), "all", true),
        (json!({ "threshold": { "value": "${ .v }", "below": -1.5 } }), "threshold", false),
        (json!({ "queue": { "function": "f", "longer_than": 0 } }), "queue", false),
    ] {
        let rule = rule(value);
        assert_eq!((rule.condition(), rule.needs_ticks()), (condition, ticks), "{rule:?}");
        assert_eq!(rule.queue().is_some(), condition == "queue");
    }
    let rule = rule(json!({ "window": { "every": { "minutes": 1, "seconds": 30 } } }));
    assert!(matches!(rule.kind, Kind::Window { every_ms: 90_000, of_ms: 90_000, empty: false }));
}
