//! Invocations over HTTP.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use edgefaas_benches::client::Client;
use serde_json::Value;

/// Invokes a function and gives the number it answers.
pub fn invoke(client: &mut Client, function: &str, work: &Value) -> anyhow::Result<i64> {
    invoke_text(client, function, &work.to_string())
}

/// The same with an input that is JSON text.
pub fn invoke_text(client: &mut Client, function: &str, work: &str) -> anyhow::Result<i64> {
    let path = format!("/fn/{function}");
    let (status, answer) = client.post(&path, work.as_bytes())?;
    ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&answer));
    let answer: Value = serde_json::from_slice(&answer)?;
    answer.as_i64().with_context(|| format!("{path} answers {answer} and no number"))
}

/// Invokes a function with each of the inputs, on so many connections to these gateways in turn; each connection has a thread.
/// Gives the sum of the answers.
pub fn invoke_all(
    gateways: &[SocketAddr],
    function: &str,
    works: &[String],
    connections: usize,
) -> anyhow::Result<i64> {
    std::thread::scope(|threads| {
        let running: Vec<_> = (0..connections)
            .map(|number| {
                threads.spawn(move || -> anyhow::Result<i64> {
                    let mut client = Client::new(gateways[number % gateways.len()]);
                    let mut sum = 0;
                    for work in works.iter().skip(number).step_by(connections) {
                        sum += invoke_text(&mut client, function, work)?;
                    }
                    Ok(sum)
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a load thread does not panic")).sum()
    })
}
