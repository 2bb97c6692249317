use edgefaas_broker::TopicFilter;
use proptest::prelude::*;

use super::*;

const FULL: &str = r##"
app = "greenhouse"

[functions.comfort]
main = "functions/comfort.js"
triggers = [
    { mqtt = "greenhouse/+/climate", qos = 0, consume = true },
    { mqtt = "orders/#", qos = 2 },
    { http = "/greenhouse/{room}", methods = ["GET", "POST"], auth = "token" },
    { cron = "*/5 * * * * *" },
]
limits = { memory = "32MiB", timeout = "1m 30s", cpu = "200ms", concurrency = 16, instances = 3, payload = "64KiB", reply = "2MB", response = "16MiB", calls = 0, log = "1KiB", queue = { capacity = 10, order = "lifo", when_full = "drop-oldest" } }
permissions = { publish = ["a/+/b/#"], call = ["average*"], objects = ["greenhouse/*"], http = ["*.example.com"], tcp = ["plc.local:502"] }
config = { target_c = 24.0, rooms = ["a", "b"], since = 2026-01-02, deep = { on = true, n = 0x10 } }
secrets = ["api_key", "other.key"]
isolation = "fresh"
retry = { attempts = 5, backoff = "200ms", max_backoff = "1m", jitter = 0.5 }

[functions.average]
main = "average"
triggers = [{ mqtt = "in/+", qos = 1, order_by = "topic" }]
limits = { queue = { when_full = "block" } }
"##;

#[test]
fn every_supported_key() {
    let manifest = Manifest::parse(FULL, "edgefaas.toml").unwrap();
    assert_eq!(manifest.app, "greenhouse");
    let comfort = &manifest.functions["comfort"];
    assert_eq!(comfort.main, "functions/comfort.js");
    assert_eq!(comfort.source_kind(), SourceKind::Script);
    assert_eq!(
        comfort.triggers,
        [
            Trigger::Mqtt {
                filter: "greenhouse/+/climate".into(),
                consume: true,
                qos: 0,
                ordered: false,
                example: None
            },
            Trigger::Mqtt {
                filter: "orders/#".into(),
                consume: false,
                qos: 2,
                ordered: false,
                example: None
            },
            Trigger::Http {
                path: "/greenhouse/{room}".into(),
                methods: vec!["GET".into(), "POST".into()],
                auth: Some(HttpAuth::Token),
                cors: Vec::new()
            },
            Trigger::Cron { schedule: "*/5 * * * * *".into() },
        ]
    );
    let (backoff, max_backoff) = (Duration::from_millis(200), Duration::from_secs(60));
    assert_eq!(comfort.retry, Retry { attempts: 5, backoff, max_backoff, jitter: 0.5 });
    let average = &manifest.functions["average"];
    assert_eq!(average.retry, Retry::default());
    assert_eq!(average.limits.queue.when_full, WhenFull::Block);
    assert_eq!(
        average.triggers,
        [Trigger::Mqtt { filter: "in/+".into(), consume: false, qos: 1, ordered: true, example: None }]
    );
    assert_eq!(
        comfort.limits,
        Limits {
            memory_bytes: 32 << 20,
            timeout: Duration::from_secs(90),
            cpu: Some(Duration::from_millis(200)),
            concurrency: 16,
            instances: 3,
            payload_bytes: 64 << 10,
            reply_bytes: 2_000_000,
            response_bytes: 16 << 20,
            calls: 0,
            log_bytes: 1024,
            queue: Queue { capacity: 10, order: QueueOrder::Lifo, when_full: WhenFull::DropOldest },
        }
    );
    assert_eq!(
        serde_json::to_value(&comfort.config).unwrap(),
        serde_json::json!({
            "target_c": 24.0, "rooms": ["a", "b"], "since": "2026-01-02", "deep": { "on": true, "n": 16 },
        })
    );
    assert_eq!(comfort.secrets, ["api_key", "other.key"]);
    assert!(comfort.permissions.allows_publish("a/1/b/c"));
    assert!(!comfort.permissions.allows_publish("a/1/c"));
    assert!(comfort.permissions.allows_call("average-2"));
    assert!(!comfort.permissions.allows_call("comfort"));
    assert!(comfort.permissions.allows_object("greenhouse/room/1"));
    assert!(!comfort.permissions.allows_object("house"));
    assert_eq!(comfort.permissions.http[0].to_string(), "*.example.com");
    assert_eq!(comfort.permissions.tcp[0].to_string(), "plc.local:502");

    let average = &manifest.functions["average"];
    assert_eq!(average.source_kind(), SourceKind::Crate);
    let queue = Queue { when_full: WhenFull::Block, ..Queue::default() };
    assert_eq!(average.limits, Limits { queue, ..Limits::default() });
    assert_eq!(average.permissions, Permissions::default());
    assert!(!average.permissions.allows_publish("a") && !average.permissions.allows_call("comfort"));
}

