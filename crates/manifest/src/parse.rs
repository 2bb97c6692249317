//! From the text of a manifest to [`Manifest`].

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use edgefaas_broker::TopicFilter;
use edgefaas_broker::topic::validate_filter;
use toml::de::DeTable;

use super::check::{
    NAME_RULE, NODE_TRIGGERS, glob_error, http_path_error, is_asset_name, is_name, is_secret_name,
};
use super::cors::CorsOrigin;
use super::cron::parse_cron;
use super::diagnostic::{ManifestError, Problems};
use super::nodes::{nodes, placement};
use super::object_class::{ObjectClass, ObjectDurability, Origin, Recovery};
use super::permissions::{PermissionKind, Permissions};
use super::reader::{Item, Table};
use super::{
    Function, HttpAuth, InstanceOrder, Limits, Manifest, OrderKey, Queue, QueueOrder, Retry, SourceKind,
    Succession, Trigger, WhenFull, Workflows, source_kind,
};

/// A larger text is refused.
const MAX_MANIFEST_BYTES: usize = 1 << 20;

const MEMORY_BYTES: RangeInclusive<u64> = 64 << 10..=4 << 30;
const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);
const BACKOFF: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(24 * 3600);
/// Half of the control API's message limit, so that a deployed function can be invoked with it.
const BODY_BYTES: RangeInclusive<u64> = 1..=32 << 20;
/// One answer of another server.
const RESPONSE_BYTES: RangeInclusive<u64> = 1..=64 << 30;
const CALLS: RangeInclusive<u32> = 0..=100_000;
const LOG_BYTES: RangeInclusive<u64> = 0..=16 << 20;
const CONCURRENCY: RangeInclusive<u32> = 1..=10_000;
const QUEUE_CAPACITY: RangeInclusive<u32> = 1..=100_000;
const ATTEMPTS: RangeInclusive<u32> = 1..=1000;

const OBJECT_INTERVAL: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const OBJECT_TTL: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3650 * 86_400);
const COPIES: RangeInclusive<u32> = 1..=16;
/// A message about an object to another node has at most 16 MiB.
const QUOTA_BYTES: RangeInclusive<u64> = 1024..=15 << 20;

const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"];
/// Extensions of common sources that are not functions.
const OTHER_SOURCES: [&str; 13] =
    ["rs", "jsx", "tsx", "cjs", "cts", "mts", "py", "go", "c", "cpp", "rb", "wat", "json"];

pub(super) fn manifest(text: &str, file: &str) -> Result<Manifest, ManifestError> {
    let mut problems = Problems::default();
    if text.len() > MAX_MANIFEST_BYTES {
        let help = "keep data out of `config`; functions can read it from objects";
        problems.add(&(0..0), "the manifest is larger than 1 MiB".into(), Some(help.into()));
        return Err(problems.into_error(file, "").expect("a problem was added"));
    }
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let message = error.message().trim().replace('\n', ", ");
        problems.add(&error.span().unwrap_or(0..0), message, None);
    }
    // The recovered part of an invalid syntax would only add false errors.
    let manifest = if errors.is_empty() { app(document.get_ref(), &mut problems) } else { None };
    match (problems.into_error(file, text), manifest) {
        (None, Some(manifest)) => Ok(manifest),
        (Some(error), _) => Err(error),
        (None, None) => unreachable!("a missing part was reported"),
    }
}

