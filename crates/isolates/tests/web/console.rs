//! `console`: lines of a log as Node.js writes them.

use edgefaas_isolates::LogLevel;

use super::answer;
use crate::support::Bench;

async fn logged(body: &str) -> Vec<(LogLevel, String)> {
    let bench = Bench::new();
    answer(&bench, &format!("{body}\nreturn 1;")).await;
    bench.record().logs
}

async fn lines(body: &str) -> Vec<String> {
    logged(body).await.into_iter().map(|(_, line)| line).collect()
}

#[tokio::test]
async fn formats_take_the_values_that_follow() {
    let seen = lines(
        r#"
        const circular = {};
        circular.self = circular;
        console.log("%s is %d, %i and %f", "x", "42", 42.9, "1.5abc", "more", { a: 1 });
        console.log("%j %j", { a: [1] }, circular);
        console.log("%o", [{ a: 1 }]);
        console.log("%O", { a: { b: { c: { d: 1 } } } });
        console.log("%cred%c 100%% %s", "color: red", "", "sure");
        console.log("%s %s %s %s", 1n, -0, Symbol("s"), { a: { b: 1 } });
        console.log("%d %d %s", {}, 5n);
        console.log("100%", "%s", "%x");
        console.log("one %% alone");
        console.log("%s", new Date(0), class { toString() { return "own"; } }.prototype);
        console.log("\u001b[31mred\u001b[0m");
        "#,
    )
    .await;
    assert_eq!(
        seen,
        [
            "x is 42, 42 and 1.5 more { a: 1 }",
            "{\"a\":[1]} [Circular]",
            "[ { a: 1 }, [length]: 1 ]",
            "{ a: { b: { c: [Object] } } }",
            "red 100% sure",
            "1n -0 Symbol(s) { a: [Object] }",
            "NaN 5n %s",
            "100% %s %x",
            "one %% alone",
            "1970-01-01T00:00:00.000Z {}",
            "\u{1b}[31mred\u{1b}[0m",
        ]
    );
}

