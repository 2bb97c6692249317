//! `edgefaas test` with real isolates.

use std::os::unix::fs::{DirEntryExt, PermissionsExt};
use std::path::Path;
use std::process::Output;

use crate::support::{edgefaas, has, has_wasm_target, repository, skipped};

const MANIFEST: &str = r#"
app = "rooms"
workflows = ["greet.yaml"]

[functions.count]
main = "count.js"
triggers = [{ mqtt = "doors/+/opened" }, { http = "/count" }, { cron = "* * * * * *" }]
permissions = { publish = ["rooms/#"], objects = ["room-*"] }

[functions.refuse]
main = "refuse.js"
"#;

const COUNT: &str = r#"
export default async function (event, context) {
  const room = context.object("room-1").counter("visits");
  if (event.kind === "http") return new Response(`${event.method} ${event.query}`, { status: 201 });
  if (event.kind === "cron") return { due: event.scheduledTime };
  if (event.kind === "call") return { visits: await room.value() };
  await room.add();
  console.log(`opened: ${event.topic}`);
  await context.publish("rooms/visits", { visits: await room.value() }, { qos: 1 });
}
"#;

const GREET: &str = "document: { dsl: '1.0.3', namespace: default, name: greet, version: '0.1.0' }\n\
                     do:\n  - hello: { set: '${ { hello: .name } }' }\n";

fn app(folder: &Path, tests: &[(&str, &str)]) {
    let all = [
        ("edgefaas.toml", MANIFEST),
        ("count.js", COUNT),
        ("refuse.js", "export default () => { throw new Error('never'); };"),
        ("greet.yaml", GREET),
        ("node_modules/other/a.test.js", "throw new Error('not a test of the app')"),
    ];
    for (path, text) in all.iter().chain(tests) {
        std::fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
        std::fs::write(folder.join(path), text).unwrap();
    }
}

pub fn run(folder: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    let temporary = folder.join("../temporary");
    std::fs::create_dir_all(&temporary).unwrap();
    let output: Output = edgefaas(&folder.join("../data"))
        .arg("test")
        .args(args)
        .current_dir(folder)
        .env("TMPDIR", &temporary)
        .output()
        .unwrap();
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "nothing is left behind");
    assert!(!folder.join("../data/token").exists() && !folder.join(".edgefaas").exists());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

const PASSING: &str = r#"
import { assert, test } from "@edgefaas/sdk/test";
import type { TestContext } from "@edgefaas/sdk/test";

let module_state = 0;

test("messages, objects and calls", async (t: TestContext) => {
  module_state += 1;
  await t.publish("doors/north/opened", "");
  const message = await t.expectMessage("rooms/+");
  assert.deepEqual(message.json(), { visits: 1 });
  assert.equal(message.qos, 1);
  await t.idle();
  assert.equal(await t.object("room-1").get("visits"), 1);
  assert.deepEqual(await t.call("count"), { visits: 1 });
  await t.expectNoMessage("rooms/+", { within: 20 });
});

test("each test starts from the same memory, on the node of its file", async (t) => {
  assert.equal(module_state, 0);
  assert.deepEqual(await t.object("room-1").value(), { visits: 1 });
  await t.expectNoMessage("rooms/+", { within: 20 });
});

test("requests, schedules and workflows", async (t) => {
  const answer = await t.fetch("/count?floor=2", { method: "PUT", body: "x" });
  assert.equal(answer.status, 201);
  assert.equal(await answer.text(), "PUT floor=2");
  assert.deepEqual(await t.fire("count", { at: 1_800_000_000_000 }), { due: 1_800_000_000_000 });
  assert.deepEqual(await t.call("greet", { name: "Ada" }), { hello: "Ada" });
  await t.expectMessage("$faas/events/workflow/greet/workflow/completed");
  await t.expectNoMessage("+/events/workflow/+/workflow/completed", { within: 0 });
});

