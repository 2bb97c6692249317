//! `edgefaas test [PATH]`: the tests of an app, in isolates of a node that ends with them.

mod door;
mod messages;
mod node;
mod report;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use edgefaas_api::control as proto;
use edgefaas_api::control::invoke_response::Outcome as Invoked;
use edgefaas_client::app::{App, deploy_request};
use edgefaas_client::args::{Format, Global};
use edgefaas_client::connection;
use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::output;
use edgefaas_platform::regular_file;
use ignore::WalkBuilder;
use serde::Deserialize;
use serde_json::json;

use self::door::{Behind, Door};
use self::messages::Messages;
use self::node::{SharedCode, TestNode};
use self::report::{Counts, Outcome, Tested};
use crate::args::Test;
use crate::{log, node as nodes};

/// Ends of the names of files with tests.
const ENDINGS: [&str; 3] = [".test.js", ".test.mjs", ".test.ts"];
/// Folders without tests of the app.
const SKIPPED: [&str; 3] = ["target", "node_modules", "vendor"];
/// Files that name what the search leaves out.
const IGNORE_FILES: [&str; 3] = [".gitignore", ".ignore", ".git/info/exclude"];
/// Maximum size of each, in bytes.
const MAX_IGNORE_BYTES: u64 = 1 << 20;
/// Maximum of files with tests.
const MAX_FILES: usize = 1000;
/// Log lines that a failed test shows.
const LOG_LINES: usize = 20;
/// Timeout of a test that names none, in milliseconds; as in the SDK.
const DEFAULT_TIMEOUT_MS: f64 = 10_000.0;
/// Time that a test which computes without a pause gets beyond its timeout: the others end themselves.
const LOOP_GRACE: Duration = Duration::from_secs(2);

/// A test as its file names it.
#[derive(Deserialize)]
struct Named {
    name: String,
    mode: Mode,
    timeout_ms: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Run,
    Skip,
    Only,
}

/// The result that a test gives.
#[derive(Deserialize)]
struct Ran {
    passed: bool,
    #[serde(default)]
    message: String,
}

pub async fn run(args: &Test, global: &Global) -> anyhow::Result<()> {
    let _log = log::start("error,edgefaas::function=off", global.output);
    let app = App::load(&args.app)?;
    let files = test_files(&app)?;
    nodes::raise_open_files();
    let shutdown = nodes::shutdown_signal()?;
    let tests = run_files(args, global, &app, &files);
    tokio::select! {
        result = tests => result,
        () = shutdown.cancelled() => Err(Failure::new(Exit::Failed, "the tests were interrupted")),
    }
}

async fn run_files(args: &Test, global: &Global, app: &App, files: &[PathBuf]) -> anyhow::Result<()> {
    // Built once, for the nodes of all files.
    let request = deploy_request(app, app.build().await?, false)?;
    let (mut results, code) = (Vec::new(), SharedCode::open()?);
    for (index, path) in files.iter().enumerate() {
        let tests = run_file(args, app, path, request.clone(), &code, index == 0).await;
        let tests = tests.with_context(|| shown(app, path))?;
        let file = report::File { path: shown(app, path), tests };
        if global.output == Format::Table && !args.tap && !file.tests.is_empty() {
            output::text(&report::list(&file))?;
        }
        results.push(file);
    }
    let counts = Counts::of(&results);
    if let Some(path) = &args.junit {
        report::write_junit(&results, path)?;
    }
    if args.tap {
        output::text(&report::tap(&results))?;
    } else if global.output == Format::Json {
        output::json(&as_json(&results))?;
    } else {
        let Counts { passed, failed, skipped } = counts;
        output::text(&format!("{passed} passed, {failed} failed, {skipped} skipped\n"))?;
    }
    match counts {
        Counts { failed: 0, passed: 0, .. } if args.filter.is_some() && counts.skipped == 0 => Err(
            Failure::new(Exit::NotFound, "no test has such a name; leave --filter out to run all tests"),
        ),
        Counts { failed: 0, passed: 0, skipped: 0 } => {
            Err(Failure::new(Exit::NotFound, "none of the files has a test"))
        }
        Counts { failed: 0, .. } => Ok(()),
        _ => {
            let message = format!("{} of {} tests failed", counts.failed, counts.all());
            Err(Failure::new(Exit::FunctionFailed, message))
        }
    }
}

fn as_json(files: &[report::File]) -> serde_json::Value {
    let tests = files.iter().flat_map(|file| {
        file.tests.iter().map(|test| {
            let (result, message) = match &test.outcome {
                Outcome::Passed => ("passed", None),
                Outcome::Skipped => ("skipped", None),
                Outcome::Failed { message } => ("failed", Some(message)),
            };
            let ms = test.duration.as_millis() as u64;
            json!({ "file": file.path, "name": test.name, "result": result, "duration_ms": ms, "message": message })
        })
    });
    let Counts { passed, failed, skipped } = Counts::of(files);
    json!({ "passed": passed, "failed": failed, "skipped": skipped, "tests": tests.collect::<Vec<_>>() })
}

