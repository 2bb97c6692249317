//! Modules that nothing uses.

use serde_json::json;

use super::App;

const BARREL: [(&str, &str); 8] = [
    (
        "node_modules/many/package.json",
        r#"{ "type": "module", "exports": "./index.js", "sideEffects": false }"#,
    ),
    (
        "node_modules/many/index.js",
        "export { a, b as\n  bee } from './ab.js';\nexport * from './star.js';\nexport * as all from './all.js';\n\
         export { default as one } from './one.js'; export const own = new Error('own').stack;\n",
    ),
    ("node_modules/many/ab.js", "export { a } from './a.js'; export { b } from './b.js';"),
    ("node_modules/many/a.js", "export const a = 'a';"),
    ("node_modules/many/b.js", "export const b = 'b';"),
    ("node_modules/many/star.js", "export const s = 's'; export * from './deep.js';"),
    ("node_modules/many/deep.js", "export const d = 'd';"),
    ("node_modules/many/one.js", "export default 1;"),
];

fn barrel(main: &str) -> App {
    let app = App::new(&BARREL);
    app.write("node_modules/many/all.js", "export const z = 'z';");
    app.write("main.js", main);
    app
}

fn without_prefix(app: &App) -> Vec<String> {
    app.modules()
        .into_iter()
        .filter_map(|path| Some(path.strip_prefix("node_modules/many/")?.to_owned()))
        .collect()
}

#[tokio::test]
async fn names_that_nobody_takes_are_left_out() {
    let app = barrel(
        "import { a, own } from 'many'; export default () => [a, own.includes('many/index.js:5:')];",
    );
    assert_eq!(without_prefix(&app), ["a.js", "ab.js", "index.js"]);
    assert_eq!(app.answer().await, json!(["a", true]));

    let app = barrel(
        "import { d } from 'many'; import * as many from 'many'; export default () => [d, many.one];",
    );
    assert_eq!(without_prefix(&app), ["deep.js", "index.js", "one.js", "star.js"]);
    assert_eq!(app.answer().await, json!(["d", 1]));

    let app = barrel("import * as many from 'many'; export default () => Object.keys(many).sort();");
    assert_eq!(without_prefix(&app).len(), 8);
    assert_eq!(app.answer().await, json!(["a", "all", "bee", "d", "one", "own", "s"]));
}

#[tokio::test]
async fn later_needs_bring_modules_back() {
    let app = barrel(
        "import { a } from 'many'; import b from './other.js'; export default async () => [a, b, (await import('./late.js')).x];",
    );
    app.write("other.js", "import { bee } from 'many'; export default bee;");
    app.write("late.js", "export { s as x } from 'many';");
    assert_eq!(without_prefix(&app), ["a.js", "ab.js", "b.js", "index.js", "star.js"]);
    assert_eq!(app.answer().await, json!(["a", "b", "s"]));
}

#[tokio::test]
async fn modules_with_effects_stay() {
    let main = "import { a } from 'many'; export default () => [a, globalThis.effect ?? null];";
    let app = barrel(main);
    app.write("node_modules/many/one.js", "globalThis.effect = 'one'; export default 1;");
    assert_eq!(app.answer().await, json!(["a", null]));
    for effects in ["[\"./one.js\"]", "[\"o*.js\"]", "\"**/one.js\"", "true"] {
        let package =
            format!(r#"{{ "type": "module", "exports": "./index.js", "sideEffects": {effects} }}"#);
        app.write("node_modules/many/package.json", &package);
        assert_eq!(app.answer().await, json!(["a", "one"]), "{effects}");
    }
}
