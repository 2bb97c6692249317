//! Diagnostics of the node on stderr. A separate thread writes them, so that no connection or function waits for a slow reader of
//! stderr.

mod limit;

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};

use edgefaas_client::args::Format;
use edgefaas_client::output;
use serde_json::json;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use self::limit::Limit;

/// Events that wait to be written; further ones are counted and dropped.
const WAITING_EVENTS: usize = 2048;
/// A larger event is not written: all waiting events must fit into the memory of a small machine.
const MAX_EVENT_BYTES: usize = 16 << 10;

/// The thread that writes. A drop writes waiting events, for at most a second.
#[must_use = "a drop writes the waiting events"]
pub struct Log {
    _thread: WorkerGuard,
}

/// Starts to write diagnostics that match `RUST_LOG`, else `default`.
pub fn start(default: &str, format: Format) -> Log {
    // Messages of libraries about themselves do not help an operator.
    let default = format!("{default},libp2p_swarm=warn");
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let lost = Arc::<OnceLock<ErrorCounter>>::default();
    let stderr = Stderr { format, lost: lost.clone(), reported: 0 };
    let queue = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING_EVENTS);
    let (queue, thread) = queue.thread_name("log").finish(stderr);
    let _ = lost.set(queue.error_counter());
    let out = Bounded { queue, format };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(console::colors_enabled_stderr())
        .with_target(false)
        .with_writer(out.clone());
    let limit = Limit::new(out);
    // Fails only if a subscriber is set already.
    let _ = match format {
        Format::Json => builder.json().finish().with(limit).try_init(),
        Format::Table => builder.finish().with(limit).try_init(),
    };
    Log { _thread: thread }
}

/// Takes events of up to [`MAX_EVENT_BYTES`].
#[derive(Clone)]
struct Bounded {
    queue: NonBlocking,
    format: Format,
}

impl<'a> MakeWriter<'a> for Bounded {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for Bounded {
    /// Takes one whole event, as `tracing_subscriber` writes it.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if event.len() > MAX_EVENT_BYTES {
            let text = format!(
                "a line of {} bytes is omitted; `edgefaas logs` has the lines of functions",
                event.len()
            );
            self.queue.write_all(note(self.format, &text).as_bytes())?;
        } else {
            self.queue.write_all(event)?;
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Output of the thread.
struct Stderr {
    format: Format,
    lost: Arc<OnceLock<ErrorCounter>>,
    /// Lost events that were reported.
    reported: usize,
}

impl Stderr {
    fn write_event(&self, event: &[u8]) -> io::Result<()> {
        match self.format {
            Format::Json => io::stderr().lock().write_all(event),
            Format::Table => output::Diagnostics.write_all(event),
        }
    }
}

impl Write for Stderr {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let lost = self.lost.get().map_or(0, ErrorCounter::dropped_lines);
        if lost > self.reported {
            let text =
                format!("{} lines are omitted: stderr is not read fast enough", lost - self.reported);
            self.reported = lost;
            self.write_event(note(self.format, &text).as_bytes())?;
        }
        self.write_event(event)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// An event about the diagnostics themselves.
fn note(format: Format, text: &str) -> String {
    match format {
        Format::Json => format!("{}\n", json!({ "level": "WARN", "fields": { "message": text } })),
        Format::Table => format!(" WARN {text}\n"),
    }
}
