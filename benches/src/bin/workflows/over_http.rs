//! Requests over HTTP on connections that are kept, each with a thread of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;
use edgefaas_benches::client::Client;
use edgefaas_benches::samples::{Load, Samples, Window};

use crate::load::payload;

/// What is not answered so long after the last request was due is not waited for.
const LATE: Duration = Duration::from_secs(5);

/// What came of an open loop.
pub struct Paced {
    /// From the time at which a request was due to its answer.
    pub samples: Samples,
    /// Of the requests, in percent.
    pub answered: f64,
}

/// One POST after another on each of so many connections.
pub fn closed_loop(
    address: SocketAddr,
    path: &str,
    connections: usize,
    length: Duration,
) -> anyhow::Result<Load> {
    let window = Window::after_warm_up(length);
    let samples = on_each(connections, |samples| {
        let mut client = Client::new(address);
        loop {
            let sent = Instant::now();
            if sent >= window.to {
                return Ok(());
            }
            call(&mut client, path)?;
            samples.add(sent, Instant::now(), window);
        }
    })?;
    Ok(Load::new(samples, window))
}

/// POSTs that are due at a steady rate, on the first of so many connections that is free.
pub fn open_loop(
    address: SocketAddr,
    path: &str,
    connections: usize,
    rate: f64,
    length: Duration,
) -> anyhow::Result<Paced> {
    let total = (rate * length.as_secs_f64() * 1.25) as u64;
    let (next, epoch) = (AtomicU64::new(0), Instant::now());
    let window = Window { from: epoch + length / 4, to: epoch + length.mul_f64(1.25) + LATE };
    let samples = on_each(connections, |samples| {
        let mut client = Client::new(address);
        loop {
            let number = next.fetch_add(1, Relaxed);
            if number >= total || Instant::now() >= window.to {
                return Ok(());
            }
            let due = epoch + Duration::from_secs_f64(number as f64 / rate);
            sleep(due.saturating_duration_since(Instant::now()));
            call(&mut client, path)?;
            samples.add(due, Instant::now(), window);
        }
    })?;
    let answered = samples.completed() as f64 / total as f64 * 100.0;
    Ok(Paced { samples, answered })
}

fn call(client: &mut Client, path: &str) -> anyhow::Result<()> {
    let (status, answer) = client.post_json(path, payload(1).as_bytes())?;
    ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Runs the same on so many threads.
fn on_each(
    connections: usize,
    run: impl Fn(&mut Samples) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Samples> {
    let one = || {
        let mut samples = Samples::default();
        run(&mut samples).map(|()| samples)
    };
    std::thread::scope(|threads| {
        let running: Vec<_> = (0..connections).map(|_| threads.spawn(one)).collect();
        let mut samples = Samples::default();
        for thread in running {
            samples.extend(thread.join().expect("a load thread does not panic")?);
        }
        Ok(samples)
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Answers a request after another with its own body.
    fn echo(stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line)? > 0 {
            if let Some(value) = line.trim().strip_prefix("content-length: ") {
                length = value.parse().expect("a number");
            }
            if line.trim().is_empty() {
                let mut body = vec![0; length];
                reader.read_exact(&mut body)?;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
                reader.get_mut().write_all(&[head.as_bytes(), &body].concat())?;
            }
            line.clear();
        }
        Ok(())
    }

    #[test]
    fn an_open_loop_sends_every_request_that_is_due() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Ends with the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(|| echo(stream?));
            }
        });
        let mut paced = open_loop(address, "/", 4, 1000.0, Duration::from_millis(80)).unwrap();
        assert_eq!((paced.answered, paced.samples.completed()), (100.0, 100));
        assert!(paced.samples.quantile_us(0.5) > 0.0);
    }
}