/// A function table with one line of interest, which is line 4.
fn with(line: &str) -> String {
    format!("app = \"a\"\n[functions.f]\nmain = \"f.js\"\n{line}\n")
}

/// Each problem as `LINE:COLUMN message / help`.
fn problems(text: &str) -> Vec<String> {
    let Err(error) = Manifest::parse(text, "edgefaas.toml") else { return Vec::new() };
    let shown = |problem: &Problem| {
        let Problem { line, column, message, help, .. } = problem;
        format!("{line}:{column} {message} / {}", help.as_deref().unwrap_or("-"))
    };
    error.problems.iter().map(shown).collect()
}

#[test]
fn bad_values_say_where_and_what_to_do() {
    for (line, expected) in [
        (
            "trigers = []",
            "4:1 unknown key `trigers` in [functions.f] / did you mean `triggers`? Known are `main`, \
             `triggers`, `limits`, `permissions`, `config`, `secrets`, `placement`, `isolation`, `retry`",
        ),
        ("triggers = 1", "4:12 `triggers` must be an array, not an integer / -"),
        (
            "triggers = [{ mqt = \"a\" }]",
            "4:13 a trigger needs one of the keys `mqtt`, `http`, `cron` and `object` / write one table \
             for each trigger, such as { mqtt = \"sensors/+\" }",
        ),
        ("triggers = [1]", "4:13 `triggers` must be a table, not an integer / -"),
        (
            "triggers = [{ mqtt = \"a\", cron = \"* * * * *\" }]",
            "4:13 a trigger cannot have both `mqtt` and `cron` / write one table for each trigger, such \
             as { mqtt = \"sensors/+\" }",
        ),
        (
            "triggers = [{ cron = \"* * * * *\", methods = [\"GET\"] }]",
            "4:35 unknown key `methods` in a trigger of the kind `cron` / known are `cron`",
        ),
        (
            "triggers = [{ mqtt = \"a/#/b\" }]",
            "4:22 `a/#/b`: the topic filter has '#' at byte 2 before its end; # is the last level or + a \
             level in between / -",
        ),
        (
            "triggers = [{ mqtt = \"a/b+\" }]",
            "4:22 `a/b+`: the topic filter has '+' at byte 3 beside other characters; a wildcard is a whole \
             level / -",
        ),
        (
            "triggers = [{ mqtt = \"$share/g/a\" }]",
            "4:22 a trigger cannot be a shared subscription / a trigger runs its function once for \
             each message; write the filter alone",
        ),
        (
            "triggers = [{ mqtt = \"$SYS/#\" }]",
            "4:22 `$SYS/#` cannot be a trigger: topics with `$` belong to the broker / of these, a \
             trigger may have filters that start with `$faas/dead/` or `$faas/events/`",
        ),
        (
            "triggers = [{ mqtt = \"$faas/+/f\" }]",
            "4:22 `$faas/+/f` cannot be a trigger: topics with `$` belong to the broker / of these, a \
             trigger may have filters that start with `$faas/dead/` or `$faas/events/`",
        ),
        ("triggers = [{ mqtt = \"a\", qos = 3 }]", "4:33 `qos` must be from 0 to 2 / it is 3 here"),
        (
            "triggers = [{ http = \"greenhouse\" }]",
            "4:22 `greenhouse` cannot be a trigger's path: it does not start with `/` / write a path \
             such as \"/greenhouse/{room}\"; /fn, /workflows, /invocations and /mqtt belong to the gateway",
        ),
        (
            "triggers = [{ http = \"/fn/x\" }]",
            "4:22 `/fn/x` cannot be a trigger's path: `/fn` belongs to the gateway / write a path such \
             as \"/greenhouse/{room}\"; /fn, /workflows, /invocations and /mqtt belong to the gateway",
        ),
        (
            "triggers = [{ http = \"/a\", methods = [\"get\"] }]",
            "4:39 `methods` cannot be `get` / did you mean `GET`? Known are `GET`, `HEAD`, `POST`, \
             `PUT`, `PATCH`, `DELETE`, `OPTIONS`, `TRACE`, `CONNECT`",
        ),
        (
            "triggers = [{ http = \"/a\", methods = [] }]",
            "4:38 `methods` is empty / name methods, or remove the key for all methods",
        ),
        (
            "triggers = [{ http = \"/a/{x}\" }, { http = \"/a/{y}\" }]",
            "4:43 `/a/{y}` conflicts with the trigger `/a/{x}` / one function answers a path and method; \
             change the path or the methods",
        ),
        (
            "triggers = [{ http = \"/a\", methods = [\"GET\"] }, { http = \"/a\" }]",
            "4:58 `/a` conflicts with the trigger `/a` / one function answers a path and method; change \
             the path or the methods",
        ),
        (
            "limits = { memory = \"32Mib\", timeout = \"soon\" }",
            "4:40 `soon` is not a duration / write a number and a unit: \"200ms\", \"2s\", \"1m 30s\"",
        ),
        ("limits = { memory = 32 }", "4:21 `memory` must be a size such as \"32MiB\", not an integer / -"),
        (
            "limits = { memory = \"lots\" }",
            "4:21 `lots` is not a size / write a number and a unit: \"512KiB\", \"32MiB\", \"1GiB\"",
        ),
        ("limits = { memory = \"0\" }", "4:21 `memory` must be from 64.0 KiB to 4.0 GiB / it is 0 B here"),
        ("limits = { response = \"0\" }", "4:23 `response` must be from 1 B to 64.0 GiB / it is 0 B here"),
        (
            "limits = { memory = \"16MiB\", response = \"17MiB\" }",
            "4:41 `limits.response` of `f.js` is 17825792 bytes, more than its `limits.memory` of 16777216 bytes / \
             `fetch` collects an answer in the memory of the function: raise `limits.memory`, or read large answers \
             piece by piece in a component",
        ),
        ("limits = { timeout = \"0s\" }", "4:22 `timeout` must be from 1ms to 1h / it is 0s here"),
        ("limits = { timeout = \"2h\" }", "4:22 `timeout` must be from 1ms to 1h / it is 2h here"),
        ("limits = { concurrency = 0 }", "4:26 `concurrency` must be from 1 to 10000 / it is 0 here"),
        (
            "limits = { concurrency = 99999999999999999999 }",
            "4:26 `concurrency` must be from 1 to 10000 / it is 99999999999999999999 here",
        ),
        (
            "limits = { queue = { capacity = -1 } }",
            "4:33 `capacity` must be from 1 to 100000 / it is -1 here",
        ),
        (
            "limits = { queue = { when_full = \"drop\" } }",
            "4:34 `when_full` cannot be `drop` / known are `reject`, `drop-oldest`, `block`",
        ),
        (
            "permissions = { publish = [\"a/#b\"] }",
            "4:28 `a/#b` in `publish`: the topic filter has '#' at byte 2 beside other characters; a \
             wildcard is a whole level / -",
        ),
        (
            "permissions = { call = [\"a?\"], object = [\"x\"] }",
            "4:25 `a?` in `call`: only `*` stands for other characters; `?`, `[]` and `{}` do not / -",
        ),
        (
            "config = { n = nan }",
            "4:16 this number has no JSON form / functions see `config` as JSON, whose numbers are \
             finite and whose whole numbers have 64 bits",
        ),
        ("secrets = [\"a\", \"a\"]", "4:17 the secret `a` is named twice / -"),
        (
            "secrets = [\"a b\"]",
            "4:12 `a b` is not a name of a secret / a secret's name has 1 to 256 of letters, digits, `_`, \
             `-` and `.`",
        ),
    ] {
        let problems = problems(&with(line));
        assert_eq!(problems.first().map(String::as_str), Some(expected), "for {line}: {problems:#?}");
    }
}

