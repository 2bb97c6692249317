//! `edgefaas logs [NAME]`

use std::collections::HashSet;
use std::time::Duration;

use edgefaas_api::control as proto;

use crate::args::{Global, Logs};
use crate::connection;
use crate::exit::{self, Exit, Failure};
use crate::output;

/// Waits between two attempts to follow a node that went, the first and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(200);
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The last lines that were shown: a node that is still the same sends them again.
#[derive(Default)]
struct Shown {
    time_unix_ms: i64,
    /// Lines of that time.
    lines: HashSet<(String, String)>,
}

impl Shown {
    /// True for a line that was not shown.
    fn is_new(&mut self, line: &proto::LogLine) -> bool {
        if line.time_unix_ms > self.time_unix_ms {
            self.time_unix_ms = line.time_unix_ms;
            self.lines.clear();
        }
        let key = (line.invocation_id.clone(), line.message.clone());
        line.time_unix_ms == self.time_unix_ms && self.lines.insert(key)
    }
}

pub async fn run(args: &Logs, global: &Global) -> anyhow::Result<()> {
    let mut shown = Shown::default();
    if !args.reconnect {
        return follow(args, global, &mut shown, Again::No).await;
    }
    let (mut wait, mut again) = (FIRST_WAIT, Again::No);
    loop {
        let before = shown.time_unix_ms;
        let error = match follow(args, global, &mut shown, again).await {
            Err(error) if exit::code(&error) == Exit::Unreachable => error,
            ended => return ended,
        };
        if wait == FIRST_WAIT {
            eprintln!("warning: {error:#}; waiting for it to be back");
        }
        tokio::time::sleep(wait).await;
        wait = if shown.time_unix_ms > before { FIRST_WAIT } else { (wait * 2).min(MAX_WAIT) };
        again = Again::Yes;
    }
}

/// True state of the lines that were shown before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    No,
    /// Lines that were shown are skipped.
    Yes,
}

async fn follow(args: &Logs, global: &Global, shown: &mut Shown, again: Again) -> anyhow::Result<()> {
    let mut client = connection::connect(global).await?;
    // After a pause all kept lines count, which came meanwhile.
    let tail = if again == Again::Yes { 0 } else { args.tail.unwrap_or(0) };
    let function = args.name.clone().unwrap_or_default();
    let request = proto::LogsRequest { function, follow: args.follow, tail };
    let mut lines = client.logs(request).await.map_err(|status| connection::failure(&status))?.into_inner();
    while let Some(line) = lines.message().await.map_err(|status| connection::failure(&status))? {
        if shown.is_new(&line) || again == Again::No {
            output::log(&line, global.output)?;
        }
    }
    if args.follow {
        let message = "the node has stopped; `--reconnect` waits until it is back, and follows it again";
        return Err(Failure::new(Exit::Unreachable, message));
    }
    Ok(())
}
