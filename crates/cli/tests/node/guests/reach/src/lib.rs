//! A function that reaches out of its isolate: to servers, to its environment, to the clock and to chance.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{SystemTime, UNIX_EPOCH};

use edgefaas::Request;
use edgefaas::prelude::*;

#[edgefaas::function]
async fn reach(event: Event, context: Context) -> Result<String, Error> {
    let text = event.text()?;
    let (what, rest) = text.split_once(' ').unwrap_or((text, ""));
    Ok(match what {
        "tcp" => told(tcp(rest)),
        "listen" => told(TcpListener::bind("127.0.0.1:0").map(|_| "listens".to_owned())),
        "udp" => told(UdpSocket::bind("127.0.0.1:0").map(|_| "bound".to_owned())),
        "sockets" => {
            // Kept, all of them.
            let all: Vec<_> = (0..100).map(|_| TcpStream::connect(rest)).collect();
            all.iter().filter(|stream| stream.is_ok()).count().to_string()
        }
        "variable" => std::env::var(rest).unwrap_or_else(|error| error.to_string()),
        "arguments" => std::env::args().collect::<Vec<_>>().join(" "),
        "stdin" => {
            let mut text = String::new();
            format!("{:?} {text:?}", std::io::stdin().read_to_string(&mut text)?)
        }
        "file" => told(std::fs::read_to_string("/etc/passwd")),
        "random" => RandomState::new().build_hasher().finish().to_string(),
        "clock" => SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis().to_string(),
        "fetch" => match context.fetch(Request::post(rest).header("x-asked", "yes").body("asked")).await {
            Ok(answer) => format!("{} {}", answer.status, answer.text()?),
            Err(error) => error.to_string(),
        },
        "both" => {
            let first = context.fetch(Request::get(rest));
            let second = context.fetch(Request::get(rest));
            format!("{} {}", first.await?.text()?, second.await?.text()?)
        }
        _ => return Err(Error::new(format!("{what} is unknown"))),
    })
}

/// Says hello and gives what comes back.
fn tcp(server: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(b"hello")?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn told(result: std::io::Result<String>) -> String {
    result.unwrap_or_else(|error| format!("{:?}", error.kind()))
}
