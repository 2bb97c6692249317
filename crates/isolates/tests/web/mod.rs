//! The Web APIs of JavaScript functions.

mod bodies;
mod compression;
mod console;
mod cryptography;
mod fetch;
mod globals;
mod intl;
mod requests;
mod standards;
mod streams;

use std::time::Duration;

use edgefaas_isolates::{Limits, RunError};

use crate::support::{Bench, call, graph};

/// What a handler with `body` returns, as JSON.
async fn answer(bench: &Bench, body: &str) -> serde_json::Value {
    let source = format!("export default async (event, context) => {{\n{body}\n}};");
    let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
    crate::json(bench.run(&program, call("")).await.result)
}

/// Why a handler with `body` fails.
async fn failure(bench: &Bench, body: &str) -> RunError {
    let source = format!("export default async (event, context) => {{\n{body}\n}};");
    let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
    let limits = Limits { timeout: Duration::from_millis(500), ..Limits::default() };
    bench.run_within(&program, call(""), limits).await.result.unwrap_err()
}
