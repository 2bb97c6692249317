//! Specifiers of ES modules are URLs, those of `require` are not.

use serde_json::json;

use super::App;

#[tokio::test]
async fn imports_are_urls_and_requires_are_names() {
    let count = "globalThis.count = (globalThis.count ?? 0) + 1; export const n = globalThis.count;";
    let app = App::new(&[
        (
            "main.js",
            "import { n as plain } from './lib/a%20b.js';\nimport { n as same } from './lib/a b.js';\n\
             import { n as other, stack } from './lib/a b.js?1#x';\nimport { n as twice } from './lib/%61%20b.js?1#x';\n\
             import { n as fragment } from './lib/a b.js#x';\nimport deep from 'p/x%20y.js?2';\n\
             import one from './c.cjs?1';\nimport two from './c.cjs?2';\nimport data from './d.json?1';\n\
             import marks from './q%3Fr%23s%25.js';\nimport required from './require.cjs';\n\
             export default async () => [plain === same, other === twice, new Set([plain, other, fragment]).size,\n\
             (await import('./lib/a b.js?1#x')).n === other, deep, one === two, data, marks, required, stack];",
        ),
        ("lib/a b.js", &format!("import './c.js';\n{count}\nexport const stack = new Error().stack;")),
        ("lib/c.js", "globalThis.shared = (globalThis.shared ?? 0) + 1;"),
        ("node_modules/p/package.json", r#"{ "type": "module", "exports": { "./*": "./lib/*" } }"#),
        ("node_modules/p/lib/x y.js", "export default 'deep';"),
        ("c.cjs", "module.exports = {};"),
        ("d.json", "{\"d\": 1}"),
        ("q?r#s%.js", "export default new Error().stack.includes('q%3Fr%23s%25.js:1:');"),
        (
            "require.cjs",
            "module.exports = [require('./a%20b'), require('./a?1.cjs'), require('./a?1'), require('./a#x')];",
        ),
        ("a%20b.js", "module.exports = 'escape';"),
        ("a?1.cjs", "module.exports = 'mark';"),
        ("a#x.js", "module.exports = 'fragment';"),
    ]);
    let mut answer = app.answer().await;
    let stack = answer.as_array_mut().unwrap().pop().unwrap();
    let required = ["escape", "mark", "mark", "fragment"];
    assert_eq!(answer, json!([true, true, 3, true, "deep", true, { "d": 1 }, true, required]));
    assert!(stack.as_str().unwrap().contains("lib/a b.js?1#x:3:"), "{stack}");
}

#[test]
fn specifiers_that_are_no_urls_are_refused() {
    let app = App::new(&[("a/b.js", ""), ("a.js", ""), ("node_modules/p/index.js", "")]);
    for (specifier, message) in [
        ("./a%2fb.js", "%2f and %5c stand for"),
        ("./a%5Cb.js", "write the path with /"),
        ("p/a%2Fb.js", "%2f and %5c stand for"),
        ("./100%.js", "a % itself is %25"),
        ("./a%ff.js", "its escapes are not UTF-8"),
        ("p?1", "the name of a package has no ?, # or %"),
        ("./c%20d.js?1", "there is no such file"),
    ] {
        app.write("main.js", &format!("import '{specifier}';"));
        let error = app.refused();
        assert!(error.starts_with("main.js:1:8: cannot find module") && error.contains(message), "{error}");
    }
    app.write("main.js", "require('./a.js?1'); module.exports = 1;");
    assert!(app.refused().contains("cannot find module \"./a.js?1\": there is no such file"));
}
