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
    failure_within(bench, body, Limits::default()).await
}

async fn failure_within(bench: &Bench, body: &str, limits: Limits) -> RunError {
    let source = format!("export default async (event, context) => {{\n{body}\n}};");
    let program = bench.prepare(&graph("f.js", &source)).await.unwrap();
    bench.run_within(&program, call(""), limits).await.result.unwrap_err()
}
