//! One instance of a Rust function: `worker hash` or `worker scale`. Says `ready`, then answers each line with one.

use std::error::Error;
use std::io::{BufRead, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let function = std::env::args().nth(1).ok_or("which function?")?;
    let mut out = stdout().lock();
    writeln!(out, "ready")?;
    for line in stdin().lock().lines() {
        line?;
        let answer = match function.as_str() {
            "hash" => kernels::hash(),
            "scale" => kernels::scale()?,
            other => return Err(format!("no function {other}").into()),
        };
        writeln!(out, "{answer}")?;
    }
    Ok(())
}