fn app(document: &DeTable<'_>, problems: &mut Problems) -> Option<Manifest> {
    let known = ["app", "functions", "workflows", "assets", "objects", "nodes"];
    let top = Table::new(document, "in the manifest", &known, problems);
    let app = match top.get("app") {
        Some(item) => item.text(problems).and_then(|name| checked_name(name, &item.span, problems)),
        None => {
            let help = "start the file with a line such as: app = \"greenhouse\"";
            problems.add(&(0..0), "the manifest has no `app`".into(), Some(help.into()));
            None
        }
    };
    let assets = top.get("assets").map(|item| assets(&item, problems)).unwrap_or_default();
    let workflows = top.get("workflows").map(|item| workflows(&item, problems)).unwrap_or_default();
    let objects = top.get("objects").map(|item| objects(&item, problems)).unwrap_or_default();
    let nodes = top.get("nodes").map(|item| nodes(&item, problems)).unwrap_or_default();
    let mut functions = BTreeMap::new();
    let found = top.get("functions").map(|item| item.entries(problems));
    if found.as_ref().is_none_or(Vec::is_empty) && workflows.files.is_empty() {
        let help = "add a table such as: [functions.hello] with main = \"hello.js\"";
        let span = top.get("functions").map_or(0..0, |item| item.key_span);
        problems.add(&span, "the manifest has no functions and no workflows".into(), Some(help.into()));
    }
    let mut paths = HttpPaths::default();
    for item in found.unwrap_or_default() {
        let name = checked_name(item.key, &item.key_span, problems);
        if let (Some(name), Some(function)) = (name, function(&item, &mut paths, problems)) {
            functions.insert(name, function);
        }
    }
    Some(Manifest { app: app?, functions, workflows, assets, objects, nodes })
}

fn checked_name(name: &str, span: &std::ops::Range<usize>, problems: &mut Problems) -> Option<String> {
    if is_name(name) {
        return Some(name.to_owned());
    }
    problems.add(span, format!("`{name}` is not a name"), Some(NAME_RULE.into()));
    None
}

fn function(item: &Item<'_>, paths: &mut HttpPaths, problems: &mut Problems) -> Option<Function> {
    const KNOWN: [&str; 9] = [
        "main",
        "triggers",
        "limits",
        "permissions",
        "config",
        "secrets",
        "placement",
        "isolation",
        "retry",
    ];
    let context = format!("in [functions.{}]", item.key);
    let table = item.table(&context, &KNOWN, problems)?;

    let main = match table.get("main") {
        Some(item) => main(&item, problems),
        None => {
            let help = "name a .js, .mjs or .ts file, a .wasm component or the folder of a Rust crate";
            let message = format!("the function `{}` has no `main`", item.key);
            problems.add(&item.key_span, message, Some(help.into()));
            None
        }
    };
    let triggers = table.get("triggers").map(|item| item.items(problems)).unwrap_or_default();
    let triggers: Vec<_> = triggers.iter().filter_map(|item| trigger(item, paths, problems)).collect();
    let limits = table.get("limits").map(|item| limits(&item, problems)).unwrap_or_default();
    if let Some(main) = main.as_deref().filter(|main| source_kind(main) == SourceKind::Script) {
        check_response_limit(&table, main, &limits, problems);
    }
    let permissions = table.get("permissions").map(|item| permissions(&item, problems)).unwrap_or_default();
    let config = table.get("config").map(|item| config(&item, problems)).unwrap_or_default();
    let secrets = table.get("secrets").map(|item| secrets(&item, problems)).unwrap_or_default();

    let placement = table.get("placement").and_then(|item| placement(&item, problems));
    let mut reuse = false;
    if let Some(item) = table.get("isolation") {
        match item.word(&["fresh", "reuse", "shared"], problems) {
            Some("reuse") => reuse = true,
            Some("shared") => {
                let message = "`isolation = \"shared\"` is not supported".into();
                let help = "one failure would end the other invocations: write \"reuse\" for one invocation after another";
                problems.add(&item.span, message, Some(help.into()));
            }
            _ => {}
        }
    }
    let retry = table.get("retry").map(|item| retry(&item, problems)).unwrap_or_default();
    if limits.queue.order == QueueOrder::Lifo
        && let Some(ordered) = table
            .get("triggers")
            .and_then(|item| item.items(problems).into_iter().find(|t| t.has("order_by")))
    {
        let help = "`queue.order = \"lifo\"` takes the newest first; remove one of the two";
        let message = "`order_by` needs a queue whose order is `fifo`".into();
        problems.add(&ordered.span, message, Some(help.into()));
    }
    Some(Function { main: main?, triggers, limits, permissions, reuse, retry, config, secrets, placement })
}

