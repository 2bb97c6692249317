//! `edgefaas dev` with a real node: deploys, redeploys, keeps what works, ends cleanly.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader, Lines};
use tokio::process::Command;

const SOON: Duration = Duration::from_secs(120);

fn edgefaas(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edgefaas"));
    command
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .env_remove("EDGEFAAS_NODE")
        .env_remove("EDGEFAAS_TOKEN")
        .env("EDGEFAAS_DATA_DIR", folder.join("no-data"));
    command
}

async fn line_with(lines: &mut Lines<impl AsyncBufRead + Unpin>, text: &str) -> String {
    let mut seen = String::new();
    let found = tokio::time::timeout(SOON, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            seen.push_str(&line);
            seen.push('\n');
            if line.contains(text) {
                return Some(line);
            }
        }
        None
    });
    let found = found.await.unwrap_or_default();
    found.unwrap_or_else(|| panic!("no line with {text:?} in:\n{seen}"))
}

async fn invoke(folder: &Path) -> String {
    let output = edgefaas(folder, &["invoke", "hello"]).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_change_is_live_at_once_and_a_mistake_never_is() {
    let home = tempfile::tempdir().unwrap();
    let made = edgefaas(home.path(), &["new", "hello", "--lang", "js"]).output().await.unwrap();
    assert!(made.status.success());
    let app = home.path().join("hello");
    let source = app.join("functions/hello.js");
    fs::write(&source, "export default () => 'one';\n").unwrap();

    let free = "127.0.0.1:0";
    let mut dev =
        edgefaas(home.path(), &["dev", "hello", "--http", free, "--mqtt", free, "--control", free])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut stdout = BufReader::new(dev.stdout.take().unwrap()).lines();
    let mut stderr = BufReader::new(dev.stderr.take().unwrap()).lines();
    let ready = line_with(&mut stdout, "ready ").await;
    assert!(ready.starts_with("ready http=http://127.0.0.1:"), "{ready}");
    let mode = fs::metadata(app.join(".edgefaas")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    line_with(&mut stderr, "is live").await;
    line_with(&mut stderr, "curl 'http://127.0.0.1:").await;
    assert_eq!(invoke(&app).await, "one\n", "found by .edgefaas/dev.json");

    fs::write(&source, "export default () => 'two';\n").unwrap();
    line_with(&mut stderr, "is live").await;
    assert_eq!(invoke(&app).await, "two\n");

    fs::write(&source, "export default () => {\n").unwrap();
    line_with(&mut stderr, "functions/hello.js:").await;
    line_with(&mut stderr, "the live revision stays live").await;
    assert_eq!(invoke(&app).await, "two\n");

    let back = edgefaas(&app, &["rollback", "hello"]).output().await.unwrap();
    assert!(back.status.success(), "{}", String::from_utf8_lossy(&back.stderr));
    assert_eq!(invoke(&app).await, "one\n");

    let id = i32::try_from(dev.id().unwrap()).unwrap();
    let killed = std::process::Command::new("kill").args(["-TERM", &id.to_string()]).status().unwrap();
    assert!(killed.success());
    let status = tokio::time::timeout(SOON, dev.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(!app.join(".edgefaas/dev.json").exists());
    assert!(app.join(".edgefaas/token").exists(), "its data stays");
}

#[tokio::test]
async fn an_app_that_was_never_live_has_no_live_revision() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("hello.js"), "export default () => {\n").unwrap();
    let free = "127.0.0.1:0";
    let mut dev =
        edgefaas(home.path(), &["dev", "hello.js", "--http", free, "--mqtt", free, "--control", free])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut stderr = BufReader::new(dev.stderr.take().unwrap()).lines();
    line_with(&mut stderr, "not deployed; no revision is live").await;
    fs::write(home.path().join("hello.js"), "export default () => 'one';\n").unwrap();
    line_with(&mut stderr, "is live").await;
    fs::write(home.path().join("hello.js"), "export default () => {\n").unwrap();
    line_with(&mut stderr, "not deployed; the live revision stays live").await;
    dev.kill().await.unwrap();
}

#[tokio::test]
async fn taken_ports_are_all_named_with_the_way_out() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("hello.js"), "export default () => 1;\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    let args = ["dev", "hello.js", "--http", &taken.1, "--mqtt", &taken.1, "--control", "127.0.0.1:0"];
    let output = edgefaas(home.path(), &args).output().await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let expected = format!("in use by another program: {0} (--http), {0} (--mqtt);", taken.1);
    assert!(stderr.contains(&expected) && stderr.contains("--mqtt 127.0.0.1:0"), "{stderr}");
}

