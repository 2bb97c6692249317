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
