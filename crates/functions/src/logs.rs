//! Logs of functions: a ring buffer for each function, and a live stream for followers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use edgefaas_isolates::LogLevel;
use edgefaas_platform::Clock;
use parking_lot::Mutex;
use tokio::sync::broadcast;

/// Maximum size of a message, in bytes. Longer messages are cut, with a note at the end.
pub const MAX_MESSAGE_BYTES: usize = 8 << 10;
/// Number of lines that a follower may lag before it loses some.
const FOLLOW_LINES: usize = 1024;

/// One log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Sequence number over all lines of the node, from 1.
    pub number: u64,
    /// Time of the line, in milliseconds since the Unix epoch.
    pub time_unix_ms: u64,
    /// The name of the function.
    pub function: Arc<str>,
    /// The id of the invocation; empty if the line belongs to none.
    pub invocation: String,
    /// The severity.
    pub level: LogLevel,
    /// The message.
    pub message: String,
}

/// The ring buffers of all functions.
pub struct Logs {
    clock: Clock,
    limits: RingLimits,
    rings: Mutex<Rings>,
    follow: broadcast::Sender<LogLine>,
}

/// Limits of the ring buffer of one function.
#[derive(Debug, Clone, Copy)]
pub struct RingLimits {
    /// Maximum number of lines.
    pub lines: usize,
    /// Maximum size of their messages, in bytes.
    pub bytes: usize,
}

#[derive(Default)]
struct Rings {
    of_functions: HashMap<Arc<str>, Ring>,
    /// Number of the last line.
    last_number: u64,
}

#[derive(Default)]
struct Ring {
    lines: VecDeque<LogLine>,
    bytes: usize,
}

impl Logs {
    /// Without lines.
    pub fn new(clock: Clock, limits: RingLimits) -> Self {
        let (follow, _) = broadcast::channel(FOLLOW_LINES);
        Self { clock, limits, rings: Mutex::default(), follow }
    }

    /// Adds a line to the ring buffer, and writes it to the node's own log with `tracing`.
    pub fn add(&self, function: &Arc<str>, invocation: &str, level: LogLevel, message: String) {
        let message = cut(message);
        trace(function, invocation, level, &message);
        // Under the lock, so that followers and readers get the lines of all threads by number, and by time.
        let mut guard = self.rings.lock();
        let rings = &mut *guard;
        rings.last_number += 1;
        let line = LogLine {
            number: rings.last_number,
            time_unix_ms: self.clock.now_unix_ms(),
            function: function.clone(),
            invocation: invocation.to_owned(),
            level,
            message,
        };
        if self.follow.receiver_count() > 0 {
            // An error means that the last follower has left.
            let _ = self.follow.send(line.clone());
        }
        let ring = rings.of_functions.entry(function.clone()).or_default();
        ring.bytes += line.message.len();
        ring.lines.push_back(line);
        while ring.lines.len() > self.limits.lines || ring.bytes > self.limits.bytes {
            let Some(oldest) = ring.lines.pop_front() else { break };
            ring.bytes -= oldest.message.len();
        }
    }

    /// The lines in the ring buffer, oldest first: of `function`, or of all functions; at most the last `tail`.
    pub fn kept(&self, function: Option<&str>, tail: Option<usize>) -> Vec<LogLine> {
        let rings = self.rings.lock();
        let mut lines: Vec<LogLine> = match function {
            Some(name) => rings
                .of_functions
                .get(name)
                .map(|ring| ring.lines.iter().cloned().collect())
                .unwrap_or_default(),
            None => rings.of_functions.values().flat_map(|ring| ring.lines.iter().cloned()).collect(),
        };
        drop(rings);
        lines.sort_unstable_by_key(|line| line.number);
        if let Some(tail) = tail {
            lines.drain(..lines.len().saturating_sub(tail));
        }
        lines
    }

    /// A receiver of all lines from now on. If it is too slow, it gets the number of lines that it lost.
    pub fn follow(&self) -> broadcast::Receiver<LogLine> {
        self.follow.subscribe()
    }

