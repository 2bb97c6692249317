//! `t.advance` of `edgefaas test`, with real isolates.

use std::path::Path;

use crate::app_tests::run;

const MANIFEST: &str = r#"
app = "clocks"

[functions.now]
main = "now.js"
triggers = [{ http = "/now" }]

[functions.flaky]
main = "flaky.js"
triggers = [{ mqtt = "orders", qos = 1 }]
permissions = { publish = ["done"] }
retry = { attempts = 4, backoff = "5m", max_backoff = "30m" }

[functions.visit]
main = "visit.js"
triggers = [{ mqtt = "visits/+" }]
permissions = { objects = ["visit-*"] }

[functions.slow]
main = "slow.js"

[functions.waits]
main = "waits.js"
permissions = { call = ["pause"] }

[objects."visit-*"]
ttl = "2h"

[workflows]
files = ["*.yaml"]

[workflows.reminder.permissions]
publish = ["reminders/#"]

[workflows.windows.permissions]
publish = ["windows"]
"#;

const SCHEDULED: &[(&str, &str)] = &[
    (
        "edgefaas.toml",
        r#"
app = "scheduled"

[functions.daily]
main = "daily.js"
triggers = [{ cron = "0 30 7 * * *" }]
permissions = { publish = ["daily"] }

[functions.often]
main = "often.js"
triggers = [{ cron = "0 */10 * * * *" }]
permissions = { publish = ["often"] }

[workflows]
files = ["*.yaml"]

[workflows.hourly.permissions]
publish = ["hourly"]
"#,
    ),
    (
        "daily.js",
        "export default async function (event, context) {
           await context.publish('daily', { due: event.scheduledTime, now: Date.now() }, { qos: 1 });
         }",
    ),
    (
        "often.js",
        "export default (event, context) => context.publish('often', String(event.scheduledTime), { qos: 1 });",
    ),
    (
        "hourly.yaml",
        "document: { dsl: '1.0.3', namespace: default, name: hourly, version: '0.1.0' }
schedule: { every: { hours: 1 } }
do:
  - say: { call: asyncapi, with: { channel: hourly, message: { payload: '${ now | floor }' } } }
",
    ),
];

const FILES: &[(&str, &str)] = &[
    ("edgefaas.toml", MANIFEST),
    ("now.js", "export default () => Date.now();"),
    (
        "flaky.js",
        "export default async function (event, context) {
           const { ready } = event.json();
           if (Date.now() < ready) throw new Error('not yet');
           await context.publish('done', { now: Date.now() });
         }",
    ),
    (
        "visit.js",
        "export default async (event, context) => { await context.object('visit-' + event.topic.slice(7)).counter('n').add(); };",
    ),
    ("slow.js", "export default () => new Promise((done) => setTimeout(done, 6000));"),
    ("waits.js", "export default (event, context) => context.call('pause', {});"),
    (
        "pause.yaml",
        "document: { dsl: '1.0.3', namespace: default, name: pause, version: '0.1.0' }
do:
  - before: { set: { began: '${ now | floor }' } }
  - rest: { wait: { seconds: 20 } }
  - after: { set: '${ { waited: ((now | floor) - .began) } }' }
",
    ),
    (
        "reminder.yaml",
        "document: { dsl: '1.0.3', namespace: default, name: reminder, version: '0.1.0', metadata: { durable: true } }
do:
  - first: { wait: { hours: 1 } }
  - say: { call: asyncapi, with: { channel: reminders/first, message: { payload: '${ now }' } } }
  - second: { wait: { minutes: 30 } }
  - again: { call: asyncapi, with: { channel: reminders/second, message: { payload: '${ now }' } } }
",
    ),
    (
        "answer.yaml",
        "document: { dsl: '1.0.3', namespace: default, name: answer, version: '0.1.0' }
do:
  - ask:
      try:
        - hear:
            listen: { to: { one: { with: { type: mqtt.publish, subject: answers } } } }
            timeout: { after: { minutes: 10 } }
      catch:
        as: error
        do:
          - late: { set: { late: true } }
",
    ),
    (
        "windows.yaml",
        "document: { dsl: '1.0.3', namespace: default, name: windows, version: '0.1.0', metadata: { events: { window: { every: 10m } } } }
schedule: { on: { one: { with: { type: mqtt.publish, subject: readings } } } }
do:
  - say: { call: asyncapi, with: { channel: windows, message: { payload: '${ .[0].count }' } } }
",
    ),
];

/// Writes an app with a file of tests.
fn app(folder: &Path, files: &[(&str, &str)], tests: &str) {
    std::fs::create_dir_all(folder).unwrap();
    for (path, text) in files.iter().chain([&("a.test.js", tests)]) {
        std::fs::write(folder.join(path), text).unwrap();
    }
}

