//! Files of an app that its functions read in place.

use std::path::Path;

use crate::support::{Running, component, has_wasm_target, skipped};

const MANIFEST: &str = r#"
app = "shop"
assets = ["models/*.bin", "table.txt"]
[functions.reach]
main = "reach.wasm"
[functions.script]
main = "script.js"
[functions.plain]
main = "plain.js"
"#;

const SCRIPT: &str = r#"
const sum = (bytes) => { let sum = 0; for (const byte of bytes) sum += byte; return sum; };
export default (event, context) => {
  const { name, write } = event.json();
  const asset = context.asset(name);
  const before = sum(asset);
  const blocks = [];
  for (let number = 0; number < 20; number++) blocks.push(new Uint8Array(1 << 20).fill(number));
  if (write) asset[0] += 1;
  return [asset.length, before, sum(asset), asset.constructor.name];
};"#;

fn content(bytes: usize) -> (Vec<u8>, u64) {
    let content: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    let sum = content.iter().map(|byte| u64::from(*byte)).sum();
    (content, sum)
}

fn write_app(app: &Path, model: &[u8]) {
    std::fs::create_dir_all(app.join("models")).unwrap();
    std::fs::write(app.join("edgefaas.toml"), MANIFEST).unwrap();
    std::fs::write(app.join("script.js"), SCRIPT).unwrap();
    std::fs::write(app.join("plain.js"), "export default () => 1;").unwrap();
    std::fs::write(app.join("models/a.bin"), model).unwrap();
    std::fs::write(app.join("models/empty.bin"), "").unwrap();
    std::fs::write(app.join("table.txt"), "one,two").unwrap();
    std::fs::copy(component("reach"), app.join("reach.wasm")).unwrap();
}

fn ask(node: &Running, function: &str, what: &str) -> String {
    let (status, body) = node.http("POST", &format!("/fn/{function}"), what);
    assert_eq!(status, 200, "{what}: {body}");
    body
}

#[test]
fn functions_read_files_of_their_app_in_place() {
    if !has_wasm_target() {
        return skipped("the target wasm32-wasip2 (rustup target add wasm32-wasip2)");
    }
    let home = tempfile::tempdir().unwrap();
    let (data, app) = (home.path().join("data"), home.path().join("app"));
    let (model, sum) = content(3_000_001);
    write_app(&app, &model);
    let deploy = ["deploy", app.to_str().unwrap()];
    let mut node = Running::start(&data, &[]);
    node.ok(&deploy);
    // The bytes 0 to 19 a million times each.
    let used = 190 << 20;
    let expected = format!("3000001 {sum} {sum} {used} 0");
    let script = format!("[3000001,{sum},{sum},\"Uint8Array\"]");
    for round in 0..3 {
        assert_eq!(ask(&node, "reach", "asset models/a.bin"), expected);
        assert_eq!(ask(&node, "reach", "asset table.txt").split(' ').next(), Some("7"));
        assert_eq!(ask(&node, "reach", "asset models/empty.bin"), format!("0 0 0 {used} 0"));
        assert_eq!(ask(&node, "reach", "asset script.js"), "no asset script.js");
        assert_eq!(ask(&node, "script", r#"{"name":"models/a.bin"}"#), script);
        let (status, body) = node.http("POST", "/fn/script", r#"{"name":"../script.js"}"#);
        assert_eq!(status, 500, "{body}");
        assert!(body.contains("there is no asset `../script.js`; there are `models/a.bin`"), "{body}");
        // Whoever writes into one writes into a copy of its own.
        let changed = ask(&node, "reach", "asset models/a.bin write");
        assert_eq!(changed, format!("3000001 {sum} {} {used} 0", sum + 1));
        let changed = ask(&node, "script", r#"{"name":"models/a.bin","write":true}"#);
        assert_eq!(changed, format!("[3000001,{sum},{},\"Uint8Array\"]", sum + 1));
        // It is not the function's own memory, which the peak tells.
        let status: serde_json::Value = serde_json::from_str(&node.ok(&["status", "-o", "json"])).unwrap();
        let functions = status["apps_live"][0]["functions"].as_array().unwrap();
        let plain = functions.iter().find(|function| function["name"] == "plain").unwrap();
        assert_eq!(plain["memory_peak_bytes"], 0, "it was not called");
        match round {
            0 => {
                node.kill();
                node = Running::start(&data, &[]);
            }
            _ => {
                // Compiled anew: the files come from the store.
                node.kill();
                std::fs::remove_dir_all(data.join("cache")).unwrap();
                node = Running::start(&data, &[]);
            }
        }
    }
    // Another content is another revision, which can be taken back.
    let (other, other_sum) = content(1_000);
    std::fs::write(app.join("models/a.bin"), &other).unwrap();
    node.ok(&deploy);
    assert_eq!(ask(&node, "reach", "asset models/a.bin"), format!("1000 {other_sum} {other_sum} {used} 0"));
    assert!(ask(&node, "script", r#"{"name":"models/a.bin"}"#).starts_with(&format!("[1000,{other_sum}")));
    node.ok(&["rollback", "shop"]);
    assert_eq!(ask(&node, "reach", "asset models/a.bin"), expected);
    assert_eq!(ask(&node, "script", r#"{"name":"models/a.bin"}"#), script);
}

#[test]
fn assets_that_are_not_there_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let (data, app) = (home.path().join("data"), home.path().join("app"));
    std::fs::create_dir(&app).unwrap();
    let node = Running::start(&data, &[]);
    std::fs::write(app.join("f.js"), "export default (event, context) => context.asset('x').length;")
        .unwrap();
    let deploy = |assets: &str| {
        let manifest = format!("app = \"a\"\nassets = {assets}\n[functions.f]\nmain = \"f.js\"\n");
        std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
        let output = node.cli(&["deploy", app.to_str().unwrap()]);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    for (assets, reason) in [
        (r#"["no/*.bin"]"#, "`assets` names `no/*.bin`, but there is no such file"),
        (r#"["../f.js"]"#, "not a path inside the app folder"),
        (r#"["/etc/passwd"]"#, "not a path inside the app folder"),
        (r#"["a**"]"#, "`a**` in `assets`"),
        (r#"[1]"#, "assets"),
    ] {
        let error = deploy(assets);
        assert!(error.contains(reason), "{assets}: {error}");
    }
    // Nothing from outside is sent.
    std::fs::write(home.path().join("secret.txt"), "secret").unwrap();
    std::os::unix::fs::symlink("../secret.txt", app.join("link.txt")).unwrap();
    assert!(deploy(r#"["link.txt"]"#).contains("leads out of the app folder"));
    assert!(deploy(r#"[".?/secret.txt"]"#).contains("inside the app folder"));
    // Larger than any function's memory can be.
    std::fs::File::create(app.join("huge.bin")).unwrap().set_len(65 << 20).unwrap();
    let error = deploy(r#"["huge.bin"]"#);
    assert!(error.contains("too large to deploy"), "{error}");
}
