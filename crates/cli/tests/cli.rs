//! The binary without a node: arguments, manifests, builds and templates.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The binary in an environment that says nothing about nodes.
fn edgefaas(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edgefaas"));
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .env_remove("EDGEFAAS_NODE")
        .env_remove("EDGEFAAS_TOKEN")
        .env("EDGEFAAS_DATA_DIR", folder.join("no-data"));
    command
}

fn run(folder: &Path, args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = edgefaas(folder).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().expect("the process was not killed"), text(stdout), text(stderr))
}

/// A port that nobody listens on, nor can while its socket is held.
fn closed_port() -> (tokio::net::TcpSocket, String) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

/// True if a test that needs the target can run; else it says so.
fn has_wasm_target(folder: &Path) -> bool {
    let probe = Command::new("rustc")
        .current_dir(folder)
        .args(["--print", "target-libdir", "--target", "wasm32-wasip2"])
        .output();
    let has = probe.is_ok_and(|probe| Path::new(String::from_utf8_lossy(&probe.stdout).trim()).exists());
    if !has {
        assert!(std::env::var_os("EDGEFAAS_NO_SKIP").is_none(), "needs the target wasm32-wasip2");
        println!("skipped: needs the target wasm32-wasip2");
    }
    has
}

fn write_crate(folder: &Path, lib: &str, source: &str) {
    fs::create_dir_all(folder.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = \"average\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[lib]\n{lib}\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.join("src/lib.rs"), source).unwrap();
    fs::write(folder.join("edgefaas.toml"), "app = \"a\"\n[functions.average]\nmain = \".\"\n").unwrap();
}

#[test]
fn a_name_of_a_file_cannot_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let name = "\u{1b}[31mred\nerror: all is well.js";
    fs::write(folder.path().join(name), "export default nope(").unwrap();
    fs::write(
        folder.path().join("main.js"),
        "import \"./\\x1b[31mred\\nerror: all is well.js\";\nexport default () => 1;\n",
    )
    .unwrap();
    let manifest = "app = \"a\"\n[functions.f]\nmain = \"main.js\"\n";
    fs::write(folder.path().join("edgefaas.toml"), manifest).unwrap();
    let (code, _, stderr) = run(folder.path(), &["build", "."]);
    assert_eq!(code, 7, "{stderr}");
    assert!(stderr.contains("red") && !stderr.contains('\u{1b}'), "{stderr:?}");
    assert!(!stderr.lines().any(|line| line.starts_with("error: all is well")), "{stderr:?}");
}