const WAITS: &str = r#"
import { assert, test } from "@edgefaas/sdk/test";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

test("a workflow that waits goes on when its time has come, and not before", async (t) => {
  const ended = t.call("reminder", {});
  // Between two advances time goes on by itself: a minute is longer than any pause of the machine.
  await t.advance("59m");
  await t.expectNoMessage("reminders/#", { within: 0 });
  await t.advance("2m");
  const first = await t.expectMessage("reminders/first", { within: 0 });
  await t.advance("28m");
  await t.expectNoMessage("reminders/second", { within: 0 });
  await t.advance(120_000);
  const second = await t.expectMessage("reminders/second", { within: 0 });
  const waited = Math.round((second.json() - first.json()) * 1000);
  assert.equal(waited, 30 * MINUTE, "the clock stands still while things happen");
  await ended;
});

test("several waits are over in one advance, each at its time", async (t) => {
  const began = Date.now();
  const ended = t.call("reminder", {});
  await t.advance("1d");
  const [first, second] = [await t.expectMessage("reminders/first"), await t.expectMessage("reminders/second")];
  assert.equal(Math.round((second.json() - first.json()) * 1000), 30 * MINUTE);
  assert(first.json() * 1000 >= began + HOUR && first.json() * 1000 < began + HOUR + MINUTE);
  await ended;
});

test("timeouts of tasks", async (t) => {
  const ended = t.call("answer", {});
  await t.advance("10m");
  assert.deepEqual(await ended, { late: true });
});

test("a function that waits for a workflow does not hold time up", { timeout: 60_000 }, async (t) => {
  const ended = t.call("waits");
  await t.advance("20s", { within: 15_000 });
  assert.deepEqual(await ended, { waited: 20 });
});

test("Date follows, in functions and in the test", async (t) => {
  const [here, there] = [Date.now(), await t.call("now")];
  await t.advance("36h");
  for (const [before, after] of [[here, Date.now()], [there, await t.call("now")], [here, new Date().getTime()], [here, Date.parse(Date()) + 1000]]) {
    const passed = after - before;
    assert(passed >= 36 * HOUR && passed < 36 * HOUR + 10 * MINUTE, `${passed} ms`);
  }
  assert.equal(new Date(0).toISOString(), "1970-01-01T00:00:00.000Z");
  assert(new Date() instanceof Date && Date.UTC(1970) === 0);
});

test("the next test begins at the time of the one before", async (t) => {
  const now = await (await t.fetch("/now")).json();
  assert(Math.abs(now - Date.now()) < 10 * MINUTE);
});
"#;

#[test]
fn waits_of_workflows_end_when_time_is_advanced() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    app(&folder, FILES, WAITS);
    let (code, stdout, stderr) = run(&folder, &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.ends_with("6 passed, 0 failed, 0 skipped\n"), "{stdout}");
}

const DUE: &str = r#"
import { assert, test } from "@edgefaas/sdk/test";

const MINUTE = 60_000;

test("attempts follow after the waits of `retry`", async (t) => {
  // The attempts follow after 5 and after 10 minutes, each less up to a tenth.
  const began = Date.now();
  await t.publish("orders", { ready: began + 11 * MINUTE }, { qos: 1 });
  await t.advance("11m");
  await t.expectNoMessage("done", { within: 0 });
  await t.advance("2h");
  const { now } = (await t.expectMessage("done", { within: 0 })).json();
  assert(now >= began + 13.5 * MINUTE && now < began + 16 * MINUTE, `after ${now - began} ms`);
});

test("objects are deleted when their time to live is over", async (t) => {
  await t.publish("visits/a", "");
  await t.advance("10m");
  await t.publish("visits/b", "");
  await t.advance("109m");
  assert.equal(await t.object("visit-a").get("n"), 1);
  await t.advance("2m");
  assert.deepEqual(await t.object("visit-a").value(), {});
  assert.equal(await t.object("visit-b").get("n"), 1);
  await t.advance("10m");
  assert.deepEqual(await t.object("visit-b").value(), {});
});

test("windows of events", async (t) => {
  for (let reading = 0; reading < 3; reading++) await t.publish("readings", String(reading));
  await t.advance("10m");
  const count = await t.expectMessage("windows", { where: (message) => message.json() > 0, within: 0 });
  assert.equal(count.json(), 3);
});
"#;

#[test]
fn retries_times_to_live_and_windows_come_due() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    app(&folder, FILES, DUE);
    let (code, stdout, stderr) = run(&folder, &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.ends_with("3 passed, 0 failed, 0 skipped\n"), "{stdout}");
}

const SCHEDULES: &str = r##"
import { assert, test } from "@edgefaas/sdk/test";

