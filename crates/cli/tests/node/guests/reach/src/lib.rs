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
        "asset" => asset(&context, rest),
        "plant" => plant(rest).to_string(),
        "scan" => scan(marker(rest)).to_string(),
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

/// Length and sum of an asset, before and after memory was asked for, used and given back; `write` writes into it.
fn asset(context: &Context, rest: &str) -> String {
    let (name, write) = rest.split_once(' ').unwrap_or((rest, ""));
    let Some(content) = context.asset(name) else { return format!("no asset {name}") };
    let before = sum(content);
    let blocks: Vec<Vec<u8>> = (0..20u8).map(|number| vec![number; 1 << 20]).collect();
    let used: u64 = blocks.iter().map(|block| sum(block)).sum();
    drop(blocks);
    if write == "write" {
        let place = content.as_ptr().cast_mut();
        // What no function should do: the next invocation must not see it.
        unsafe { place.write_volatile(content[0].wrapping_add(1)) };
    }
    format!("{} {before} {} {used} {}", content.len(), sum(content), content.as_ptr() as usize % 64)
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

/// Numbers that are nowhere in memory unless somebody has put them there.
fn marker(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

static mut KEPT: [u64; 4096] = [0; 4096];

/// Leaves a marker in the heap, in a static and on the stack, and says how often it finds it.
fn plant(text: &str) -> usize {
    let marker = marker(text);
    std::mem::forget(std::hint::black_box(vec![marker; 1 << 19]));
    drop(std::hint::black_box(vec![marker; 1 << 16]));
    // One thread, and nobody else knows of it.
    unsafe { (&raw mut KEPT).write_volatile([marker; 4096]) };
    std::hint::black_box([marker; 1024]);
    scan(marker)
}

/// How often a number is in the linear memory, all of it, with what a later growth brings.
fn scan(marker: u64) -> usize {
    core::arch::wasm32::memory_grow::<0>(16);
    let end = core::arch::wasm32::memory_size::<0>() << 16;
    // Every address below the end may be read.
    (8..end).step_by(8).filter(|at| unsafe { (*at as *const u64).read_volatile() } == marker).count()
}