#[test]
fn bad_sources_names_and_documents() {
    for (text, expected) in [
        ("", "1:1 the manifest has no `app` / start the file with a line such as: app = \"greenhouse\""),
        (
            "app = \"A b\"\n[functions.f]\nmain = \"f.js\"",
            "1:7 `A b` is not a name / a name has 1 to 63 of a-z, 0-9, `_` and `-`, and starts with a \
             letter or a digit",
        ),
        (
            "app = \"a\"\n",
            "1:1 the manifest has no functions and no workflows / add a table such as: [functions.hello] with main = \
             \"hello.js\"",
        ),
        (
            "app = \"a\"\n[functions.F]\nmain = \"f.js\"",
            "2:12 `F` is not a name / a name has 1 to 63 of a-z, 0-9, `_` and `-`, and starts with a \
             letter or a digit",
        ),
        (
            "app = \"a\"\n[functions.f]\n",
            "2:12 the function `f` has no `main` / name a .js, .mjs or .ts file, a .wasm component or \
             the folder of a Rust crate",
        ),
        (
            "app = \"a\"\n[functions.f]\nmain = \"../f.js\"",
            "3:8 `main` leaves the app folder: `../f.js` / a function's sources are inside the folder \
             of the manifest",
        ),
        (
            "app = \"a\"\n[functions.f]\nmain = \"/f.js\"",
            "3:8 `main` cannot be `/f.js` / write a path relative to the folder of the manifest, with \
             `/`",
        ),
        (
            "app = \"a\"\n[functions.f]\nmain = \"src/lib.rs\"",
            "3:8 a .rs file cannot be a function / name the folder of the crate, the one with \
             Cargo.toml",
        ),
    ] {
        let problems = problems(text);
        assert_eq!(problems.first().map(String::as_str), Some(expected), "for {text}: {problems:#?}");
    }
}