fn retry(item: &Item<'_>, problems: &mut Problems) -> Retry {
    const KNOWN: [&str; 4] = ["attempts", "backoff", "max_backoff", "jitter"];
    let mut retry = Retry::default();
    let Some(table) = item.table("in `retry`", &KNOWN, problems) else { return retry };
    if let Some(attempts) = table.get("attempts").and_then(|item| item.count(ATTEMPTS, problems)) {
        retry.attempts = attempts;
    }
    if let Some(backoff) = table.get("backoff").and_then(|item| item.duration(BACKOFF, problems)) {
        retry.backoff = backoff;
    }
    if let Some(longest) = table.get("max_backoff").and_then(|item| item.duration(BACKOFF, problems)) {
        retry.max_backoff = longest;
    }
    if let Some(item) = table.get("jitter")
        && let Some(jitter) = item.json(problems)
    {
        match jitter.as_f64().filter(|jitter| (0.0..=1.0).contains(jitter)) {
            Some(jitter) => retry.jitter = jitter,
            None => problems.add(&item.span, "`jitter` must be a number from 0 to 1".into(), None),
        }
    }
    retry
}

fn main(item: &Item<'_>, problems: &mut Problems) -> Option<String> {
    let path = item.text(problems)?;
    let mut refuse = |message: String, help: &str| {
        problems.add(&item.span, message, Some(help.into()));
        None
    };
    if path.is_empty() || path.contains(['\\', '\0']) || path.starts_with('/') {
        let help = "write a path relative to the folder of the manifest, with `/`";
        return refuse(format!("`main` cannot be `{}`", path.escape_debug()), help);
    }
    if path.split('/').any(|part| part == "..") {
        let help = "a function's sources are inside the folder of the manifest";
        return refuse(format!("`main` leaves the app folder: `{path}`"), help);
    }
    let extension = path.rsplit_once('.').map(|(_, extension)| extension).unwrap_or_default();
    if source_kind(path) == SourceKind::Crate && OTHER_SOURCES.contains(&extension) {
        let help = match extension {
            "rs" => "name the folder of the crate, the one with Cargo.toml",
            "cjs" | "cts" | "mts" => "write it as an ES module with the extension .js, .mjs or .ts",
            _ => "name a .js, .mjs or .ts file, a .wasm component or the folder of a Rust crate",
        };
        return refuse(format!("a .{extension} file cannot be a function"), help);
    }
    Some(path.to_owned())
}

fn trigger(item: &Item<'_>, paths: &mut HttpPaths, problems: &mut Problems) -> Option<Trigger> {
    const KINDS: [(&str, &[&str]); 4] = [
        ("mqtt", &["mqtt", "qos", "consume", "order_by", "example"]),
        ("http", &["http", "methods", "auth", "cors"]),
        ("cron", &["cron"]),
        ("object", &["object", "field", "origin"]),
    ];
    let all = KINDS.map(|(_, keys)| keys).concat();
    let kinds: Vec<_> = KINDS.iter().filter(|(kind, _)| item.has(kind)).collect();
    let &[(kind, known)] = kinds.as_slice() else {
        let message = match kinds.as_slice() {
            [(first, _), (second, _), ..] => {
                format!("a trigger cannot have both `{first}` and `{second}`")
            }
            _ => "a trigger needs one of the keys `mqtt`, `http`, `cron` and `object`".to_owned(),
        };
        if item.table("in a trigger", &all, problems).is_some() {
            let help = "write one table for each trigger, such as { mqtt = \"sensors/+\" }";
            problems.add(&item.span, message, Some(help.into()));
        }
        return None;
    };
    let table = item.table(&format!("in a trigger of the kind `{kind}`"), known, problems)?;
    let main = table.get(kind)?;
    match *kind {
        "mqtt" => mqtt_trigger(&main, &table, problems),
        "http" => http_trigger(&main, &table, paths, problems),
        "cron" => {
            let schedule = main.text(problems)?;
            if let Err(error) = parse_cron(schedule) {
                let help = "write five fields (minute hour day month weekday), or six with seconds first, such as \"*/5 * * * *\"";
                let message = format!("`{schedule}` is not a cron schedule: {error}");
                problems.add(&main.span, message, Some(help.into()));
                return None;
            }
            Some(Trigger::Cron { schedule: schedule.to_owned() })
        }
        _ => object_trigger(&main, &table, problems),
    }
}

fn object_trigger(main: &Item<'_>, table: &Table<'_>, problems: &mut Problems) -> Option<Trigger> {
    let origin =
        table.get("origin").and_then(|item| match item.word(&["any", "local", "remote"], problems)? {
            "local" => Some(Origin::Local),
            "remote" => Some(Origin::Remote),
            _ => None,
        });
    let field = table.get("field").and_then(|item| object_pattern(&item, problems));
    Some(Trigger::Object { object: object_pattern(main, problems)?, field, origin })
}

