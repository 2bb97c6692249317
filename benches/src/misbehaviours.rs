//! Functions that do what no function should, and how each has to end.

use std::path::PathBuf;
use std::process::Command;

use anyhow::bail;

use crate::{repository, target_folder};

/// How long each of them may run, in milliseconds.
pub const DEADLINE_MS: u64 = 200;

/// One kind.
#[derive(Debug, Clone, Copy)]
pub struct Misbehaviour {
    /// What it does; part of its functions' names.
    pub name: &'static str,
    /// The handler's body in JavaScript; none if it is the Rust guest that does it.
    pub script: Option<&'static str>,
    /// What it is sent: the Rust guest does what it is told.
    pub payload: &'static str,
    /// The answer's status.
    pub status: u16,
    /// Words in the answer, which say what has happened.
    pub words: &'static str,
}

const fn script(
    name: &'static str,
    script: &'static str,
    status: u16,
    words: &'static str,
) -> Misbehaviour {
    Misbehaviour { name, script: Some(script), payload: "", status, words }
}

const fn rust(name: &'static str, payload: &'static str, status: u16, words: &'static str) -> Misbehaviour {
    Misbehaviour { name, script: None, payload, status, words }
}

/// All kinds.
pub const ALL: [Misbehaviour; 17] = [
    script("js-loop", "for (;;);", 504, "timed out"),
    script("js-promises", "for (;;) await null;", 504, "timed out"),
    script("js-regex", r#"return /^(a+)+$/.test("a".repeat(40) + "b");"#, 504, "timed out"),
    script(
        "js-memory",
        "const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1));",
        500,
        "memory",
    ),
    script("js-recursion", "const deeper = () => deeper() + 1; return deeper();", 500, "stack"),
    script("js-throw", "throw new Error('as asked');", 500, "as asked"),
    script(
        "js-log",
        "for (let n = 0; n < 500; n++) console.log('x'.repeat(1000)); return 'said';",
        200,
        "said",
    ),
    script("js-output", "return 'x'.repeat(2 << 20);", 500, "large"),
    script("js-never", "await new Promise(() => {});", 500, "settle"),
    script(
        "js-pending",
        "await Promise.all(Array.from({ length: 1000 }, () => new Promise((done) => setTimeout(done, 60000))));",
        504,
        "timed out",
    ),
    script("js-waits", "await new Promise((done) => setTimeout(done, 60000));", 504, "timed out"),
    rust("rust-loop", "loop", 504, "timed out"),
    rust("rust-memory", "memory", 500, "memory"),
    rust("rust-recursion", "stack", 500, "stack"),
    rust("rust-trap", "trap", 500, "trap"),
    rust("rust-panic", "panic", 500, "panicked"),
    rust("rust-output", "large", 500, "large"),
];

impl Misbehaviour {
    /// Its part of a manifest; the source is `NAME.js`, or `misbehave.wasm` for the Rust guest.
    pub fn manifest(&self, function: &str) -> String {
        let main = self.script.map_or("misbehave.wasm".to_owned(), |_| format!("{}.js", self.name));
        let limits = format!(
            "limits = {{ timeout = \"{DEADLINE_MS}ms\", memory = \"16MiB\", reply = \"1MiB\", calls = 10000 }}"
        );
        format!("[functions.{function}]\nmain = \"{main}\"\n{limits}\n")
    }

    /// The text of its source, if it is a script.
    pub fn source(&self) -> Option<String> {
        self.script.map(|body| format!("export default async () => {{ {body} }};\n"))
    }

    /// Whether an answer is the one that it has to get; that its time was up before is right as well, where others compute.
    pub fn fits(&self, status: u16, body: &[u8]) -> bool {
        let body = String::from_utf8_lossy(body);
        (status == self.status && body.contains(self.words))
            || (status == 504 && body.contains("timed out"))
    }
}

/// Builds the Rust guest and gives its component's path.
pub fn build_guest() -> anyhow::Result<PathBuf> {
    let target = target_folder().join("guest");
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--target", "wasm32-wasip2"])
        .current_dir(repository().join("crates/cli/tests/node/guests/misbehave"))
        .env("CARGO_TARGET_DIR", &target)
        .status()?;
    if !status.success() {
        bail!("the guest `misbehave` could not be built: cargo ended with {status}");
    }
    Ok(target.join("wasm32-wasip2/release/misbehave.wasm"))
}
