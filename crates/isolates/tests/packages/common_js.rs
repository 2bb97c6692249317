//! CommonJS modules.

use edgefaas_isolates::RunError;
use serde_json::json;

use super::App;
use crate::support::{Bench, call};

#[tokio::test]
async fn requires_run_when_they_are_reached_and_once() {
    let app = App::new(&[
        (
            "main.js",
            "import log from 'old'; import again, { get } from 'old';\n\
             export default () => [log, again === log, get === log.get, get('late')];",
        ),
        (
            "node_modules/old/index.js",
            "var order = require('./order');\norder.push('first');\nvar sub = require('./sub');\n\
             if (order.length > 99) require('./never');\n\
             exports.order = order; exports.sub = sub.name; exports.same = require('./sub.js') === sub;\n\
             exports.get = function (name) { return name === 'late' && require('./late.cjs'); };\n\
             exports.me = [this === exports, typeof require, typeof module, __filename, __dirname, module.id];\n",
        ),
        ("node_modules/old/order.js", "module.exports = [];\n"),
        ("node_modules/old/sub.js", "require('./order').push('sub');\nexports.name = __filename;\n"),
        ("node_modules/old/never.js", "require('./order').push('never');\n"),
        ("node_modules/old/late.cjs", "module.exports = 'late ' + require('./data.json').n;\n"),
        ("node_modules/old/data.json", "\u{feff}{ \"n\": 7 }"),
    ]);
    let exports = json!({
        "order": ["first", "sub"], "sub": "/node_modules/old/sub.js", "same": true,
        "me": [true, "function", "object", "/node_modules/old/index.js", "/node_modules/old",
               "node_modules/old/index.js"],
    });
    assert_eq!(app.answer().await, json!([exports, true, true, "late 7"]));
}

#[tokio::test]
async fn exports_may_be_any_value() {
    let app = App::new(&[
        (
            "main.js",
            "const a = ['./u.cjs', './n.cjs', './z.cjs'].length; module.exports = () => [a, typeof require('./u.cjs'), typeof require('./u.cjs'), require('./n.cjs'), require('./z.cjs')];",
        ),
        ("u.cjs", "module.exports = undefined;"),
        ("n.cjs", "module.exports = null;"),
        ("z.cjs", "module.exports = 0;"),
    ]);
    assert_eq!(app.answer().await, json!([3, "undefined", "undefined", null, 0]));
}

#[tokio::test]
async fn cycles_give_what_is_there_so_far() {
    let app = App::new(&[
        ("main.js", "import a from './lib/a.cjs'; export default () => a;"),
        (
            "lib/a.cjs",
            "exports.early = 1;\nconst b = require('./b.cjs');\nexports.seen = b.seen; exports.late = 2;\n",
        ),
        ("lib/b.cjs", "const a = require('./a.cjs');\nexports.seen = { ...a };\n"),
    ]);
    assert_eq!(app.answer().await, json!({ "early": 1, "seen": { "early": 1 }, "late": 2 }));
    // Through an ES module.
    let app = App::new(&[
        ("main.js", "import { b } from './lib/b.js'; export default () => b();"),
        ("lib/b.js", "import a from './a.cjs'; export const b = () => a.call() + 1; export const one = 1;"),
        ("lib/a.cjs", "const b = require('./b.js'); exports.call = () => b.one + 1;"),
    ]);
    assert_eq!(app.answer().await, json!(3));
}