    /// Removes the lines of a function that is no longer deployed.
    pub fn forget(&self, function: &str) {
        self.rings.lock().of_functions.remove(function);
    }
}

fn cut(mut message: String) -> String {
    if message.len() > MAX_MESSAGE_BYTES {
        let end = message.floor_char_boundary(MAX_MESSAGE_BYTES);
        let cut_bytes = message.len() - end;
        message.truncate(end);
        message.push_str(&format!("… ({cut_bytes} bytes cut)"));
    }
    message
}

fn trace(function: &str, invocation: &str, level: LogLevel, message: &str) {
    const TARGET: &str = "edgefaas::function";
    match level {
        LogLevel::Trace => tracing::trace!(target: TARGET, function, invocation, "{message}"),
        LogLevel::Debug => tracing::debug!(target: TARGET, function, invocation, "{message}"),
        LogLevel::Info => tracing::info!(target: TARGET, function, invocation, "{message}"),
        LogLevel::Warn => tracing::warn!(target: TARGET, function, invocation, "{message}"),
        LogLevel::Error => tracing::error!(target: TARGET, function, invocation, "{message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(lines: usize, bytes: usize) -> Logs {
        Logs::new(Clock::new(|| 7), RingLimits { lines, bytes })
    }

    #[test]
    fn a_ring_keeps_the_newest_lines_within_both_limits() {
        let logs = logs(3, 10);
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        for message in ["a", "b", "c", "d"] {
            logs.add(&one, "i", LogLevel::Info, message.into());
        }
        logs.add(&two, "i", LogLevel::Warn, "12345678901".into());
        logs.add(&two, "i", LogLevel::Warn, "123456".into());
        let messages =
            |function| logs.kept(function, None).into_iter().map(|line| line.message).collect::<Vec<_>>();
        assert_eq!(messages(Some("one")), ["b", "c", "d"]);
        assert_eq!(messages(Some("two")), ["123456"]);
        assert_eq!(messages(None), ["b", "c", "d", "123456"]);
        assert_eq!(logs.kept(Some("one"), Some(1))[0].message, "d");
        logs.forget("one");
        assert!(logs.kept(Some("one"), None).is_empty());
    }

    #[test]
    fn a_long_message_is_cut_at_a_character_and_says_so() {
        let logs = logs(10, 1 << 20);
        let function: Arc<str> = "f".into();
        logs.add(&function, "i", LogLevel::Info, "ä".repeat(MAX_MESSAGE_BYTES));
        let line = &logs.kept(None, None)[0];
        assert!(line.message.ends_with("… (8192 bytes cut)"), "{}", &line.message[8000..]);
    }

    #[test]
    fn lines_of_many_threads_are_in_the_order_of_their_times() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let ticks = Arc::new(AtomicU64::new(0));
        let clock = Clock::new(move || ticks.fetch_add(1, Ordering::Relaxed));
        let logs = Logs::new(clock, RingLimits { lines: 1000, bytes: 1 << 20 });
        for _ in 0..20 {
            let mut follower = logs.follow();
            std::thread::scope(|threads| {
                for name in ["a", "b", "c", "d"] {
                    let (logs, function) = (&logs, Arc::from(name));
                    threads.spawn(move || {
                        (0..200).for_each(|_| logs.add(&function, "i", LogLevel::Info, "x".into()));
                    });
                }
            });
            let mut followed = Vec::new();
            while let Ok(line) = follower.try_recv() {
                followed.push((line.number, line.time_unix_ms));
            }
            assert_eq!(followed.len(), 800);
            assert!(followed.is_sorted_by(|(number, time), (next, later)| number < next && time < later));
        }
        assert!(logs.kept(None, None).is_sorted_by_key(|line| line.time_unix_ms));
    }

    #[tokio::test]
    async fn a_follower_gets_only_lines_added_after_it() {
        let logs = logs(10, 100);
        let function: Arc<str> = "f".into();
        logs.add(&function, "i", LogLevel::Info, "before".into());
        let mut follower = logs.follow();
        logs.add(&function, "i", LogLevel::Info, "after".into());
        assert_eq!(follower.recv().await.expect("a line").message, "after");
    }
}