test("failures are errors", async (t) => {
  await assert.rejects(t.call("refuse"), /never/);
  await assert.rejects(t.call("nobody"), /there is no function `nobody`/);
  await assert.rejects(t.expectMessage("nothing/#", { within: 10 }), /no message of nothing\/# came within 10 ms/);
  await assert.rejects(t.expectNoMessage("$SYS/+", { within: 0 }), /and not all of \$SYS/);
  assert.throws(() => assert.deepEqual({ a: [1] }, { a: [2] }), /not equal/);
  assert.throws(() => assert.equal(NaN, 1));
  assert.equal(NaN, NaN);
});

test.skip("later", () => {});
"#;

#[test]
fn tests_use_the_node_as_its_clients_do() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    let second = "import { assert, test } from '@edgefaas/sdk/test';\n\
                  test('a file has a node of its own', async (t) => assert.deepEqual(await t.object('room-1').value(), {}));\n";
    app(&folder, &[("tests/rooms.test.ts", PASSING), ("tests/second.test.js", second)]);
    let (code, stdout, stderr) = run(&folder, &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("tests/rooms.test.ts\n  ok       messages, objects and calls ("), "{stdout}");
    assert!(stdout.contains("  skipped  later\n"), "{stdout}");
    assert!(stdout.ends_with("5 passed, 0 failed, 1 skipped\n"), "{stdout}");

    let (code, stdout, stderr) = run(&folder, &["--filter", "own", "--tap"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, "TAP version 14\n1..1\nok 1 - tests/second.test.js: a file has a node of its own\n");
    let (code, _, stderr) = run(&folder, &["--filter", "no such"]);
    assert!(code == Some(6) && stderr.contains("no test has such a name"), "{stderr}");
}

#[test]
fn a_failed_test_says_where_and_what_the_functions_logged() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    let tests = r#"
// A note that the engine does not get.

import { assert, test } from "@edgefaas/sdk/test";
test("counts", async (t) => {
  await t.publish("doors/north/opened", "");
  const message = await t.expectMessage("rooms/visits");
  assert.equal(message.json().visits, 2);
});
test("hangs", { timeout: 50 }, () => new Promise(() => {}));
test("works", () => {});
"#;
    app(&folder, &[("rooms.test.ts", tests)]);
    let (code, stdout, stderr) = run(&folder, &["--junit", "junit.xml"]);
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.ends_with("error: 2 of 3 tests failed\n"), "{stderr}");
    assert!(
        stdout.contains("FAILED   counts (") && stdout.contains("the values are not the same"),
        "{stdout}"
    );
    assert!(stdout.contains("expected: 2") && stdout.contains("actual:   1"), "{stdout}");
    assert!(stdout.contains("rooms.test.ts:8"), "the place: {stdout}");
    assert!(stdout.contains("info count: opened: doors/north/opened"), "the log: {stdout}");
    assert!(stdout.contains("the test did not end within 50 ms"), "{stdout}");
    assert!(stdout.ends_with("1 passed, 2 failed, 0 skipped\n"), "{stdout}");
    let junit = std::fs::read_to_string(folder.join("junit.xml")).unwrap();
    assert!(junit.contains("<testsuites tests=\"3\" failures=\"2\">"), "{junit}");

    let (code, stdout, _) = run(&folder, &["-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (code, &json["failed"], &json["tests"][0]["result"]),
        (Some(5), &2.into(), &"failed".into())
    );
}

#[test]
fn wrong_files_are_named() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    app(&folder, &[("a.test.js", "import { test } from '@edgefaas/sdk/test';\ntest('a', );\n")]);
    let (code, _, stderr) = run(&folder, &[]);
    assert_ne!(code, Some(0));
    assert!(stderr.contains("a.test.js") && stderr.contains("has no function"), "{stderr}");
    std::fs::remove_file(folder.join("a.test.js")).unwrap();
    let (code, _, stderr) = run(&folder, &[]);
    assert!(code == Some(6) && stderr.contains("tests/rooms.test.js"), "{stderr}");

    // A function cannot be deployed with the module of tests.
    let function = "import { assert } from '@edgefaas/sdk/test';\nexport default () => assert(true);\n";
    std::fs::write(folder.join("refuse.js"), function).unwrap();
    let built = edgefaas(home.path()).arg("build").current_dir(&folder).output().unwrap();
    let stderr = String::from_utf8(built.stderr).unwrap();
    assert!(stderr.contains("refuse.js imports @edgefaas/sdk/test: it is a test"), "{stderr}");
}