/// Refuses a folder whose files of ignored names would block the walk, or fill the memory.
fn check_ignore_files(folder: &Path) -> anyhow::Result<()> {
    for name in IGNORE_FILES {
        let path = folder.join(name);
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        let checked = match metadata.is_dir() {
            true => Ok(()),
            false if metadata.len() > MAX_IGNORE_BYTES => Err(std::io::ErrorKind::FileTooLarge.into()),
            false => regular_file::check(&metadata),
        };
        checked.map_err(|reason| {
            Failure::new(Exit::Failed, format!("{} cannot be read: {reason}", path.display()))
        })?;
    }
    Ok(())
}

/// The files with tests, by name.
fn test_files(app: &App) -> anyhow::Result<Vec<PathBuf>> {
    if app.is_file {
        let message = "name the folder of an app; the tests of a single file are not found beside it";
        return Err(Failure::new(Exit::Usage, message));
    }
    check_ignore_files(&app.root)?;
    let unreadable = Arc::new(Mutex::new(None));
    let refused = unreadable.clone();
    let mut files = Vec::new();
    let walk = WalkBuilder::new(&app.root)
        .git_global(false)
        .require_git(false)
        .sort_by_file_name(std::cmp::Ord::cmp)
        .filter_entry(move |entry| {
            if SKIPPED.iter().any(|name| entry.file_name() == *name) {
                return false;
            }
            // Before the walk reads them.
            match check_ignore_files(entry.path()) {
                Ok(()) => true,
                Err(error) => {
                    refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    false
                }
            }
        })
        .build();
    for entry in walk {
        let entry = entry.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let name = entry.file_name().to_string_lossy();
        let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
        if is_file && ENDINGS.iter().any(|ending| name.ends_with(ending)) {
            files.push(entry.into_path());
        }
    }
    if let Some(error) = unreadable.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    match files.len() {
        0 => {
            let message = format!(
                "{} has no tests; write one into a file such as tests/{}.test.js",
                app.root.display(),
                app.manifest.app
            );
            Err(Failure::new(Exit::NotFound, message))
        }
        count if count > MAX_FILES => {
            let message =
                format!("{count} files have tests; the limit is {MAX_FILES}: name a folder below");
            Err(Failure::new(Exit::Usage, message))
        }
        _ => Ok(files),
    }
}

fn shown(app: &App, path: &Path) -> String {
    path.strip_prefix(&app.root).unwrap_or(path).display().to_string()
}

/// Runs the tests of a file on a node of its own.
async fn run_file(
    args: &Test,
    app: &App,
    path: &Path,
    request: proto::DeployRequest,
    code: &SharedCode,
    is_first: bool,
) -> anyhow::Result<Vec<Tested>> {
    let modules = app.test_modules(path).await?;
    let node = TestNode::start(code).await?;
    let deployed =
        node.control.clone().deploy(request).await.map_err(|status| connection::failure(&status))?;
    if is_first {
        edgefaas_client::commands::deploy::warn(&deployed.into_inner().warnings);
    }
    let runner = free_name(app);
    let door = Door::open(Behind {
        key: node.gateway_token.clone(),
        broker: node.broker.clone(),
        control: node.control.clone(),
        objects: node.objects.clone(),
        messages: Messages::subscribe(&node.broker).await?,
        clock: node.clock.clone(),
        time: node.time.clone(),
        runner: runner.clone(),
        begun: tokio::sync::watch::Sender::new(0),
    })
    .await?;
    let artifact = proto::Artifact {
        function: runner.clone(),
        source: Some(proto::artifact::Source::Modules(modules)),
    };
    // The node ends a test that computes without a pause: its limit is that of the next test.
    let deploy_with = async |limit: Duration| {
        let deploy = proto::DeployRequest {
            manifest: manifest(app, &node, &door, &runner, limit),
            artifacts: vec![artifact.clone()],
            ..Default::default()
        };
        node.control.clone().deploy(deploy).await.map_err(|status| connection::failure(&status))
    };
    let mut limit = limit_of(DEFAULT_TIMEOUT_MS);
    deploy_with(limit).await?;

    let named: Vec<Named> = serde_json::from_value(ask(&node, &runner, &json!({})).await?)?;
    if named.is_empty() {
        eprintln!(
            "warning: {} has no tests: they are registered by `test` of \"@edgefaas/sdk/test\"",
            shown(app, path)
        );
    }
    let is_picky = named.iter().any(|test| test.mode == Mode::Only);
    let mut tests = Vec::new();
    for (number, test) in named.into_iter().enumerate() {
        if args.filter.as_ref().is_some_and(|filter| !test.name.contains(filter.as_str())) {
            continue;
        }
        if test.mode == Mode::Skip || (is_picky && test.mode != Mode::Only) {
            tests.push(Tested { name: test.name, outcome: Outcome::Skipped, duration: Duration::ZERO });
            continue;
        }
        if limit != limit_of(test.timeout_ms) {
            limit = limit_of(test.timeout_ms);
            deploy_with(limit).await?;
        }
        door.begin().await?;
        let (began, since) = (Instant::now(), node.clock.now_unix_ms());
        let request = json!({ "run": number });
        let outcome = match ask(&node, &runner, &request).await {
            Ok(ran) => outcome(serde_json::from_value(ran)?),
            Err(_) if began.elapsed() >= limit => Outcome::Failed {
                message: format!(
                    "the test did not end within {} ms: it computes without a pause",
                    test.timeout_ms
                ),
            },
            Err(error) => Outcome::Failed { message: format!("{error:#}") },
        };
        let duration = began.elapsed();
        let outcome = match outcome {
            Outcome::Failed { message } => {
                // What the test itself logged last is the stack of its error.
                let own = node.log(since, |function| function == runner, 1).await?;
                let log = node.log(since, |function| function != runner, LOG_LINES).await?;
                Outcome::Failed { message: with_log(with_places(message, &own), &log) }
            }
            outcome => outcome,
        };
        tests.push(Tested { name: test.name, outcome, duration });
    }
    drop(door);
    node.stop().await?;
    Ok(tests)
}