#[test]
fn a_command_line_that_makes_no_sense_is_2() {
    let folder = tempfile::tempdir().unwrap();
    for (args, expected) in [
        (vec!["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (vec!["new", "x"], "--lang"),
        (vec!["new", "X y", "--lang", "js"], "`X y` is not a name"),
        (vec!["new", "1x", "--lang", "rust"], "`1x` cannot name a crate"),
        (vec!["deploy", "absent.js"], "absent.js: No such file"),
        (vec!["deploy", ".", "--allow", "publsh=a"], "did you mean `publish`?"),
        (vec!["deploy", ".", "--allow", "publish=a"], "--allow is for single files"),
        (vec!["run", "--http", "8080"], "invalid value '8080'"),
        (vec!["run", "--p2p", "7071"], "invalid value '7071' for '--p2p <ADDR:PORT>'"),
        (vec!["logs", "--tail", "0"], "0 is not in 1.."),
        (vec!["list", "--node", "not a url"], "is not the URL of a node"),
        (vec!["invoke", "f", "-d", "@absent.json"], "-d @absent.json: No such file"),
        (vec!["secrets", "set", "a b"], "`a b` is not a name of a secret"),
        (vec!["secrets", "set", "key"], "a secret belongs to an app: name it with --app APP"),
    ] {
        let (code, stdout, stderr) = run(folder.path(), &args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert_eq!(stdout, "", "{args:?}");
    }
}

#[test]
fn what_is_no_source_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (file, expected_code, expected) in
        [("flow.yaml", 7, "flow.yaml:1:1: "), ("a.py", 2, "a.py cannot be deployed")]
    {
        fs::write(folder.path().join(file), "x").unwrap();
        let (code, _, stderr) = run(folder.path(), &["deploy", file]);
        assert_eq!(code, expected_code, "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn help_lists_commands_and_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(folder.path(), &["--help"]);
    assert_eq!(code, 0);
    for word in ["run", "dev", "deploy", "rollback", "secrets", "Exit codes:", "3  no node answers"] {
        assert!(stdout.contains(word), "{word}: {stdout}");
    }
}

#[test]
fn no_node_is_3_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("hello.js"), "export default () => 1;\n").unwrap();
    let (_held, address) = closed_port();
    for args in [
        vec!["list"],
        vec!["status"],
        vec!["logs", "f"],
        vec!["rm", "a"],
        vec!["rollback", "a"],
        vec!["invoke", "f"],
        vec!["deploy", "hello.js"],
        vec!["secrets", "list"],
    ] {
        let (code, stdout, stderr) = run(folder.path(), &[&args[..], &["--node", &address]].concat());
        assert_eq!(code, 3, "{args:?}: {stderr}");
        let expected = format!("error: no node answers at http://{address}: Connection refused");
        assert!(stderr.contains(&expected), "{args:?}: {stderr}");
        assert!(stderr.contains("start one with `edgefaas run`"), "{args:?}: {stderr}");
        assert_eq!(stdout, "");
    }
}

#[test]
fn a_bad_manifest_is_7_and_shown_like_a_compiler_does() {
    let folder = tempfile::tempdir().unwrap();
    let text = "app = \"a\"\n[functions.f]\nmain = \"f.js\"\nplacement = \"near data\"\ntrigers = []\n";
    fs::write(folder.path().join("edgefaas.toml"), text).unwrap();
    for path in [".", "edgefaas.toml"] {
        let (code, stdout, stderr) = run(folder.path(), &["build", path]);
        assert_eq!(code, 7, "{stderr}");
        assert_eq!(stdout, "");
        assert_eq!(
            stderr,
            "error: `near data` cannot be the tag of a placement policy\n \
             --> ./edgefaas.toml:4:13\n  \
             |\n\
             4 | placement = \"near data\"\n  \
             |             ^^^^^^^^^^^\n  \
             = help: write 1 to 63 letters, digits, `_`, `-`, `.` and `=`, such as camera or floor=2\n\n\
             error: unknown key `trigers` in [functions.f]\n \
             --> ./edgefaas.toml:5:1\n  \
             |\n\
             5 | trigers = []\n  \
             | ^^^^^^^\n  \
             = help: did you mean `triggers`? Known are `main`, `triggers`, `limits`, `permissions`, \
             `config`, `secrets`, `placement`, `isolation`, `retry`\n"
        );
    }
}

#[test]
fn a_policy_is_checked_without_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let good = "near:\n  - workers: [{set: sensor}]\n  - workers: [{set: sensor}]\n  - followup: fail\n";
    fs::write(folder.path().join("good.yaml"), good).unwrap();
    let (code, stdout, stderr) = run(folder.path(), &["policy", "check", "good.yaml"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("good.yaml is valid; distribution: default\nnear "), "{stdout}");
    let expected = "good.yaml:3:5: warning: block 2 of tag `near` is never used: the block in line 2 can use its workers whenever it can\n  |   - workers: [{set: sensor}]\n  |     ^\n";
    assert!(stderr.contains(expected), "{stderr}");

    fs::write(folder.path().join("bad.yaml"), "near:\n  - workers: *\n").unwrap();
    let (code, stdout, stderr) = run(folder.path(), &["policy", "check", "bad.yaml"]);
    assert_eq!((code, stdout.as_str()), (7, ""));
    assert_eq!(
        stderr,
        "error: bad.yaml is no valid policy\nbad.yaml:2:14: an asterisk needs quotes: write \"*\"\n  |   - workers: *\n  |              ^\n"
    );
    let (code, stdout, _) = run(folder.path(), &["-o", "json", "policy", "check", "bad.yaml"]);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &document["valid"], &document["problems"][0]["line"]), (7, &false.into(), &2.into()));

    std::fs::write(folder.path().join("empty.yaml"), "# none\n").unwrap();
    for command in ["check", "set"] {
        let (code, _, stderr) = run(folder.path(), &["policy", command, "empty.yaml"]);
        assert!(
            code == 7 && stderr.contains("the policy is empty") && stderr.contains("policy rm"),
            "{stderr}"
        );
    }
    let (code, _, stderr) = run(folder.path(), &["policy", "check", "none.yaml"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("none.yaml cannot be read: No such file"), "{stderr}");
}

#[test]
fn a_folder_without_a_manifest_is_7() {
    let folder = tempfile::tempdir().unwrap();
    let (code, _, stderr) = run(folder.path(), &["build", "."]);
    assert_eq!(code, 7);
    assert!(stderr.contains("it has no edgefaas.toml") && stderr.contains("edgefaas new"), "{stderr}");
}

#[test]
fn new_js_app_builds() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run(folder.path(), &["new", "hello", "--lang", "js"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.contains("wrote hello/functions/hello.js\n"), "{stdout}");
    assert!(stdout.ends_with("next: edgefaas dev hello\n"), "{stdout}");
    let (code, stdout, stderr) = run(folder.path(), &["build", "hello", "-o", "json"]);
    assert_eq!(code, 0, "{stderr}");
    let built: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(built["app"], "hello");
    assert_eq!(built["functions"][0]["name"], "hello");

    let (code, _, stderr) = run(folder.path(), &["new", "hello", "--lang", "js"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("`hello` exists already"), "{stderr}");
}

#[test]
fn new_rust_app_has_its_files() {
    let folder = tempfile::tempdir().unwrap();
    let (code, stdout, _) = run(folder.path(), &["new", "average", "--lang", "rust", "-o", "json"]);
    assert_eq!(code, 0);
    let new: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    for file in new["files"].as_array().unwrap() {
        let text = fs::read_to_string(folder.path().join("average").join(file.as_str().unwrap())).unwrap();
        assert!(!text.is_empty() && !text.contains("{{"), "{file}: {text}");
    }
    assert!(folder.path().join("average/.gitignore").exists());
}

#[test]
fn a_single_file_is_an_app_named_after_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("hello.js"), "export default () => 1;\n").unwrap();
    let args = ["build", "hello.js", "--allow", "publish=a/#", "--allow", "objects=*", "-o", "json"];
    let (code, stdout, stderr) = run(folder.path(), &args);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(
        stdout,
        "{\"app\":\"hello\",\"functions\":[{\"name\":\"hello\",\"source_bytes\":24}],\"asset_bytes\":0}\n"
    );

    fs::write(folder.path().join("My Fn.js"), "export default () => 1;\n").unwrap();
    let (code, _, stderr) = run(folder.path(), &["build", "My Fn.js"]);
    assert_eq!(code, 7);
    assert!(stderr.contains("would be called `My Fn`"), "{stderr}");
}

