//! Any bytes as deployed code: JavaScript, TypeScript, JSON or a component. Nothing panics.

use std::sync::LazyLock;

use edgefaas_isolates::{compile, js};
use wasmtime::Engine;

/// Text that may need one level of the parser's recursion for each byte, for which the stack below has room. What nests more deeply
/// ends a child process in a node (`crates/cli/tests/node/hostile_deploys.rs`).
const MAX_TEXT_BYTES: usize = 8 << 10;
const STACK_BYTES: usize = 128 << 20;

static ENGINE: LazyLock<Engine> = LazyLock::new(Engine::default);

/// The first byte says what the rest is. True if it is that.
pub fn run(input: &[u8]) -> bool {
    let Some((kind, code)) = input.split_first() else { return false };
    let path = match kind % 4 {
        0 => "any.js",
        1 => "any.ts",
        2 => "any.json",
        _ => {
            let asset = ("asset.txt".to_owned(), b"content".to_vec());
            return compile::compile_component(&ENGINE, code.to_vec().into(), vec![asset]).is_ok();
        }
    };
    let Ok(text) = std::str::from_utf8(code) else { return false };
    if text.len() > MAX_TEXT_BYTES {
        return false;
    }
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().stack_size(STACK_BYTES);
        let parser = parser.spawn_scoped(scope, || match js::check(path, text) {
            Ok(()) => true,
            Err(error) => {
                assert!(error.line > 0 && !error.to_string().is_empty(), "an error without a place");
                false
            }
        });
        parser.expect("a thread").join().expect("the parser does not panic")
    })
}