#[test]
fn values_that_are_not_supported_are_refused_with_their_line() {
    for (line, expected) in [
        ("triggers = [{ mqtt = \"a\", order_by = \"topic\" }]", "4:38 `order_by` needs a `qos` of 1 or 2"),
        ("triggers = [{ http = \"/a\", auth = \"basic\" }]", "4:35 `auth` cannot be `basic`"),
        ("placement = \"near data\"", "4:13 `near data` cannot be the tag of a placement policy"),
        ("isolation = \"shared\"", "4:13 `isolation = \"shared\"` is not supported"),
        ("retry = { jitter = 1.5 }", "4:20 `jitter` must be a number from 0 to 1"),
        (
            "limits = { queue = { order = \"lifo\" } }\ntriggers = [{ mqtt = \"a\", qos = 1, order_by = \"topic\" }]",
            "5:13 `order_by` needs a queue whose order is `fifo`",
        ),
    ] {
        let problems = problems(&with(line));
        assert_eq!(problems.len(), 1, "for {line}: {problems:#?}");
        assert!(problems[0].starts_with(&format!("{expected} / ")), "for {line}: {problems:#?}");
    }
}

#[test]
fn workflows_are_files_and_permissions() {
    let list = Manifest::parse("app = \"a\"\nworkflows = [\"workflows/*.yaml\"]", "m").unwrap();
    assert_eq!(list.workflows.files, ["workflows/*.yaml"]);
    let text =
        "app = \"a\"\n[workflows]\nfiles = [\"a.yaml\"]\n[workflows.w.permissions]\npublish = [\"a/#\"]";
    let table = Manifest::parse(text, "m").unwrap();
    assert_eq!(table.workflows.files, ["a.yaml"]);
    assert!(table.workflows.permissions["w"].allows_publish("a/b"));
    assert!(!table.workflows.permissions["w"].allows_call("f"));
    assert!(table.workflows.order.is_empty());
    let text = "app = \"a\"\n[workflows]\nfiles = [\"a.yaml\"]\n[workflows.w]\norder_by = \"topic\"";
    let ordered = Manifest::parse(text, "m").unwrap().workflows;
    assert_eq!(ordered.order["w"], InstanceOrder { key: OrderKey::Topic, succession: Succession::Run });
    let by_room = OrderKey::Expression("${ .data.room }".into());
    for (order, key, succession) in [
        ("\"${ .data.room }\"", by_room.clone(), Succession::Run),
        ("{ key = \"${ .data.room }\", then = \"start\" }", by_room.clone(), Succession::Start),
        ("{ key = \"${ .data.room }\", then = \"run\" }", by_room, Succession::Run),
        ("{ then = \"start\" }", OrderKey::Topic, Succession::Start),
    ] {
        let ordered = Manifest::parse(&text.replace("\"topic\"", order), "m").unwrap().workflows;
        assert_eq!(ordered.order["w"], InstanceOrder { key, succession }, "{order}");
    }
    for wrong in ["\"key\"", "\".data.room\"", "{ key = 5 }", "{ then = \"end\" }", "{ by = \"topic\" }"] {
        let refused = Manifest::parse(&text.replace("\"topic\"", wrong), "m").unwrap_err().to_string();
        assert!(refused.contains("5:"), "{wrong}: {refused}");
    }
    for (text, expected) in [
        (
            "app = \"a\"\nworkflows = [\"../a.yaml\"]",
            "2:14 `../a.yaml` in `workflows`: it is not a path inside the app folder",
        ),
        ("app = \"a\"\n[workflows.w]\npermissions = {}", "2:2 `workflows` names no files"),
        ("app = \"a\"\n[workflows]\nfiles = [\"a.yaml\"]\n[workflows.W]\n", "4:12 `W` is not a name"),
        ("app = \"a\"\n[workflows]\nfiles = [\"a.yaml\"]\n[workflows.w]\nlimits = {}", "5:1 "),
    ] {
        let problems = problems(text);
        assert!(problems.iter().any(|problem| problem.starts_with(expected)), "for {text}: {problems:#?}");
    }
}