fn object_pattern(item: &Item<'_>, problems: &mut Problems) -> Option<String> {
    let pattern = item.text(problems)?;
    match glob_error(pattern) {
        None => Some(pattern.to_owned()),
        Some(reason) => {
            problems.add(
                &item.span,
                format!("`{}` is not a pattern: {reason}", pattern.escape_debug()),
                None,
            );
            None
        }
    }
}

fn mqtt_trigger(main: &Item<'_>, table: &Table<'_>, problems: &mut Problems) -> Option<Trigger> {
    let qos = table.get("qos").and_then(|item| item.count(0..=2, problems)).unwrap_or(0) as u8;
    let ordered = table.get("order_by").is_some_and(|item| item.word(&["topic"], problems).is_some());
    if let Some(item) = table.get("order_by")
        && ordered
        && qos == 0
    {
        let help = "add `qos = 1`: messages are ordered on the disk, which does not store QoS 0";
        problems.add(&item.span, "`order_by` needs a `qos` of 1 or 2".into(), Some(help.into()));
    }
    let example = table.get("example").and_then(|item| item.text(problems)).map(str::to_owned);
    let consume = table.get("consume").and_then(|item| item.boolean(problems)).unwrap_or(false);
    let filter = main.text(problems)?;
    if let Err(error) = validate_filter(filter) {
        problems.add(&main.span, format!("`{filter}`: {error}"), None);
        return None;
    }
    if filter.starts_with("$share/") {
        let help = "a trigger runs its function once for each message; write the filter alone";
        problems.add(&main.span, "a trigger cannot be a shared subscription".into(), Some(help.into()));
        return None;
    }
    if filter.starts_with('$') && !NODE_TRIGGERS.iter().any(|prefix| filter.starts_with(prefix)) {
        let message = format!("`{filter}` cannot be a trigger: topics with `$` belong to the broker");
        let [dead_letters, events] = NODE_TRIGGERS;
        let help =
            format!("of these, a trigger may have filters that start with `{dead_letters}` or `{events}`");
        problems.add(&main.span, message, Some(help));
        return None;
    }
    Some(Trigger::Mqtt { filter: filter.to_owned(), consume, qos, ordered, example })
}

fn http_trigger(
    main: &Item<'_>,
    table: &Table<'_>,
    paths: &mut HttpPaths,
    problems: &mut Problems,
) -> Option<Trigger> {
    let auth = table.get("auth").and_then(|item| item.word(&["none", "token", "jwt"], problems));
    let auth = auth.map(|auth| match auth {
        "token" => HttpAuth::Token,
        "jwt" => HttpAuth::Jwt,
        _ => HttpAuth::None,
    });
    let mut cors = Vec::new();
    for (text, span) in table.get("cors").map(|item| item.texts(problems)).unwrap_or_default() {
        match text.parse::<CorsOrigin>() {
            Ok(origin) => cors.push(origin),
            Err(error) => problems.add(&span, error.to_string(), None),
        }
    }
    let mut methods = Vec::new();
    if let Some(item) = table.get("methods") {
        let items = item.items(problems);
        if item.is_array() && items.is_empty() {
            let help = "name methods, or remove the key for all methods";
            problems.add(&item.span, "`methods` is empty".into(), Some(help.into()));
        }
        for item in items {
            let Some(method) = item.word(&METHODS, problems) else { continue };
            if !methods.iter().any(|known| known == method) {
                methods.push(method.to_owned());
            }
        }
    }
    let path = main.text(problems)?;
    if let Some(reason) = http_path_error(path) {
        let message = format!("`{path}` cannot be a trigger's path: {reason}");
        let help = "write a path such as \"/greenhouse/{room}\"; /fn, /workflows, /invocations and \
                    /mqtt belong to the gateway";
        problems.add(&main.span, message, Some(help.into()));
        return None;
    }
    paths.add(main, path, &methods, problems);
    Some(Trigger::Http { path: path.to_owned(), methods, auth, cors })
}

