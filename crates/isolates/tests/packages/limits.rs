//! Limits of the modules of a function.

use std::fmt::Write;
use std::fs::File;

use super::App;

/// The maximum of included modules.
const MAX_MODULES: usize = 4000;
/// The maximum of parsed files.
const MAX_PARSED: usize = 12_000;

#[test]
fn a_function_has_at_most_so_many_modules() {
    let app = App::new(&[("m/0.js", "")]);
    let mut main = String::new();
    for n in 1..MAX_MODULES {
        app.write(&format!("m/{n}.js"), "");
        writeln!(main, "import './m/{n}.js';").unwrap();
    }
    app.write("main.js", &main);
    assert_eq!(app.modules().len(), MAX_MODULES);
    app.write("main.js", &(main + "import './m/0.js';"));
    assert_eq!(app.refused(), "the function reaches more than 4000 modules; bundle it first");
}

#[test]
fn at_most_so_many_files_are_parsed() {
    let app = App::new(&[
        ("main.js", "import { a1 } from 'many'; export default () => a1;"),
        (
            "node_modules/many/package.json",
            r#"{ "type": "module", "main": "index.js", "sideEffects": false }"#,
        ),
        ("node_modules/many/0.js", ""),
    ]);
    let mut index = String::new();
    // Beside the function itself and the index.
    for n in 1..=MAX_PARSED - 2 {
        app.write(&format!("node_modules/many/{n}.js"), "export const a = 1;");
        writeln!(index, "export {{ a as a{n} }} from './{n}.js';").unwrap();
    }
    app.write("node_modules/many/index.js", &index);
    assert_eq!(app.modules().len(), 3);
    app.write("node_modules/many/index.js", &(index + "export { a as a0 } from './0.js';"));
    let expected = "more than 12000 files would be parsed to find the function's modules; import from a smaller part of \
                    the package, or bundle it first";
    assert_eq!(app.refused(), expected);
}

#[test]
fn files_of_a_function_have_a_limit_together() {
    // 16 of 8 MiB, without the function itself.
    let app = App::new(&[("m/0.js", &format!("//{}", " ".repeat((8 << 20) - 2)))]);
    let mut main = String::new();
    for n in 0..16 {
        if n > 0 {
            std::fs::hard_link(app.path("m/0.js"), app.path(&format!("m/{n}.js"))).unwrap();
        }
        writeln!(main, "import './m/{n}.js';").unwrap();
    }
    app.write("main.js", &main);
    let expected = "m/15.js: with it, more than 128 MiB would be parsed to find the function's modules; import from a \
                    smaller part of the package, or bundle it first";
    assert_eq!(app.refused(), expected);
}

#[test]
fn large_files_are_not_read_to_their_end() {
    let app = App::new(&[
        ("main.js", "import data from './data.json'; export default () => data;"),
        ("data.json", "1"),
        ("package.json", "{}"),
    ]);
    app.collect().unwrap();
    // 4 TiB, of which the file system stores nothing.
    File::create(app.path("data.json")).unwrap().set_len(4 << 40).unwrap();
    let expected =
        "data.json:1:1: the module has 4398046511104 bytes; the limit is 8388608, so split or minify it";
    assert!(app.refused().starts_with(expected), "{}", app.refused());
    app.write("data.json", "1");
    File::create(app.path("package.json")).unwrap().set_len(4 << 40).unwrap();
    let error = app.refused();
    assert!(error.ends_with("package.json: cannot be read: it has more than 8388608 bytes"), "{error}");
}
