//! Adds to a counter of an object, reads it, or adds what numbers make; objects.js does the same. `redis` has a hash of Redis in
//! the object's place. What to do is in the path, as `/do/object[/server]` with numbers of 32 bits as
//! the body, or is the body as JSON.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use edgefaas::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Work {
    #[serde(rename = "do")]
    what: String,
    object: String,
    #[serde(default)]
    n: u32,
    /// Redis.
    server: Option<SocketAddr>,
}

#[edgefaas::function]
fn objects(event: Event, context: Context) -> Result<Json<i64>, Error> {
    let path = match event.trigger() {
        Trigger::Http(request) => request.path.as_str(),
        _ => "/",
    };
    let mut words = path.split('/').skip(1).filter(|word| !word.is_empty());
    let work = match words.next() {
        None => event.json()?,
        Some(what) => Work {
            what: what.to_owned(),
            object: words.next().unwrap_or_default().to_owned(),
            n: 0,
            server: words.next().and_then(|server| server.parse().ok()),
        },
    };
    let counter = context.object(&work.object).counter("n");
    let value = match work.what.as_str() {
        "add" => {
            for _ in 0..work.n {
                counter.add(1)?;
            }
            0
        }
        "read" => {
            let mut sum = 0;
            for _ in 0..work.n {
                sum += counter.value()?;
            }
            sum
        }
        "reduce" => {
            let sum = sum(event.bytes());
            counter.add(sum)?;
            sum
        }
        "redis" => {
            let server = work.server.ok_or_else(|| Error::new("there is no server"))?;
            increase(server, &work.object, sum(event.bytes()))
                .map_err(|error| Error::new(error.to_string()))?
        }
        "redis-read" => {
            let server = work.server.ok_or_else(|| Error::new("there is no server"))?;
            increase(server, &work.object, 0).map_err(|error| Error::new(error.to_string()))?
        }
        other => return Err(Error::new(format!("`{other}` is not a work"))),
    };
    Ok(Json(value))
}

/// Of numbers of four bytes, the lowest first.
fn sum(numbers: &[u8]) -> i64 {
    numbers.as_chunks().0.iter().map(|number| i64::from(i32::from_le_bytes(*number))).sum()
}

/// HINCRBY, on a connection of this invocation's own, in the protocol RESP2.
fn increase(server: SocketAddr, key: &str, amount: i64) -> std::io::Result<i64> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    let amount = amount.to_string();
    let words = ["HINCRBY", key, "n", &amount];
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(command.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let value = line.trim().strip_prefix(':').and_then(|value| value.parse().ok());
    value.ok_or_else(|| std::io::Error::other(format!("Redis has answered {line:?}")))
}