#[test]
fn a_test_that_computes_without_a_pause_ends_by_its_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("app");
    app(
        &folder,
        &[(
            "loop.test.js",
            "import { test } from '@edgefaas/sdk/test';\n\
             test('loops', { timeout: 200 }, () => { for (;;); });\n\
             test('comes after it', async (t) => { await t.advance('1m'); await t.idle(); });\n",
        )],
    );
    let (code, out, _) = run(&folder, &[]);
    assert_eq!(code, Some(5), "{out}");
    assert!(out.contains("did not end within 200 ms: it computes without a pause"), "{out}");
    assert!(out.contains("1 passed, 1 failed, 0 skipped"), "{out}");
}

#[test]
fn files_without_tests_and_wrong_timeouts_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("app");
    app(&folder, &[("none.test.js", "export const x = 1;")]);
    let (code, out, error) = run(&folder, &[]);
    assert_eq!(code, Some(6), "{out} {error}");
    assert!(error.contains("none.test.js has no tests") && error.contains("none of the files"), "{error}");
    // It does not hold up the others.
    let other = folder.join("other.test.js");
    std::fs::write(&other, "import { test } from '@edgefaas/sdk/test';\ntest('a', () => {});\n").unwrap();
    let (code, out, error) = run(&folder, &[]);
    assert!(code == Some(0) && out.contains("1 passed"), "{out} {error}");
    assert!(error.contains("none.test.js has no tests"), "{error}");
    std::fs::remove_file(other).unwrap();

    for timeout in ["400000", "-5", "'1s'"] {
        let text = format!(
            "import {{ test }} from '@edgefaas/sdk/test';\ntest('a', {{ timeout: {timeout} }}, () => {{}});\n"
        );
        std::fs::write(folder.join("none.test.js"), text).unwrap();
        let (code, out, error) = run(&folder, &[]);
        assert_ne!(code, Some(0), "{out}");
        assert!(error.contains("has to be 1 to 300000 ms"), "{error}");
    }
}

#[test]
fn files_of_ignored_names_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("app");
    app(
        &folder,
        &[("sub/a.test.js", "import { test } from '@edgefaas/sdk/test';\ntest('a', () => {});\n")],
    );
    for (below, what) in [("", "a named pipe"), ("sub", "a named pipe"), ("sub", "too large")] {
        let path = folder.join(below).join(".gitignore");
        match what {
            "too large" => std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap(),
            _ => assert!(has("mkfifo", &[path.to_str().unwrap()])),
        }
        let (code, out, error) = run(&folder, &[]);
        assert_eq!(code, Some(1), "{out} {error}");
        let shown = Path::new(".").join(below).join(".gitignore").display().to_string();
        assert!(error.contains(&shown) && error.contains(what), "{error}");
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(folder.join(".gitignore"), "sub\n").unwrap();
    let (code, _, error) = run(&folder, &[]);
    assert!(code == Some(6) && error.contains("has no tests"), "{error}");
}

#[test]
fn the_greenhouse_passes_its_tests() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let greenhouse = repository().join("examples/greenhouse");
    let output = edgefaas(home.path()).arg("test").arg(greenhouse).output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.ends_with("5 passed, 0 failed, 0 skipped\n"), "{stdout}");
}

#[test]
fn compiled_code_is_kept_for_the_next_run() {
    let home = tempfile::tempdir().unwrap();
    let (folder, cache) = (home.path().join("app"), home.path().join("cache"));
    app(&folder, &[("a.test.js", "import { test } from '@edgefaas/sdk/test';\ntest('runs', () => {});")]);
    let run = || {
        let mut command = edgefaas(&home.path().join("data"));
        command.args(["test"]).current_dir(&folder).env("XDG_CACHE_HOME", &cache);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    let kept = cache.join("edgefaas/tests");
    // The engine is the largest by far. Snapshots of functions depend on their configuration, of which the tests' has ports.
    let engine = || {
        let files = std::fs::read_dir(kept.join("code")).unwrap().map(|file| file.unwrap());
        let largest = files.max_by_key(|file| file.metadata().unwrap().len()).expect("compiled code");
        (largest.file_name(), largest.ino())
    };
    run();
    let mode = std::fs::metadata(kept.join("cache-key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = engine();
    run();
    assert_eq!(engine(), first);
    // A folder that cannot be used is none.
    std::fs::remove_dir_all(&cache).unwrap();
    std::fs::write(&cache, "").unwrap();
    run();
}