/// The paths of a manifest so far, to detect conflicts.
#[derive(Default)]
struct HttpPaths {
    router: matchit::Router<()>,
    methods: BTreeMap<String, Vec<String>>,
}

impl HttpPaths {
    fn add(&mut self, item: &Item<'_>, path: &str, methods: &[String], problems: &mut Problems) {
        let conflict = match self.methods.get_mut(path) {
            Some(used) => {
                let conflict = used.is_empty()
                    || methods.is_empty()
                    || methods.iter().any(|method| used.contains(method));
                used.extend_from_slice(methods);
                conflict.then(|| path.to_owned())
            }
            None => match self.router.insert(path, ()) {
                Ok(()) => {
                    self.methods.insert(path.to_owned(), methods.to_vec());
                    None
                }
                Err(matchit::InsertError::Conflict { with }) => Some(with),
                Err(_) => None,
            },
        };
        if let Some(with) = conflict {
            let message = format!("`{path}` conflicts with the trigger `{with}`");
            let help = "one function answers a path and method; change the path or the methods";
            problems.add(&item.span, message, Some(help.into()));
        }
    }
}

fn limits(item: &Item<'_>, problems: &mut Problems) -> Limits {
    const KNOWN: [&str; 11] = [
        "memory",
        "timeout",
        "cpu",
        "concurrency",
        "instances",
        "payload",
        "reply",
        "response",
        "calls",
        "log",
        "queue",
    ];
    let default = Limits::default();
    let Some(table) = item.table("in `limits`", &KNOWN, problems) else { return default };
    let mut size = |key, allowed, default| {
        table.get(key).and_then(|item| item.size(allowed, problems)).unwrap_or(default)
    };
    let memory_bytes = size("memory", MEMORY_BYTES, default.memory_bytes);
    let payload_bytes = size("payload", BODY_BYTES, default.payload_bytes);
    let reply_bytes = size("reply", BODY_BYTES, default.reply_bytes);
    let response_bytes = size("response", RESPONSE_BYTES, default.response_bytes as usize) as u64;
    let log_bytes = size("log", LOG_BYTES, default.log_bytes);
    let calls = table.get("calls").and_then(|item| item.count(CALLS, problems));
    let timeout = table.get("timeout").and_then(|item| item.duration(TIMEOUT, problems));
    let cpu = table.get("cpu").and_then(|item| item.duration(TIMEOUT, problems));
    let concurrency = table.get("concurrency").and_then(|item| item.count(CONCURRENCY, problems));
    let instances = table.get("instances").and_then(|item| item.count(CONCURRENCY, problems));
    Limits {
        memory_bytes,
        instances: instances.unwrap_or(default.instances),
        timeout: timeout.unwrap_or(default.timeout),
        cpu,
        concurrency: concurrency.unwrap_or(default.concurrency),
        payload_bytes,
        reply_bytes,
        response_bytes,
        calls: calls.unwrap_or(default.calls),
        log_bytes,
        queue: table.get("queue").map(|item| queue(&item, problems)).unwrap_or_default(),
    }
}

/// `fetch` of JavaScript collects an answer in the memory of the function.
fn check_response_limit(function: &Table<'_>, main: &str, limits: &Limits, problems: &mut Problems) {
    let table = function.get("limits").filter(|table| table.has("response"));
    let entries = table.map(|table| table.entries(problems)).unwrap_or_default();
    if let Some(item) = entries.into_iter().find(|entry| entry.key == "response")
        && limits.response_bytes > limits.memory_bytes as u64
    {
        let message = format!(
            "`limits.response` of `{main}` is {} bytes, more than its `limits.memory` of {} bytes",
            limits.response_bytes, limits.memory_bytes
        );
        let help = "`fetch` collects an answer in the memory of the function: raise `limits.memory`, or read large answers \
                    piece by piece in a component";
        problems.add(&item.span, message, Some(help.into()));
    }
}

