//! What functions take by themselves: one warm process, called by nobody else, without a server in front.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use edgefaas_benches::samples::median;

use crate::front::Catalogue;
use crate::functions;
use crate::trace::{Function, Kind, Trace};

const WARM_UP: usize = 5;
const CALLS: usize = 25;

/// The time of each function of the trace in milliseconds: what is slept, or the median of warm calls of its kind.
pub fn measure(trace: &Trace, catalogue: &Catalogue, url: &str) -> anyhow::Result<Vec<f64>> {
    let mut of_kind = HashMap::new();
    for kind in [Kind::Rest, Kind::Hash, Kind::Scale] {
        if let Some(function) = trace.functions.iter().find(|function| function.kind == kind) {
            let command = catalogue.get(&function.name).context("the catalogue has all functions")?;
            of_kind.insert(kind.name(), time(function, command, url)?);
        }
    }
    let own = |function: &Function| {
        of_kind.get(function.kind.name()).copied().unwrap_or(function.sleep_ms as f64)
    };
    Ok(trace.functions.iter().map(own).collect())
}

fn time(function: &Function, command: &[String], url: &str) -> anyhow::Result<f64> {
    let (program, arguments) = command.split_first().context("an empty command")?;
    let mut process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| program.clone())?;
    let mut stdin = process.stdin.take().context("stdin is piped")?;
    let mut stdout = BufReader::new(process.stdout.take().context("stdout is piped")?);
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    let request = functions::body(function, url) + "\n";
    let mut times = Vec::new();
    for _ in 0..WARM_UP + CALLS {
        let begun = Instant::now();
        stdin.write_all(request.as_bytes())?;
        line.clear();
        stdout.read_line(&mut line)?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        let right = functions::is_right(function.kind, line.trim().as_bytes());
        ensure!(right, "{} answered {line:?}", function.kind.name());
    }
    // The end of its input ends it.
    drop(stdin);
    process.wait()?;
    Ok(median(&times[WARM_UP..]))
}