/// The limit of the invocation that runs a test.
fn limit_of(timeout_ms: f64) -> Duration {
    Duration::from_millis(timeout_ms.ceil() as u64) + LOOP_GRACE
}

fn outcome(ran: Ran) -> Outcome {
    match ran {
        Ran { passed: true, .. } => Outcome::Passed,
        Ran { message, .. } => Outcome::Failed { message },
    }
}

/// Adds the lines of a logged stack that are of files with tests: the others are of the runner.
fn with_places(message: String, log: &[proto::LogLine]) -> String {
    let own = |line: &&str| !line.contains("@edgefaas/") && line.contains(".test.");
    let places = log.iter().flat_map(|line| line.message.lines()).filter(own).map(str::trim_end);
    std::iter::once(message.as_str()).chain(places).collect::<Vec<_>>().join("\n")
}

fn with_log(mut message: String, log: &[proto::LogLine]) -> String {
    if !log.is_empty() {
        message.push_str("\nlog:");
    }
    for line in log {
        message.push_str(&format!("\n  {} {}: {}", line.level, line.function, line.message));
    }
    message
}

/// Invokes the function with the tests.
async fn ask(
    node: &TestNode,
    runner: &str,
    request: &serde_json::Value,
) -> anyhow::Result<serde_json::Value> {
    let data = request.to_string().into_bytes();
    let request = proto::InvokeRequest { function: runner.to_owned(), data, event: None };
    let response =
        node.control.clone().invoke(request).await.map_err(|status| connection::failure(&status))?;
    match response.into_inner().outcome {
        Some(Invoked::Reply(reply)) => Ok(serde_json::from_slice(&reply.body)?),
        Some(Invoked::Failure(failure)) => {
            anyhow::bail!("{}: {}", failure.title, failure.detail)
        }
        None => anyhow::bail!("the node gave no outcome"),
    }
}

/// A name for the function with the tests that the app does not use.
fn free_name(app: &App) -> String {
    let taken: HashSet<&str> = app.manifest.functions.keys().map(String::as_str).collect();
    let names = std::iter::once("tests".to_owned()).chain((1..).map(|number| format!("tests-{number}")));
    let is_free = |name: &String| !taken.contains(name.as_str()) && *name != app.manifest.app;
    names.into_iter().find(is_free).unwrap_or_default()
}

/// The manifest of the function with the tests: its only permissions are the door and the gateway.
fn manifest(app: &App, node: &TestNode, door: &Door, runner: &str, limit: Duration) -> String {
    let (door, gateway) = (door.address.to_string(), node.addresses.http.to_string());
    let config = json!({
        "door": format!("http://{door}"),
        "key": node.gateway_token,
        "token": node.gateway_token,
        "gateway": format!("http://{gateway}"),
        "app": app.manifest.app,
    });
    let config = config.as_object().into_iter().flatten().map(|(key, value)| format!("{key} = {value}"));
    format!(
        "app = \"{runner}\"\n[functions.{runner}]\nmain = \"tests.js\"\n\
         limits = {{ timeout = \"{}ms\", memory = \"128MiB\", calls = 100000 }}\n\
         permissions = {{ http = [\"{door}\", \"{gateway}\"] }}\nconfig = {{ {} }}\n",
        limit.as_millis(),
        config.collect::<Vec<_>>().join(", ")
    )
}