fn queue(item: &Item<'_>, problems: &mut Problems) -> Queue {
    let mut queue = Queue::default();
    let Some(table) = item.table("in `queue`", &["capacity", "order", "when_full"], problems) else {
        return queue;
    };
    if let Some(capacity) = table.get("capacity").and_then(|item| item.count(QUEUE_CAPACITY, problems)) {
        queue.capacity = capacity;
    }
    if let Some(item) = table.get("order")
        && item.word(&["fifo", "lifo"], problems) == Some("lifo")
    {
        queue.order = QueueOrder::Lifo;
    }
    if let Some(item) = table.get("when_full") {
        match item.word(&["reject", "drop-oldest", "block"], problems) {
            Some("drop-oldest") => queue.when_full = WhenFull::DropOldest,
            Some("block") => queue.when_full = WhenFull::Block,
            _ => {}
        }
    }
    queue
}

fn permissions(item: &Item<'_>, problems: &mut Problems) -> Permissions {
    let known = ["publish", "call", "objects", "http", "tcp"];
    let Some(table) = item.table("in `permissions`", &known, problems) else {
        return Permissions::default();
    };
    let mut patterns = |kind: PermissionKind| {
        let texts = table.get(kind.as_str()).map(|item| item.texts(problems)).unwrap_or_default();
        let mut patterns = Vec::with_capacity(texts.len());
        for (pattern, span) in texts {
            match kind.pattern_error(pattern) {
                Some(reason) => problems.add(&span, format!("`{pattern}` in `{kind}`: {reason}"), None),
                None => patterns.push(pattern.to_owned()),
            }
        }
        patterns
    };
    let publish = patterns(PermissionKind::Publish).into_iter().map(TopicFilter::new);
    Permissions {
        publish: publish.filter_map(Result::ok).collect(),
        call: patterns(PermissionKind::Call),
        objects: patterns(PermissionKind::Objects),
        http: patterns(PermissionKind::Http).iter().filter_map(|pattern| pattern.parse().ok()).collect(),
        tcp: patterns(PermissionKind::Tcp).iter().filter_map(|target| target.parse().ok()).collect(),
    }
}

fn config(item: &Item<'_>, problems: &mut Problems) -> BTreeMap<String, serde_json::Value> {
    let entries = item.entries(problems);
    entries.iter().filter_map(|item| Some((item.key.to_owned(), item.json(problems)?))).collect()
}

/// Patterns of files in the app folder; `example` is one for the help.
fn file_patterns(item: &Item<'_>, key: &str, example: &str, problems: &mut Problems) -> Vec<String> {
    let mut patterns = Vec::new();
    for (pattern, span) in item.texts(problems) {
        let reason = match glob::Pattern::new(pattern) {
            Err(error) => Some(error.to_string()),
            Ok(_) if !is_asset_name(pattern) => Some("it is not a path inside the app folder".to_owned()),
            Ok(_) => None,
        };
        match reason {
            Some(reason) => {
                let help =
                    format!("name files relative to the folder of the manifest, such as \"{example}\"");
                let message = format!("`{}` in `{key}`: {reason}", pattern.escape_debug());
                problems.add(&span, message, Some(help));
            }
            None => patterns.push(pattern.to_owned()),
        }
    }
    patterns
}

fn assets(item: &Item<'_>, problems: &mut Problems) -> Vec<String> {
    file_patterns(item, "assets", "models/*.bin", problems)
}

fn secrets(item: &Item<'_>, problems: &mut Problems) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, span) in item.texts(problems) {
        if !is_secret_name(name) {
            let help = "a secret's name has 1 to 256 of letters, digits, `_`, `-` and `.`";
            problems.add(&span, format!("`{name}` is not a name of a secret"), Some(help.into()));
        } else if names.iter().any(|known| known == name) {
            problems.add(&span, format!("the secret `{name}` is named twice"), None);
        } else {
            names.push(name.to_owned());
        }
    }
    names
}

