//! Packages that cannot run here, and hostile ones.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use super::App;

#[test]
fn modules_of_node_are_refused_with_their_importers_and_a_remedy() {
    let app = App::new(&[
        ("main.js", "import './lib/serve.js'; export default () => 1;"),
        ("lib/serve.js", "import express from 'express';"),
        ("node_modules/express/index.js", "module.exports = require('./lib/app');"),
        ("node_modules/express/lib/app.js", "\nvar http = require('node:http');"),
    ]);
    let message = app.refused();
    assert!(
        message.starts_with("node_modules/express/lib/app.js:2:12: \"node:http\" belongs to Node.js"),
        "{message}"
    );
    assert!(message.contains("use fetch") && message.contains("use Hono"), "{message}");
    let chain = "(imported by node_modules/express/index.js, by lib/serve.js, by main.js)";
    assert!(message.contains(chain), "{message}");
    for (source, remedy) in [
        ("import fs from 'fs';", "context.asset"),
        ("import fs from 'node:fs/promises';", "context.asset"),
        ("import net from 'net';", "context.publish"),
        ("import { exec } from 'child_process';", "context.call"),
        ("import 'node:unheard';", "needs no Node.js"),
    ] {
        app.write("main.js", source);
        let message = app.refused();
        assert!(message.contains("belongs to Node.js") && message.contains(remedy), "{message}");
        assert!(!message.contains("Hono") && !message.contains("imported by"), "{message}");
    }
}