#[tokio::test]
async fn the_default_import_follows_node_or_babel() {
    let package = [
        (
            "node_modules/compiled/index.js",
            "Object.defineProperty(exports, '__esModule', { value: true });\n\
             exports.default = 'default'; exports.named = 'named';",
        ),
        ("node_modules/plain/index.js", "module.exports = () => 'plain'; module.exports.named = 'named';"),
        ("node_modules/nothing/index.js", "module.exports = null;"),
    ];
    let main = "import c, { named as d } from 'compiled'; import p, { named as q, gone } from 'plain'; import n from 'nothing';\n\
                export default () => [c, d, p(), q, gone === undefined, n];";
    let app = App::new(&package);
    app.write("main.js", main);
    assert_eq!(app.answer().await, json!(["default", "named", "plain", "named", true, null]));
    app.write("package.json", r#"{ "type": "module" }"#);
    let node = json!({ "default": "default", "named": "named" });
    assert_eq!(app.answer().await, json!([node, "named", "plain", "named", true, null]));
}

#[tokio::test]
async fn namespaces_show_what_the_syntax_shows() {
    let app = App::new(&[
        (
            "main.js",
            "import * as a from 'a'; import * as b from 'b'; export * from 'a';\n\
             export default async () => [Object.keys(a).sort(), b.hidden, Object.keys(await import('c')).sort()];",
        ),
        (
            "node_modules/a/index.js",
            "__exportStar(require('./more'), exports);\nexports.x = exports.y = 1;\nfunction __exportStar(m, e) { Object.assign(e, m); }",
        ),
        (
            "node_modules/a/more.js",
            "Object.defineProperty(exports, 'z', { enumerable: true, get: function () { return 3; } });",
        ),
        (
            "node_modules/b/index.js",
            "(function (root, make) { make(exports); })(this, function (e) { e['hid' + 'den'] = 5; });",
        ),
        ("node_modules/c/index.js", "module.exports = { p: 1, 'q-r': 2 };"),
    ]);
    assert_eq!(app.answer().await, json!([["default", "x", "y", "z"], 5, ["default", "p", "q-r"]]));
}

#[tokio::test]
async fn an_es_module_can_be_required() {
    let app = App::new(&[
        ("main.js", "import seen from './seen.cjs'; export default () => seen;"),
        (
            "seen.cjs",
            "const m = require('./m.mjs'); const n = require('./n.mjs');\n\
             module.exports = [m.default, m.name, m.__esModule, Object.keys(m), n];",
        ),
        ("m.mjs", "export default 1; export const name = 'm';"),
        ("n.mjs", "const whole = 'whole'; export { whole as 'module.exports' };"),
    ]);
    assert_eq!(app.answer().await, json!([1, "m", true, ["default", "name"], "whole"]));
}

#[tokio::test]
async fn the_function_itself_may_be_common_js() {
    let app = App::new(&[
        ("main.js", "const { two } = require('./two.js');\nmodule.exports = async () => two;\n"),
        ("two.js", "exports.two = 2;"),
    ]);
    assert_eq!(app.answer().await, json!(2));
}

#[tokio::test]
async fn dead_branches_are_not_resolved() {
    let app = App::new(&[
        ("main.js", "import p from 'p'; export default () => [p, process.env.NODE_ENV, typeof process];"),
        (
            "node_modules/p/index.js",
            "'use strict';\nif (process.env.NODE_ENV === 'production') { module.exports = require('./prod'); }\n\
             else { module.exports = require('./dev'); }\n\
             if (process.env.NODE_ENV !== \"production\" && typeof x === 'undefined') require('gone');\n\
             var kind = process.env.NODE_ENV === 'test' ? require('gone') : 'real';\n\
             module.exports.kind = kind;\n",
        ),
        ("node_modules/p/prod.js", "exports.name = 'prod'; exports.env = process.env.NODE_ENV;"),
    ]);
    let exports = json!({ "name": "prod", "env": "production", "kind": "real" });
    assert_eq!(app.answer().await, json!([exports, "production", "undefined"]));
    assert_eq!(app.modules(), ["main.js", "node_modules/p/index.js", "node_modules/p/prod.js"]);
}

#[tokio::test]
async fn a_missing_module_in_a_try_throws_when_it_runs() {
    let app = App::new(&[
        ("main.js", "import p from 'p'; export default () => p;"),
        (
            "node_modules/p/index.js",
            "const seen = [];\nfor (const load of [() => { try { return require('fs'); } catch (e) { return e.code; } },\n\
             () => { try { return require('gone'); } catch (e) { return e.message; } },\n\
             () => { try { return require('./th' + 'ere.js'); } catch (e) { return e.code; } },\n\
             () => { try { require('./throws.js'); } catch (e) { return e.message; } },\n\
             () => { try { require('./throws.js'); } catch (e) { return e.message; } }]) seen.push(load());\n\
             module.exports = seen;\n",
        ),
        (
            "node_modules/p/throws.js",
            "global.times = (global.times || 0) + 1;\nthrow new Error('time ' + times);",
        ),
    ]);
    let seen = app.answer().await;
    assert_eq!(seen[0], "MODULE_NOT_FOUND");
    assert!(
        seen[1]
            .as_str()
            .unwrap()
            .contains("Cannot find module 'gone', required by node_modules/p/index.js")
    );
    assert_eq!(seen[2], "MODULE_NOT_FOUND");
    assert_eq!((&seen[3], &seen[4]), (&json!("time 1"), &json!("time 2")));
}

#[tokio::test]
async fn conditions_choose_the_build_for_web_apis() {
    let app = App::new(&[
        (
            "main.js",
            "import a from 'a'; import b from 'b'; import c from 'c'; import d from 'd'; import e from 'e'; import f from 'f';\n\
             export default () => [a, b, c, d, e, f];",
        ),
        (
            "node_modules/a/package.json",
            r#"{ "exports": { "node": "./node.js", "worker": "./worker.js", "browser": "./browser.js", "default": "./node.js" } }"#,
        ),
        ("node_modules/a/worker.js", "export default 'worker';"),
        (
            "node_modules/b/package.json",
            r#"{ "exports": { "edgefaas": "./own.js", "browser": { "require": "./no.js", "import": "./no.js" } } }"#,
        ),
        ("node_modules/b/own.js", "export default 'edgefaas';"),
        (
            "node_modules/c/package.json",
            r#"{ "main": "./node.js", "module": "./m.js", "browser": "./browser.js" }"#,
        ),
        ("node_modules/c/browser.js", "module.exports = 'browser';"),
        (
            "node_modules/d/package.json",
            r#"{ "main": "./index.js", "browser": { "./node.js": "./browser.js", "fs": false, "crypto": "./crypto.js" } }"#,
        ),
        (
            "node_modules/d/index.js",
            "module.exports = [require('./node'), Object.keys(require('fs')), require('crypto')];",
        ),
        ("node_modules/d/browser.js", "module.exports = 'mapped';"),
        ("node_modules/d/crypto.js", "module.exports = 'no crypto';"),
        (
            "node_modules/e/package.json",
            r##"{ "exports": "./index.cjs", "imports": { "#x": { "node": "./no.js", "default": "./x.js" } } }"##,
        ),
        ("node_modules/e/index.cjs", "module.exports = [require('#x'), require('both')];"),
        ("node_modules/e/x.js", "module.exports = 'imports';"),
        (
            "node_modules/both/package.json",
            r#"{ "exports": { "import": "./i.mjs", "require": "./r.cjs" } }"#,
        ),
        ("node_modules/both/i.mjs", "export default 'import';"),
        ("node_modules/both/r.cjs", "module.exports = 'require';"),
        ("node_modules/f/package.json", r#"{ "main": "./main.js", "module": "./module.js" }"#),
        ("node_modules/f/module.js", "export default 'module';"),
    ]);
    let expected = json!([
        "worker",
        "edgefaas",
        "browser",
        ["mapped", [], "no crypto"],
        ["imports", "require"],
        "module"
    ]);
    assert_eq!(app.answer().await, expected);
}

#[tokio::test]
async fn an_error_names_the_packages_file_and_line() {
    let app = App::new(&[
        ("main.js", "import { fail } from 'p';\nexport default () => fail();\n"),
        ("node_modules/p/index.js", "#!/usr/bin/env node\nexports.fail = require('./fail');\n"),
        (
            "node_modules/p/fail.js",
            "/* a\n comment */\nvar x = process.env.NODE_ENV; module.exports = function fail() { throw new Error('on purpose'); };\n",
        ),
    ]);
    let bench = Bench::new();
    let program = bench.prepare(&app.collect().unwrap()).await.unwrap();
    let error = bench.run(&program, call("")).await.result.unwrap_err();
    let RunError::Failed { location, stack, .. } = error else { panic!("{error:?}") };
    let text = std::fs::read_to_string(app.path("node_modules/p/fail.js")).unwrap();
    let column = text.lines().nth(2).unwrap().find("new Error").unwrap() + "new Error".len() + 1;
    let location = location.unwrap();
    assert!(location.starts_with("node_modules/p/fail.js:3:"), "{location}");
    let near: usize = location.rsplit(':').next().unwrap().parse().unwrap();
    assert!(near.abs_diff(column) <= 10, "{location} should be about column {column}");
    assert!(!stack.unwrap().contains("edgefaas:"));
}