#[tokio::test]
async fn a_node_takes_all_the_open_files_it_may_have() {
    let home = tempfile::tempdir().unwrap();
    let free = "127.0.0.1:0";
    let mut node = Command::new("sh");
    node.args(["-c", "ulimit -Sn 128 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_edgefaas")])
        .args(["run", "--data-dir", "data", "--http", free, "--mqtt", free, "--control", free])
        .current_dir(home.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut node = node.spawn().unwrap();
    let mut stdout = BufReader::new(node.stdout.take().unwrap()).lines();
    line_with(&mut stdout, "ready ").await;
    let limits = fs::read_to_string(format!("/proc/{}/limits", node.id().unwrap())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let files: Vec<_> = files.split_whitespace().collect();
    assert_ne!(files[0], "128", "{limits}");
    assert_eq!(files[0], files[1], "{limits}");
    node.kill().await.unwrap();
}

#[tokio::test]
async fn secrets_come_from_a_private_env_file_and_workflows_show_their_progress() {
    let home = tempfile::tempdir().unwrap();
    let made = edgefaas(home.path(), &["new", "shop", "--lang", "js", "--template", "workflow"]);
    assert!({ made }.output().await.unwrap().status.success());
    let app = home.path().join("shop");
    let ignored = fs::read_to_string(app.join(".gitignore")).unwrap();
    assert!(ignored.lines().any(|line| line == "/.env"), "{ignored}");
    let manifest = fs::read_to_string(app.join("edgefaas.toml")).unwrap();
    fs::write(app.join("edgefaas.toml"), manifest + "secrets = [\"API_KEY\"]\n").unwrap();
    let source = "export default (event, { secrets }) => ({ total: 24, key: secrets.API_KEY ?? null });\n";
    fs::write(app.join("functions/shop.js"), source).unwrap();
    let write = |text: &str, mode: u32| {
        fs::write(app.join(".env"), text).unwrap();
        fs::set_permissions(app.join(".env"), fs::Permissions::from_mode(mode)).unwrap();
    };

    // From the app's own folder, without a path.
    let free = "127.0.0.1:0";
    let mut dev = edgefaas(&app, &["dev", "--http", free, "--mqtt", free, "--control", free])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(dev.stdout.take().unwrap()).lines();
    let mut stderr = BufReader::new(dev.stderr.take().unwrap()).lines();
    let ready = line_with(&mut stdout, "ready ").await;
    line_with(&mut stderr, "reads secret `API_KEY`, which is not set").await;

    write("API_KEY=geheim\n", 0o644);
    line_with(&mut stderr, "chmod 600").await;
    write("A=b\n\nAPI_KEY geheim\n", 0o600);
    let wrong = line_with(&mut stderr, ".env:3: the entry is not NAME=VALUE").await;
    assert!(!wrong.contains("geheim"), "{wrong}");
    line_with(&mut stderr, "the live revision stays live").await;
    write("API_KEY='s3cret'\nOTHER=geheim\nMORE=geheim\n", 0o600);
    line_with(&mut stderr, "secrets of .env: API_KEY").await;
    line_with(
        &mut stderr,
        "left out, since no function and no workflow names them in `secrets`: MORE, OTHER",
    )
    .await;
    line_with(&mut stderr, "is live").await;
    let below = app.join("functions");
    let called = edgefaas(&below, &["invoke", "shop-price", "-d", "{}"]).output().await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&called.stdout).trim(),
        r#"{"total":24,"key":"s3cret"}"#,
        "from below the app"
    );

    let secrets = edgefaas(&app, &["secrets", "list", "-o", "json"]).output().await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&secrets.stdout).trim(),
        r#"{"secrets":[{"app":"shop","name":"API_KEY"}]}"#,
        "the node has no others"
    );
    // A function names one of them.
    let manifest = fs::read_to_string(app.join("edgefaas.toml")).unwrap();
    fs::write(app.join("edgefaas.toml"), manifest.replace("[\"API_KEY\"]", "[\"API_KEY\", \"MORE\"]"))
        .unwrap();
    line_with(&mut stderr, "secrets of .env: API_KEY, MORE").await;
    line_with(&mut stderr, "is live").await;

    let invoked = edgefaas(&app, &["invoke", "shop", "-d", r#"{"pieces": 6}"#]).output().await.unwrap();
    assert!(invoked.status.success(), "{}", String::from_utf8_lossy(&invoked.stderr));
    let started = line_with(&mut stderr, "started").await;
    assert!(started.starts_with("workflow shop "), "{started}");
    line_with(&mut stderr, "price completed").await;
    line_with(&mut stderr, "completed").await;

    // Pages of a development server on this machine.
    let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http=http://")).unwrap();
    let mut page = tokio::net::TcpStream::connect(http).await.unwrap();
    let head = "OPTIONS /fn/shop-price HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\norigin: http://localhost:5173\r\n";
    let head = format!("{head}access-control-request-method: POST\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut page, head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut page, &mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 204") && answer.contains("http://localhost:5173"), "{answer}");

    // A copy of the program finds the node too.
    let copy = home.path().join("copy-of-edgefaas");
    // Written by another process: see `copy_program` of the tests of nodes.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_edgefaas")).arg(&copy).status().await.unwrap();
    assert!(copied.success());
    let mut listing = Command::new(&copy);
    listing.arg("list").current_dir(&below).env_remove("EDGEFAAS_NODE").env_remove("EDGEFAAS_TOKEN");
    let listed = listing.env("EDGEFAAS_DATA_DIR", home.path().join("none")).output().await.unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("shop-price"), "{listed:?}");

    dev.kill().await.unwrap();
    let gone = edgefaas(&app, &["list"]).output().await.unwrap();
    let stderr = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(stderr.contains("dev.json does not count") && stderr.contains("has ended"), "{stderr}");
}