#[test]
fn a_package_json_with_nonsense_is_an_error() {
    let app = App::new(&[
        ("main.js", "import p from 'p'; export default () => p;"),
        ("node_modules/p/index.js", "module.exports = 1;"),
    ]);
    for (package, message) in [
        ("{ nonsense", "package.json:1:"),
        (r#"{ "exports": { "./x": "./index.js", "import": "./index.js" } }"#, "Invalid package config"),
        (r#"{ "exports": { ".": "../../../main.js" } }"#, "Invalid \"exports\" target"),
        (r#"{ "exports": { ".": { "node": "./index.js" } } }"#, "not exported"),
        (r#"{ "exports": { ".": "./gone.js" } }"#, "cannot find module"),
        (
            r#"{ "exports": null, "main": "./gone", "browser": { "./gone": "./gone" } }"#,
            "cannot find module",
        ),
        (r#"{ "browser": { ".": "p", "p": "p" }, "main": "./no.txt" }"#, ""),
    ] {
        app.write("node_modules/p/package.json", package);
        match app.collect() {
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(message), "{package}: {error}");
            }
            // `main` that does not exist falls back to index.js, as in Node.
            Ok(graph) => assert_eq!(graph.modules[0].path, "main.js", "{package}"),
        }
    }
    let wide = format!(
        r#"{{ "browser": {{ {} }} }}"#,
        (0..50_000).map(|n| format!("\"./a{n}\": \"./a{}\"", n + 1)).collect::<Vec<_>>().join(",")
    );
    app.write("node_modules/p/package.json", &wide);
    app.write("node_modules/p/index.js", "require('./a0');");
    assert!(app.refused().contains("cannot find module"));
    let deep = format!(r#"{{ "exports": {}"./index.js"{} }}"#, "[".repeat(20_000), "]".repeat(20_000));
    app.write("node_modules/p/package.json", &deep);
    app.refused();
}

#[tokio::test]
async fn files_outside_of_the_app_folder_stay_outside() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret.js"), "module.exports = 'secret';").unwrap();
    let secret = outside.path().join("secret.js");
    let app = App::new(&[
        ("main.js", "import p from 'p'; export default () => p;"),
        ("node_modules/p/index.js", "module.exports = 1;"),
    ]);
    let up = "../".repeat(20);
    for package in [
        json!({ "main": format!("{up}{}", secret.display()) }),
        json!({ "browser": secret.display().to_string() }),
        json!({ "browser": { "./index.js": format!("{up}{}", secret.display()) } }),
        json!({ "browser": { "./index.js": secret.display().to_string() } }),
    ] {
        app.write("node_modules/p/package.json", &package.to_string());
        match app.collect() {
            Err(error) => assert!(!error.to_string().contains("'secret'"), "{package}: {error}"),
            Ok(graph) => {
                assert!(graph.modules.iter().all(|module| !module.source.contains("secret")), "{package}");
            }
        }
    }
    app.write("node_modules/p/package.json", "{}");
    app.write(
        "node_modules/p/index.js",
        &format!("module.exports = require({:?});", secret.display().to_string()),
    );
    let message = app.refused();
    assert!(message.contains("leads out of the app folder"), "{message}");

    // As pnpm installs it.
    app.write("node_modules/.pnpm/q@1.0.0/node_modules/q/index.js", "exports.r = require('r');");
    app.write("node_modules/.pnpm/r@1.0.0/node_modules/r/index.js", "module.exports = 'linked';");
    symlink(app.path("node_modules/.pnpm/q@1.0.0/node_modules/q"), app.path("node_modules/q")).unwrap();
    symlink("../../r@1.0.0/node_modules/r", app.path("node_modules/.pnpm/q@1.0.0/node_modules/r")).unwrap();
    app.write("main.js", "import { r } from 'q'; export default () => [r];");
    assert_eq!(app.answer().await, json!(["linked"]));
    std::fs::remove_file(app.path("node_modules/q")).unwrap();
    symlink(outside.path(), app.path("node_modules/q")).unwrap();
    std::fs::write(outside.path().join("index.js"), "exports.r = 1;").unwrap();
    assert!(app.refused().contains("out of the app folder"));
}

#[test]
fn only_regular_files_are_read() {
    let app = App::new(&[
        ("main.js", "import p from 'p'; import x from './lib/x.js'; export default () => [p, x];"),
        ("node_modules/p/index.js", "try { require('q'); } catch {}\nmodule.exports = 1;"),
        ("node_modules/q/index.js", ""),
        ("lib/x.js", "export default 1;"),
        ("lib/package.json", "{}"),
    ]);
    app.collect().unwrap();
    let pipe = app.path("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let socket = app.path("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (target, kind) in [(&pipe, "a named pipe"), (&socket, "a socket")] {
        for name in [
            "lib/x.js",
            "package.json",
            "node_modules/p/package.json",
            "node_modules/q/package.json",
            "lib/package.json",
        ] {
            let (path, kept) = (app.path(name), app.path("kept"));
            let _ = std::fs::rename(&path, &kept);
            symlink(target, &path).unwrap();
            let error = app.refused();
            // It is located before it is read, so the error has the name that the link leads to.
            let named = if name.ends_with(".js") { target } else { &path };
            let expected = format!(
                "{}: cannot be read: it is {kind}, and only regular files are read",
                named.display()
            );
            assert!(error.contains(&expected), "{name}: {error}");
            std::fs::remove_file(&path).unwrap();
            let _ = std::fs::rename(&kept, &path);
        }
    }
    app.collect().unwrap();
}

#[tokio::test]
async fn names_that_modules_of_node_lack_are_refused() {
    let app = App::new(&[
        ("main.js", "import p from 'p'; export default () => p;"),
        (
            "node_modules/p/index.js",
            "import { Buffer, transcode } from 'buffer'; export default transcode;",
        ),
    ]);
    let message = app.refused();
    assert!(
        message.starts_with("node_modules/p/index.js:1:35: \"buffer\" exports no \"transcode\" here: "),
        "{message}"
    );
    assert!(message.contains("use the Web APIs") && message.contains("(imported by main.js)"), "{message}");
    app.write("node_modules/p/index.js", "export { x as y } from 'node:path/posix';");
    assert!(app.refused().contains("\"node:path/posix\" exports no \"x\" here"));
    // Looking for a member is no error, and what is left out needs nothing.
    app.write("node_modules/p/package.json", r#"{ "sideEffects": false }"#);
    app.write(
        "node_modules/p/index.js",
        "import buffer, * as all from 'buffer'; import { join } from 'path/posix'; export { x } from './x.js';\n\
         export default [typeof buffer.transcode, typeof all.transcode, join('a', 'b')];",
    );
    app.write("node_modules/p/x.js", "export { x } from 'buffer';");
    assert_eq!(app.answer().await, json!(["undefined", "undefined", "a/b"]));
}
