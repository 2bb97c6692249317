//! Places in the stacks of packages' errors.

use edgefaas_isolates::RunError;

use super::App;
use crate::support::{Bench, call};

#[tokio::test]
async fn errors_show_places_in_typescript_and_in_long_lines() {
    let filler = format!("var a={:?};", "x".repeat(1_000_000));
    let app = App::new(&[
        ("node_modules/typed/package.json", r#"{ "main": "index.ts" }"#),
        (
            "node_modules/typed/index.ts",
            "interface A {\n  x: number;\n}\nexport default function typed(a?: A): never {\n  throw new Error('on purpose');\n}\n",
        ),
        (
            "node_modules/long/index.js",
            &format!("{filler}module.exports=()=>{{throw new Error('on purpose')}}"),
        ),
        (
            "node_modules/long/module.js",
            &format!("{filler}export default()=>{{throw new Error('on purpose')}}"),
        ),
    ]);
    let bench = Bench::new();
    for (specifier, place) in [
        ("typed", "node_modules/typed/index.ts:5:"),
        // The filler has 1,000,009 characters.
        ("long", "node_modules/long/index.js:1:10000"),
        ("long/module.js", "node_modules/long/module.js:1:10000"),
    ] {
        app.write("main.js", &format!("import fail from '{specifier}'; export default () => fail();"));
        let program = bench.prepare(&app.collect().unwrap()).await.unwrap();
        let error = bench.run(&program, call("")).await.result.unwrap_err();
        let RunError::Failed { location, stack, .. } = error else { panic!("{error:?}") };
        let (location, stack) = (location.unwrap(), stack.unwrap());
        assert!(location.starts_with(place) && stack.contains(place), "{place}: {location} {stack}");
        assert!(stack.len() < 1000, "{stack}");
    }
}
