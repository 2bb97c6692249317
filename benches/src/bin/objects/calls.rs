//! Invocations over HTTP.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use edgefaas_benches::client::Client;
use serde_json::Value;

/// Invokes a function and gives the number it answers.
pub fn invoke(client: &mut Client, function: &str, work: &Value) -> anyhow::Result<i64> {
    invoke_with(client, function, work.to_string().as_bytes())
}

/// The same with any body. A path may follow the function's name.
fn invoke_with(client: &mut Client, function: &str, body: &[u8]) -> anyhow::Result<i64> {
    let path = format!("/fn/{function}");
    let (status, answer) = client.post(&path, body)?;
    ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&answer));
    let answer: Value = serde_json::from_slice(&answer)?;
    answer.as_i64().with_context(|| format!("{path} answers {answer} and no number"))
}

/// Invokes a function, which a path may follow, with each of the bodies, on so many connections to these gateways in turn; each connection has a thread.
/// Gives the sum of the answers.
pub fn invoke_all(
    gateways: &[SocketAddr],
    function: &str,
    bodies: &[Vec<u8>],
    connections: usize,
) -> anyhow::Result<i64> {
    std::thread::scope(|threads| {
        let running: Vec<_> = (0..connections)
            .map(|number| {
                threads.spawn(move || -> anyhow::Result<i64> {
                    let mut client = Client::new(gateways[number % gateways.len()]);
                    let mut sum = 0;
                    for body in bodies.iter().skip(number).step_by(connections) {
                        sum += invoke_with(&mut client, function, body)?;
                    }
                    Ok(sum)
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a load thread does not panic")).sum()
    })
}
