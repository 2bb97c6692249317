//! Refuses an engine.wasm that a snapshot of its memory would not capture.

use wasmparser::{Parser, Payload};

fn main() {
    let path = std::env::args().nth(1).expect("usage: check-engine FILE.wasm");
    let wasm = std::fs::read(&path).expect("the file can be read");
    let mut mutable_globals = 0;
    let mut mutable_tables = Vec::new();
    let mut imports = Vec::new();
    for payload in Parser::new(0).parse_all(&wasm) {
        match payload.expect("valid wasm") {
            Payload::GlobalSection(globals) => {
                mutable_globals += globals.into_iter().filter(|g| g.as_ref().is_ok_and(|g| g.ty.mutable)).count();
            }
            Payload::TableSection(tables) => {
                for table in tables {
                    let table = table.expect("valid wasm");
                    if table.ty.maximum != Some(table.ty.initial) {
                        mutable_tables.push(table.ty);
                    }
                }
            }
            Payload::ImportSection(section) => {
                for import in section.into_imports() {
                    let import = import.expect("valid wasm");
                    imports.push(format!("{}.{}", import.module, import.name));
                }
            }
            _ => {}
        }
    }
    assert_eq!(mutable_globals, 1, "{path}: only __stack_pointer may be mutable, found {mutable_globals} globals");
    assert!(mutable_tables.is_empty(), "{path}: a table can grow: {mutable_tables:?}");
    imports.sort();
    let expected = [
        "edgefaas.call",
        "edgefaas.random",
        "edgefaas.start",
        "edgefaas.take",
        "env.__rquickjs_host_now_us",
        "env.memory",
    ];
    assert_eq!(imports, expected, "{path}: the imports are not those of js-abi");
    println!("{path}: {} kB, one mutable global, imports as expected", wasm.len() / 1024);
}