#[test]
fn everything_wrong_is_reported_at_once_and_in_order() {
    let text = "app = \"A\"\nhello = 1\n[functions.f]\nmain = 3\nlimits = { memory = 1, timeot = \"1s\" }\n\
                retry = { attempts = 0 }\n";
    let lines: Vec<String> =
        problems(text).iter().map(|problem| problem.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(lines, ["1:7", "2:1", "4:8", "5:21", "5:24", "6:22"]);
}

#[test]
fn broken_syntax_is_shown_with_its_place() {
    let problems = problems("app = \"a\napp = \"b\"\n[functions.f\nmain = \"f.js\"\n");
    assert!(problems[0].starts_with("1:"), "{problems:#?}");
    assert!(problems.iter().any(|problem| problem.starts_with("3:")), "{problems:#?}");
}

#[test]
fn the_frame_is_that_of_a_compiler() {
    let error = Manifest::parse(&with("\tisolaton = \"fresh\""), "greenhouse/edgefaas.toml").unwrap_err();
    assert_eq!(
        error.to_string(),
        "error: unknown key `isolaton` in [functions.f]\n \
         --> greenhouse/edgefaas.toml:4:2\n  \
         |\n\
         4 |  isolaton = \"fresh\"\n  \
         |  ^^^^^^^^\n  \
         = help: did you mean `isolation`? Known are `main`, `triggers`, `limits`, `permissions`, \
         `config`, `secrets`, `placement`, `isolation`, `retry`"
    );
}

#[test]
fn a_single_file_is_an_app() {
    let allow: Vec<Permission> =
        ["publish=a/\"#", "publish=b/#", "objects=*"].iter().filter_map(|text| text.parse().ok()).collect();
    assert_eq!(allow.len(), 2, "the first is not a filter");
    let manifest = Manifest::parse(&single_file("hello", "hello.js", &allow), "hello.js").unwrap();
    assert_eq!(manifest.app, "hello");
    let function = &manifest.functions["hello"];
    assert_eq!(function.main, "hello.js");
    assert_eq!(function.permissions.publish, [TopicFilter::new("b/#").unwrap()]);
    assert_eq!(function.permissions.objects, ["*"]);
    assert!(function.permissions.call.is_empty() && function.triggers.is_empty());

    assert_eq!(single_file_name("x/hello.ts".as_ref()).unwrap(), "hello");
    let error = single_file_name("My Fn.js".as_ref()).unwrap_err();
    assert!(error.to_string().contains("`My Fn`"), "{error}");
}

#[test]
fn bad_permissions_on_a_command_line() {
    for (text, expected) in [
        ("publish", "`publish` is not a permission; write KIND=PATTERN, such as publish=alerts/#"),
        (
            "publsh=a",
            "`publsh` is not a kind of permission; did you mean `publish`? Known are `publish`, `call`, \
             `objects`, `http`, `tcp`",
        ),
        (
            "http=a.example/x",
            "the pattern `a.example/x` of the permission `http` is invalid: it names more than a host; write \
             `api.example.com`, `https://api.example.com:8443` or `192.168.1.0/24`",
        ),
        (
            "tcp=plc",
            "the pattern `plc` of the permission `tcp` is invalid: it has no port; write `HOST:PORT`",
        ),
        ("call=", "the pattern `` of the permission `call` is invalid: it is empty"),
    ] {
        assert_eq!(text.parse::<Permission>().unwrap_err().to_string(), expected);
    }
}

#[test]
fn deep_and_large_input_is_refused() {
    let deep = with(&format!("config = {}1{}", "[".repeat(100_000), "]".repeat(100_000)));
    assert!(Manifest::parse(&deep, "f").is_err());
    let large = with(&format!("config = {{ a = \"{}\" }}", "x".repeat(1 << 20)));
    let error = Manifest::parse(&large, "f").unwrap_err();
    assert_eq!(error.problems[0].message, "the manifest is larger than 1 MiB");
}

/// Pieces of manifests, so that random ones get past the syntax.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        ".{0,12}",
        prop::sample::select(vec![
            "app",
            "functions",
            "[functions.f]\n",
            "main",
            "triggers",
            "mqtt",
            "http",
            "cron",
            "limits",
            "queue",
            "config",
            "permissions",
            "publish",
            "workflows",
            "retry",
            " = ",
            "{",
            "}",
            "[",
            "]",
            ",",
            "\n",
            "\"a/+\"",
            "\"/a\"",
            "\"32MiB\"",
            "\"é\"",
            "1",
            "-9e9",
            "true",
            "[[x]]",
            "\t",
            "\r\n",
            "\"\"\"",
            "2026-01-01",
            "a.b.c",
            "'",
            "#",
        ])
        .prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn parsing_never_panics(pieces in prop::collection::vec(piece(), 0..40)) {
        if let Err(error) = Manifest::parse(&pieces.concat(), "f") {
            prop_assert!(!error.problems.is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn any_value_under_any_key_is_no_panic(
        key in prop::sample::select(vec![
            "main", "triggers", "limits", "permissions", "config", "secrets", "placement", "isolation",
            "retry",
        ]),
        inner in prop::sample::select(vec![
            "mqtt", "qos", "http", "methods", "memory", "timeout", "queue", "publish", "attempts", "x",
        ]),
        value in prop::sample::select(vec![
            "1", "\"\"", "\"é\"", "[]", "[1]", "{}", "true", "1979-05-27", "nan", "0xFFFFFFFFFFFFFFFFFF",
            "\"99999999999999999999999YiB\"", "\"99999999999999999999y\"", "{ capacity = {} }",
        ]),
    ) {
        for line in [
            format!("{key} = {value}"),
            format!("{key} = {{ {inner} = {value} }}"),
            format!("{key} = [{{ {inner} = {value} }}]"),
        ] {
            let _ = Manifest::parse(&with(&line), "f").map_err(|error| error.to_string());
        }
    }

    #[test]
    fn generated_manifests_parse(name in "[a-z0-9][a-z0-9_-]{0,62}", pattern in "[ -~]{1,20}") {
        let allow: Vec<Permission> = format!("objects={pattern}").parse().into_iter().collect();
        let manifest = Manifest::parse(&single_file(&name, "f.js", &allow), "f").unwrap();
        prop_assert_eq!(manifest.app, name.clone());
        prop_assert_eq!(manifest.functions[&name].permissions.objects.len(), allow.len());
    }
}

#[test]
fn waits_double_up_to_the_longest_and_chance_shortens_them() {
    let (backoff, max_backoff) = (Duration::from_secs(1), Duration::from_secs(10));
    let retry = Retry { attempts: 9, backoff, max_backoff, jitter: 0.5 };
    let waits: Vec<_> = (1..=6).map(|attempt| retry.wait_after(attempt, 0.0).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 10, 10]);
    assert_eq!(retry.wait_after(1, 1.0), Duration::from_millis(500));
    assert_eq!(retry.wait_after(u32::MAX, 0.0), max_backoff);
}

#[test]
fn nodes_and_placement_are_read() {
    let parse = |nodes: &str| {
        let text = format!(
            "app = \"a\"\n[functions.f]\nmain = \"f.js\"\nplacement = \"near-data\"\n[nodes]\n{nodes}\n"
        );
        Manifest::parse(&text, FILE_NAME).map_err(|error| error.to_string())
    };
    let manifest =
        parse("on = 2\nlabels = [\"camera\", \"floor=2\", \"camera\"]\nzones = [\"east\"]").unwrap();
    assert_eq!(manifest.functions["f"].placement.as_deref(), Some("near-data"));
    let expected = NodeSelection {
        on: NodeCount::Count(2),
        labels: vec!["camera".into(), "floor=2".into()],
        zones: vec!["east".into()],
    };
    assert_eq!(manifest.nodes, expected);
    assert_eq!(parse("on = \"one-per-zone\"").unwrap().nodes.on, NodeCount::OnePerZone);
    assert_eq!(parse("").unwrap().nodes, NodeSelection::default());
    for (nodes, expected) in [
        ("on = 0", "`on` must be from 1 to 1024"),
        ("on = 1.5", "`on` must be a whole number, \"all\" or \"one-per-zone\", not a float"),
        ("on = []", "`on` must be a whole number, \"all\" or \"one-per-zone\", not an array"),
        ("on = \"some\"", "`on` cannot be `some`"),
        ("labels = [\"a b\"]", "`a b` is not a label"),
        ("lables = []", "unknown key `lables` in [nodes]"),
    ] {
        let error = parse(nodes).unwrap_err();
        assert!(error.contains(expected), "{nodes}: {error}");
    }
}