#[test]
fn what_is_no_component_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, expected) in [
        (&b"hello"[..], "this is not a WebAssembly component"),
        (b"\0asm\x01\0\0\0", "this is a WebAssembly core module, not a component"),
    ] {
        fs::write(folder.path().join("f.wasm"), bytes).unwrap();
        let (code, _, stderr) = run(folder.path(), &["build", "f.wasm"]);
        assert_eq!(code, 7);
        assert!(stderr.contains("function `f`: ") && stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn a_crate_is_built_wherever_its_target_folder_is() {
    let folder = tempfile::tempdir().unwrap();
    if !has_wasm_target(folder.path()) {
        return;
    }
    write_crate(folder.path(), "crate-type = [\"cdylib\"]", "pub fn f() {}\n");
    let target = tempfile::tempdir().unwrap();
    let output = edgefaas(folder.path())
        .args(["build", ".", "-o", "json"])
        .env("CARGO_TARGET_DIR", target.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let built: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(built["functions"][0]["source_bytes"].as_u64().unwrap() > 8, "{built}");
    assert!(!folder.path().join("target").exists());

    write_crate(folder.path(), "", "pub fn f() {}\n");
    let (code, _, stderr) = run(folder.path(), &["build", "."]);
    assert_eq!(code, 7);
    assert!(stderr.contains("builds no component: add `crate-type = [\"cdylib\"]`"), "{stderr}");
}

#[test]
fn a_failing_build_shows_what_cargo_says() {
    let folder = tempfile::tempdir().unwrap();
    if !has_wasm_target(folder.path()) {
        return;
    }
    write_crate(folder.path(), "crate-type = [\"cdylib\"]", "pub fn f() -> u32 { \"x\" }\n");
    let (code, _, stderr) = run(folder.path(), &["build", "."]);
    assert_eq!(code, 7);
    assert!(stderr.contains("function `average`: cargo build failed"), "{stderr}");
    assert!(stderr.contains("mismatched types") && stderr.contains("src/lib.rs:1:21"), "{stderr}");
}

#[test]
fn a_crate_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = "app = \"a\"\n[functions.f]\nmain = \"absent\"\n";
    fs::write(folder.path().join("edgefaas.toml"), text).unwrap();
    let (code, _, stderr) = run(folder.path(), &["build", "."]);
    assert_eq!(code, 7);
    assert!(stderr.contains("./absent/Cargo.toml: No such file"), "{stderr}");
}

#[test]
fn a_node_that_cannot_start_says_so_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    for (data_dir, http, named) in
        [("file/data", "127.0.0.1:0", "file/data"), ("data", taken.1.as_str(), taken.1.as_str())]
    {
        let args =
            ["--data-dir", data_dir, "--http", http, "--mqtt", "127.0.0.1:0", "--control", "127.0.0.1:0"];
        let output = edgefaas(folder.path()).arg("run").args(args).env("RUST_LOG", "off").output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(named), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn only_files_inside_of_the_app_folder_are_bundled() {
    use std::os::unix::fs::symlink;
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let write = |name: &str, text: &str| {
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        fs::write(path(name), text).unwrap();
    };
    // Beside the app folder, as in a checkout beside the CLI's own files.
    write("nodes.json", "{\"token\": \"secret\"}");
    write("outside.js", "export default () => 'secret';");
    write("outside.wasm", "\0asm\x0d\0\x01\0");
    write("node_modules/hoisted/index.js", "export default 1;");
    write("outside-flow.yaml", "document: {}");
    let absolute = format!("{}/app/../nodes.json", home.path().display());
    write("app/node_modules/x/index.js", "export default 1;");
    symlink(path("nodes.json"), path("app/leak.json")).unwrap();
    symlink(path("outside.js"), path("app/main.js")).unwrap();
    symlink(path("outside.wasm"), path("app/main.wasm")).unwrap();
    symlink(path("outside-flow.yaml"), path("app/flow.yaml")).unwrap();
    write("crate/Cargo.toml", "[package]\nname = \"c\"\nversion = \"0.1.0\"");
    symlink(path("crate"), path("app/crate")).unwrap();
    symlink(path("node_modules/hoisted"), path("app/node_modules/linked")).unwrap();
    let manifest = |main: &str| format!("app = \"a\"\n[functions.f]\nmain = \"{main}\"\n");
    let build = |main: &str| {
        write("app/edgefaas.toml", &manifest(main));
        run(home.path(), &["build", "app"])
    };
    let importing = |specifier: &str| {
        write("app/f.js", &format!("import n from \"{specifier}\"; export default () => n;"));
        build("f.js")
    };
    for specifier in [
        absolute.as_str(),
        "../nodes.json",
        "./../nodes.json",
        "./leak.json",
        &format!("file://{absolute}"),
        path("nodes.json").to_str().unwrap(),
        "hoisted",
        "linked",
    ] {
        let (code, stdout, stderr) = importing(specifier);
        assert_eq!((code, stdout.as_str()), (7, ""), "{specifier}: {stderr}");
        assert!(stderr.contains("f.js:1:15: cannot "), "{specifier}: {stderr}");
        assert!(!stderr.contains("secret"), "{stderr}");
    }
    assert!(importing("../nodes.json").2.contains("leads out of the app folder"));
    assert!(importing("hoisted").2.contains("install it in the app folder"));
    for main in ["main.js", "main.wasm", "crate"] {
        let (code, _, stderr) = build(main);
        assert_eq!(code, 7, "{main}: {stderr}");
        assert!(stderr.contains("leads out of the app folder"), "{main}: {stderr}");
    }
    write("app/edgefaas.toml", "app = \"a\"\n[workflows]\nfiles = [\"flow.yaml\"]\n");
    let (code, _, stderr) = run(home.path(), &["build", "app"]);
    assert_eq!(code, 7, "{stderr}");
    assert!(stderr.contains("leads out of the app folder"), "{stderr}");
    // A single file's folder is its app folder.
    for file in ["app/main.js", "app/main.wasm", "app/flow.yaml"] {
        let (code, _, stderr) = run(home.path(), &["build", file]);
        assert_eq!(code, 7, "{file}: {stderr}");
        assert!(stderr.contains("leads out of the app folder"), "{file}: {stderr}");
    }
}

#[test]
fn only_regular_files_are_deployed() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let app = tempfile::tempdir().unwrap();
    let path = |name: &str| app.path().join(name);
    let pipe = |name: &str| {
        let _ = fs::remove_file(path(name));
        mknodat(CWD, path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    };
    let expect_refused = |arguments: &[&str], named: &str| {
        let (code, _, stderr) = run(app.path(), arguments);
        assert_eq!(code, 7, "{named}: {stderr}");
        let expected = "it is a named pipe, and only regular files are read";
        assert!(stderr.contains(named) && stderr.contains(expected), "{named}: {stderr}");
    };
    pipe("edgefaas.toml");
    expect_refused(&["build", "."], "edgefaas.toml");
    fs::remove_file(path("edgefaas.toml")).unwrap();
    fs::create_dir(path("crate")).unwrap();
    for file in ["f.js", "f.wasm", "flow.yaml", "data.bin", "crate/Cargo.toml"] {
        pipe(file);
    }
    fs::write(path("good.js"), "export default () => 1;").unwrap();
    for (manifest, named) in [
        ("[functions.f]\nmain = \"f.js\"", "f.js"),
        ("[functions.f]\nmain = \"f.wasm\"", "f.wasm"),
        ("[functions.f]\nmain = \"crate\"", "Cargo.toml"),
        ("[workflows]\nfiles = [\"*.yaml\"]", "flow.yaml"),
        ("assets = [\"*.bin\"]\n[functions.f]\nmain = \"good.js\"", "data.bin"),
    ] {
        fs::write(path("edgefaas.toml"), format!("app = \"a\"\n{manifest}\n")).unwrap();
        expect_refused(&["build", "."], named);
    }
    for file in ["f.js", "f.wasm", "flow.yaml"] {
        expect_refused(&["build", file], file);
    }
}

#[test]
fn links_within_the_app_folder_are_followed() {
    use std::os::unix::fs::symlink;
    let home = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = home.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    // As npm and pnpm lay out a workspace.
    write("app/packages/shared/package.json", "{\"name\": \"shared\", \"main\": \"index.js\"}");
    write("app/packages/shared/index.js", "export { default } from 'deep';");
    write("app/node_modules/.pnpm/deep@1/node_modules/deep/index.js", "export default 1;");
    fs::create_dir_all(home.path().join("app/packages/shared/node_modules")).unwrap();
    for (target, link) in [
        ("../packages/shared", "app/node_modules/shared"),
        ("../../../node_modules/.pnpm/deep@1/node_modules/deep", "app/packages/shared/node_modules/deep"),
        ("app", "link"),
        ("functions/f.js", "app/main.js"),
    ] {
        symlink(target, home.path().join(link)).unwrap();
    }
    write(
        "app/functions/f.js",
        "import x from 'shared'; import y from '../lib/y.js'; export default () => x + y;",
    );
    write("app/lib/y.js", "export default 2;");
    write("app/edgefaas.toml", "app = \"a\"\n[functions.f]\nmain = \"main.js\"\n");
    for app in ["app", "link", "link/edgefaas.toml"] {
        let (code, stdout, stderr) = run(home.path(), &["build", app]);
        assert_eq!(code, 0, "{app}: {stderr}");
        assert!(stdout.contains('f'), "{stdout}");
    }
    // A file with its siblings.
    write("single/hello.js", "import { who } from './who.js'; export default () => who;");
    write("single/who.js", "export const who = 'world';");
    let (code, _, stderr) = run(home.path(), &["build", "single/hello.js"]);
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn code_that_nests_too_deeply_is_7_and_names_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let deep =
        format!("const x = {{}}/{}1{}/1; export default ()=>1", "(".repeat(400_000), ")".repeat(400_000));
    fs::write(folder.path().join("deep.ts"), deep).unwrap();
    fs::write(folder.path().join("f.js"), "import './deep.ts'; export default () => 1;").unwrap();
    let (code, stdout, stderr) = run(folder.path(), &["build", "f.js"]);
    assert_eq!((code, stdout.as_str()), (7, ""), "{stderr}");
    assert!(stderr.contains("deep.ts: the code is nested too deeply"), "{stderr}");
    assert!(!stderr.contains("overflowed its stack"), "the child's own words are not shown: {stderr}");
}

#[test]
fn completions_and_manual_pages_have_all_commands_but_hidden_ones() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, stderr) = run(folder.path(), &["completions", shell]);
        assert_eq!(code, 0, "{stderr}");
        for word in ["passwd", "with-objects", "completions"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        assert!(!script.contains("-stdio"), "{shell}: hidden commands");
        assert!(!script.contains("svg"), "{shell}: hidden options");
    }

    let (code, _, stderr) = run(folder.path(), &["man", "new/pages"]);
    assert_eq!(code, 0, "{stderr}");
    let mut names = Vec::new();
    for page in fs::read_dir(folder.path().join("new/pages")).unwrap() {
        let page = page.unwrap();
        let text = fs::read_to_string(page.path()).unwrap();
        assert!(text.contains(".TH edgefaas") && !text.contains("-stdio"), "{:?}", page.path());
        assert!(!text.contains("svg"), "{:?}: hidden options", page.path());
        names.push(page.file_name().into_string().unwrap());
    }
    for name in ["edgefaas.1", "edgefaas-run.1", "edgefaas-users.1", "edgefaas-users-add.1"] {
        assert!(names.contains(&name.to_owned()), "{name} in {names:?}");
    }

    fs::write(folder.path().join("file"), "").unwrap();
    let (code, _, stderr) = run(folder.path(), &["man", "file"]);
    assert_eq!(code, 1);
    assert!(stderr.contains("choose another folder"), "{stderr}");
}