#[tokio::test]
async fn values_are_shown_to_a_depth_of_two() {
    let seen = lines(
        r#"
        class Lamp { #secret = 1; on = true; get watts() { return 5; } }
        const circular = { name: "a" };
        circular.list = [circular];
        const cause = new TypeError("no socket");
        cause.stack = "    at open (net.js:1:1)";
        const error = Object.assign(new Error("cannot send", { cause }), { code: "E1" });
        error.stack = "    at send (f.js:2:2)";
        for (const value of [
            { a: 1, "b-c": "it's", d: null, e: undefined, f: -0 }, { a: { b: { c: {}, d: [1] } } }, new Lamp(), circular,
            new Map([["k", { v: 1 }]]), new Set([1, "x"]), new Map(), [1, , "a"], [undefined, true, 2n], Object.create(null), Symbol("s"),
            function named() {}, () => {}, async function later() {}, class extends Lamp {}, new Uint8Array([1, 2]), new Uint8Array([1, 2]).buffer, /x/g, new Date(NaN), Object(1),
            Promise.resolve({ a: 1 }), new Promise(() => {}), { get a() { return 1; }, set a(value) {}, get b() { return 1; } }, new WeakMap(),
            Array.from({ length: 8 }, (_, index) => index * 1000), { long: "x".repeat(60), other: "y".repeat(30) }, new URL("http://h/p"),
            { [Symbol.for("nodejs.util.inspect.custom")]: () => "shown by itself" },
        ]) console.log(value);
        console.log(error);
        console.log([new AggregateError([cause], "many").errors.length, "text"]);
        await Promise.reject(3).catch(() => {});
        const rejected = Promise.reject(new Error("r"));
        rejected.catch(() => {});
        console.log([rejected].length, "two\nlines");
        "#,
    )
    .await;
    assert_eq!(
        seen,
        [
            "{ a: 1, 'b-c': \"it's\", d: null, e: undefined, f: -0 }",
            "{ a: { b: { c: {}, d: [Array] } } }",
            "Lamp { on: true }",
            "<ref *1> { name: 'a', list: [ [Circular *1] ] }",
            "Map(1) { 'k' => { v: 1 } }",
            "Set(2) { 1, 'x' }",
            "Map(0) {}",
            "[ 1, <1 empty item>, 'a' ]",
            "[ undefined, true, 2n ]",
            "[Object: null prototype] {}",
            "Symbol(s)",
            "[Function: named]",
            "[Function (anonymous)]",
            "[AsyncFunction: later]",
            "[class (anonymous) extends Lamp]",
            "Uint8Array(2) [ 1, 2 ]",
            "ArrayBuffer { [Uint8Contents]: <01 02>, byteLength: 2 }",
            "/x/g",
            "Invalid Date",
            "[Number: 1]",
            "Promise { { a: 1 } }",
            "Promise { <pending> }",
            "{ a: [Getter/Setter], b: [Getter] }",
            "WeakMap { <items unknown> }",
            "[\n     0, 1000, 2000,\n  3000, 4000, 5000,\n  6000, 7000\n]",
            "{\n  long: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx',\n  other: 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyy'\n}",
            "URL 'http://h/p'",
            "shown by itself",
            "Error: cannot send\n    at send (f.js:2:2) {\n  code: 'E1',\n  [cause]: TypeError: no socket\n      at open (net.js:1:1)\n}",
            "[ 1, 'text' ]",
            "1 two\nlines",
        ]
    );
}

#[tokio::test]
async fn groups_counters_timers_and_tables() {
    let seen = logged(
        r#"
        console.group("outer");
        console.warn("first\nsecond");
        console.group();
        console.log({ a: 1 });
        console.groupEnd();
        console.groupEnd();
        console.groupEnd();
        console.info("out");
        console.count(); console.count("x"); console.count(); console.countReset(); console.count(); console.countReset("none");
        console.time("t"); console.timeLog("t", { step: 1 }); console.timeEnd("t"); console.timeEnd("t");
        console.assert(true, "not shown"); console.assert(false, "%s failed", "it"); console.assert(0);
        console.dir({ a: { b: { c: 1 } } }, { depth: 0 });
        console.table([{ a: 1, b: "x" }, { a: 2, c: true }]); console.table(new Map([["k", 1]])); console.table([1], ["a"]); console.table("text");
        console.debug("fine"); console.error("bad");
        console.trace("here");
        "#,
    )
    .await;
    let lines: Vec<&str> = seen.iter().map(|(_, line)| line.as_str()).collect();
    let table = "┌─────────┬───┬─────┬──────┐\n│ (index) │ a │ b   │ c    │\n├─────────┼───┼─────┼──────┤\n\
                 │ 0       │ 1 │ 'x' │      │\n│ 1       │ 2 │     │ true │\n└─────────┴───┴─────┴──────┘";
    let map = "┌───────────────────┬─────┬────────┐\n│ (iteration index) │ Key │ Values │\n├───────────────────┼─────┼────────┤\n\
               │ 0                 │ 'k' │ 1      │\n└───────────────────┴─────┴────────┘";
    let expected = [
        (LogLevel::Info, "outer"),
        (LogLevel::Warn, "  first\n  second"),
        (LogLevel::Info, "    { a: 1 }"),
        (LogLevel::Info, "out"),
        (LogLevel::Info, "default: 1"),
        (LogLevel::Info, "x: 1"),
        (LogLevel::Info, "default: 2"),
        (LogLevel::Info, "default: 1"),
        (LogLevel::Warn, "console.countReset: there is no counter none"),
        (LogLevel::Info, "t: "),
        (LogLevel::Info, "t: "),
        (LogLevel::Warn, "console.timeEnd: there is no timer t"),
        (LogLevel::Error, "Assertion failed: it failed"),
        (LogLevel::Error, "Assertion failed"),
        (LogLevel::Info, "{ a: [Object] }"),
        (LogLevel::Info, table),
        (LogLevel::Info, map),
        (LogLevel::Info, "┌─────────┬───┬────────┐"),
        (LogLevel::Info, "text"),
        (LogLevel::Debug, "fine"),
        (LogLevel::Error, "bad"),
        (LogLevel::Trace, "Trace: here\n    at"),
    ];
    assert_eq!(seen.len(), expected.len(), "{lines:#?}");
    for ((level, line), (expected_level, start)) in seen.iter().zip(expected) {
        assert_eq!(*level, expected_level, "{line}");
        assert!(line.starts_with(start), "{line:?} does not start with {start:?}");
    }
    assert!(
        lines[9].ends_with("ms { step: 1 }") && lines[10].ends_with("ms"),
        "{} {}",
        lines[9],
        lines[10]
    );
    assert!(!lines[21].contains("edgefaas:"), "{}", lines[21]);
}

/// A value that is large in any way gives a line of bounded size, and in bounded time.
#[tokio::test]
async fn large_values_are_cut() {
    let seen = lines(
        r#"
        let deep = {};
        for (let level = 0; level < 100000; level++) deep = { deep };
        const wide = Object.fromEntries(Array.from({ length: 5000 }, (_, index) => [`k${index}`, [[1], [2], [3]]]));
        console.log(deep);
        console.dir(deep, { depth: 20000 });
        console.log(wide);
        console.log(new Array(4294967295));
        console.log(["x".repeat(100000)]);
        console.table(Array.from({ length: 5000 }, () => ({ a: 1 })));
        "#,
    )
    .await;
    assert_eq!(seen.len(), 6);
    assert_eq!(seen[0], "{ deep: { deep: { deep: [Object] } } }");
    assert_eq!(seen[3], "[ <4294967295 empty items> ]");
    assert!(
        seen.iter().all(|line| line.len() < 64 * 1024),
        "{:?}",
        seen.iter().map(String::len).collect::<Vec<_>>()
    );
}