const DAY = 24 * 3_600_000;

async function all(t, filter) {
  const found = [];
  for (;;) {
    try {
      found.push((await t.expectMessage(filter, { within: 0 })).json());
    } catch {
      return found;
    }
  }
}

test("a daily schedule fires once a day, at its time", { timeout: 60_000 }, async (t) => {
  await t.expectNoMessage("#", { within: 0 });
  await t.advance("3d");
  const fired = await all(t, "daily");
  assert.equal(fired.length, 3);
  for (const { due, now } of fired) {
    const at = new Date(due);
    assert.deepEqual([at.getHours(), at.getMinutes(), at.getSeconds()], [7, 30, 0]);
    assert(now >= due && now < due + 60_000, `${now - due} ms late`);
  }
  assert.equal(fired[2].due - fired[0].due, 2 * DAY);
});

test("schedules fire in the order of their times, each as often as it is due", async (t) => {
  await t.advance("1h");
  const often = await all(t, "often");
  assert.equal(often.length, 6);
  assert(often.every((due, index) => index === 0 || due === often[index - 1] + 600_000), String(often));
  const hours = await all(t, "hourly");
  assert.equal(hours.length, 1);
  assert(hours[0] * 1000 > often[0] - 600_000 && hours[0] * 1000 < often[5] + 600_000);
});
"##;

#[test]
fn schedules_fire_for_the_times_that_are_advanced_over() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    app(&folder, SCHEDULED, SCHEDULES);
    let (code, stdout, stderr) = run(&folder, &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.ends_with("2 passed, 0 failed, 0 skipped\n"), "{stdout}");
}

const OFTEN: &str = r##"
import { assert, test } from "@edgefaas/sdk/test";

test("schedules whose times pass by themselves do not fire", async (t) => {
  // Longer than both schedules take.
  await t.expectNoMessage("#", { within: 1200 });
  await t.advance(0);
  await t.expectNoMessage("#", { within: 0 });
  await t.advance("1s");
  const counts = { second: 0, tenth: 0 };
  for (let left = 11; left > 0; left--) counts[(await t.expectMessage("+", { within: 0 })).topic] += 1;
  assert.deepEqual(counts, { second: 1, tenth: 10 });
  await t.expectNoMessage("#", { within: 200 });
});
"##;

#[test]
fn schedules_do_not_fire_by_themselves() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    let files = [
        (
            "edgefaas.toml",
            "app = 'often'\n[functions.second]\nmain = 'second.js'\ntriggers = [{ cron = '* * * * * *' }]\n\
             permissions = { publish = ['second'] }\n\
             [workflows]\nfiles = ['*.yaml']\n[workflows.tenth.permissions]\npublish = ['tenth']\n",
        ),
        ("second.js", "export default (event, context) => context.publish('second', '');"),
        (
            "tenth.yaml",
            "document: { dsl: '1.0.3', namespace: default, name: tenth, version: '0.1.0' }\n\
             schedule: { every: 100ms }\n\
             do:\n  - say: { call: asyncapi, with: { channel: tenth, message: { payload: x } } }\n",
        ),
    ];
    app(&folder, &files, OFTEN);
    let (code, stdout, stderr) = run(&folder, &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.ends_with("1 passed, 0 failed, 0 skipped\n"), "{stdout}");
}

const WRONG: &str = r#"
import { assert, test } from "@edgefaas/sdk/test";

test("durations", async (t) => {
  await assert.rejects(t.advance("ten minutes"), /"ten minutes" is not a duration: write a number and a unit, "200ms", "10m"/);
  await assert.rejects(t.advance("10"), /"10" is not a duration/);
  await assert.rejects(t.advance(-1), /time does not go back, by -1 ms/);
  await assert.rejects(t.advance("11y"), /at most 3660 days at once/);
  await assert.rejects(t.advance(1e300), /no duration|at most 3660 days/);
  for (const value of [undefined, null, NaN, Infinity, {}]) await assert.rejects(t.advance(value), /takes a duration such as "10m", or milliseconds/);
  const before = Date.now();
  await t.advance("0s");
  assert(Date.now() - before < 60_000);
});

test("work that does not end", { timeout: 60_000 }, async (t) => {
  const slow = t.call("slow");
  await assert.rejects(t.advance("1h", { within: 1000 }), /time stands 0s after it began to be advanced: after 1s still at work: slow/);
  await t.advance("1h", { within: 20_000 });
  await slow;
});
"#;

#[test]
fn a_wrong_duration_and_work_that_does_not_end_are_errors() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("app");
    app(&folder, FILES, WRONG);
    let (code, stdout, stderr) = run(&folder, &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.ends_with("2 passed, 0 failed, 0 skipped\n"), "{stdout}");
}