/// `[objects."room-*"]`: the class of the objects that match the pattern.
fn objects(item: &Item<'_>, problems: &mut Problems) -> BTreeMap<String, ObjectClass> {
    const KNOWN: [&str; 7] =
        ["interval", "durability", "write_interval", "copies", "quota", "recover", "ttl"];
    let mut classes = BTreeMap::new();
    for entry in item.entries(problems) {
        if let Some(reason) = glob_error(entry.key) {
            let message =
                format!("`{}` is not a pattern of object names: {reason}", entry.key.escape_debug());
            problems.add(&entry.key_span, message, None);
            continue;
        }
        let Some(table) = entry.table(&format!("in [objects.\"{}\"]", entry.key), &KNOWN, problems) else {
            continue;
        };
        let mut class = ObjectClass::default();
        let interval =
            |key: &str, problems: &mut Problems| table.get(key)?.duration(OBJECT_INTERVAL, problems);
        class.interval = interval("interval", problems).unwrap_or(class.interval);
        class.write_interval = interval("write_interval", problems).unwrap_or(class.write_interval);
        let word =
            |key: &str, known: &[&str], problems: &mut Problems| table.get(key)?.word(known, problems);
        match word("durability", &["memory", "written", "synced"], problems) {
            Some("memory") => class.durability = ObjectDurability::Memory,
            Some("synced") => class.durability = ObjectDurability::Synced,
            _ => {}
        }
        if let Some("before") = word("recover", &["before", "while"], problems) {
            class.recover = Recovery::Before;
        }
        let copies = table.get("copies").and_then(|item| item.count(COPIES, problems));
        class.copies = copies.map_or(class.copies, |copies| copies as u8);
        let quota = table.get("quota").and_then(|item| item.size(QUOTA_BYTES, problems));
        class.quota_bytes = quota.map_or(class.quota_bytes, |bytes| bytes as u64);
        class.ttl = table.get("ttl").and_then(|item| item.duration(OBJECT_TTL, problems));
        classes.insert(entry.key.to_owned(), class);
    }
    classes
}

/// `workflows = ["workflows/*.yaml"]` names the files. If a workflow needs permissions, the files are in `workflows.files`,
/// beside `[workflows.NAME]`: a key of a TOML file is a list or a table, not both.
fn workflows(item: &Item<'_>, problems: &mut Problems) -> Workflows {
    let mut workflows = Workflows::default();
    if item.is_array() {
        workflows.files = workflow_files(item, problems);
        return workflows;
    }
    for entry in item.entries(problems) {
        if entry.key == "files" {
            workflows.files = workflow_files(&entry, problems);
            continue;
        }
        let Some(name) = checked_name(entry.key, &entry.key_span, problems) else { continue };
        let context = format!("in [workflows.{}]", entry.key);
        if let Some(table) = entry.table(&context, &["permissions", "order_by"], problems) {
            let granted = table.get("permissions").map(|item| permissions(&item, problems));
            if let Some(order) = table.get("order_by").and_then(|item| instance_order(&item, problems)) {
                workflows.order.insert(name.clone(), order);
            }
            workflows.permissions.insert(name, granted.unwrap_or_default());
        }
    }
    if workflows.files.is_empty() {
        let help = "name the files: [workflows] files = [\"workflows/*.yaml\"]";
        problems.add(&item.key_span, "`workflows` names no files".into(), Some(help.into()));
    }
    workflows
}

/// `order_by` of a workflow: `"topic"`, an expression in `${ }`, or a table of one of them as `key` and `then = "start"`.
fn instance_order(item: &Item<'_>, problems: &mut Problems) -> Option<InstanceOrder> {
    if !item.is_table() {
        return Some(InstanceOrder { key: order_key(item, problems)?, succession: Succession::Run });
    }
    let table = item.table("in `order_by`", &["key", "then"], problems)?;
    let key = match table.get("key") {
        Some(key) => order_key(&key, problems)?,
        None => OrderKey::Topic,
    };
    let then = table.get("then").map(|then| then.word(&["start", "run"], problems));
    let succession = match then {
        Some(word) if word? == "start" => Succession::Start,
        _ => Succession::Run,
    };
    Some(InstanceOrder { key, succession })
}

fn order_key(item: &Item<'_>, problems: &mut Problems) -> Option<OrderKey> {
    let text = item.text(problems)?;
    if text == "topic" {
        return Some(OrderKey::Topic);
    }
    if text.trim().starts_with("${") && text.trim().ends_with('}') {
        return Some(OrderKey::Expression(text.to_owned()));
    }
    let help = "order_by = \"topic\", or an expression over the event: order_by = \"${ .data.room }\"";
    problems.add(&item.span, format!("`{text}` is not a key of instances"), Some(help.into()));
    None
}

fn workflow_files(item: &Item<'_>, problems: &mut Problems) -> Vec<String> {
    file_patterns(item, "workflows", "workflows/*.yaml", problems)
}
