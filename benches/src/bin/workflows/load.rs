//! Mostly an open loop: requests leave when they are due, whether others were answered or not. Each has a number in its payload
//! (`{"n": 7}`), by which its answer is told.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::ensure;
use edgefaas_benches::broker_load::{connect, frame, packet, text};
use edgefaas_benches::samples::{Samples, Window};

/// Answers that are this late are not in time.
pub const IN_TIME: Duration = Duration::from_secs(1);
/// After so long without an answer those that are missing are taken as lost. A queue of 20,000 chains is worked off step by step: it has
/// no answer until all have done their first ones.
const LOST: Duration = Duration::from_secs(15);
/// The same where messages that have no answer are expected: while a rate is looked for that is too high.
const LOST_EVENTS: Duration = Duration::from_millis(1500);
/// How often it is looked whether others were answered.
const LOOK: Duration = Duration::from_micros(50);
/// Nobody answers more in a second.
const FASTEST: f64 = 200_000.0;
/// Requests that are written with one call, at most.
const BATCH: u64 = 100;

/// Numbers that were given to requests so far, of all loads: an answer that comes too late is nobody else's.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Sends requests with these numbers.
pub type Sender = Box<dyn FnMut(std::ops::Range<u64>) -> anyhow::Result<()> + Send>;
/// Waits a moment for answers: the number of each, or what came in its place.
pub type Receiver = Box<dyn FnMut(&mut Vec<Result<u64, String>>) -> anyhow::Result<()> + Send>;

/// To something that answers.
pub trait Way {
    /// Connects.
    fn open(&self) -> anyhow::Result<(Sender, Receiver)>;

    /// Requests that have one answer together.
    fn group(&self) -> u64 {
        1
    }

    /// How long it is waited for the next answer, once everything is sent.
    fn patience(&self) -> Duration {
        LOST
    }
}

/// When requests leave.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// So many in a second, for so long after a warm-up of a quarter of it.
    Rate(f64, Duration),
    /// So many as fast as they can be written.
    AtOnce(u64),
    /// As many as are answered: so many wait for their answers at a time. For so long after a warm-up of a quarter of it.
    Outstanding(u64, Duration),
}

/// What came of a load.
#[derive(Debug, Default)]
pub struct Answers {
    /// From sending to the answer, without the warm-up.
    pub latency: Samples,
    /// Answers that should have come, in the warm-up too.
    pub expected: u64,
    /// Answers that came.
    pub answered: u64,
    /// Of them: [`IN_TIME`].
    pub in_time: u64,
    /// What came in place of an answer, and the first of it.
    pub wrong: u64,
    /// The first that was wrong.
    pub first_wrong: Option<String>,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// From the first request to the last.
    pub sending: Duration,
}

impl Answers {
    /// Answers that came, of those that should have.
    pub fn share(&self) -> f64 {
        self.answered as f64 / self.expected as f64
    }

    /// Says what is not as it should be.
    pub fn warn(&self, who: &str) {
        if self.answered < self.expected {
            println!("{who}: {} of {} answers are missing", self.expected - self.answered, self.expected);
        }
        if let Some(wrong) = &self.first_wrong {
            println!("{who}: {} answers are none, such as {wrong:.300}", self.wrong);
        }
    }
}

/// Sends and waits for the answers.
pub fn load(way: &dyn Way, pace: Pace) -> anyhow::Result<Answers> {
    let (mut send, mut receive) = way.open()?;
    let (total, warm_up) = match pace {
        Pace::Rate(rate, length) => ((rate * length.as_secs_f64() * 1.25) as u64, length / 4),
        Pace::AtOnce(total) => (total, Duration::ZERO),
        Pace::Outstanding(_, length) => ((FASTEST * length.as_secs_f64() * 1.25) as u64, length / 4),
    };
    // Whole groups: a part of one would be finished by the next load.
    let total = total / way.group() * way.group();
    let base = NUMBERS.fetch_add(total, Relaxed);
    let sent_at: Vec<AtomicU64> = (0..total).map(|_| AtomicU64::new(0)).collect();
    // What was sent so far, and what was answered.
    let (all_sent, sent, done) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let epoch = Instant::now();
    // Whatever comes after the warm-up counts, however late.
    let window = Window { from: epoch + warm_up, to: epoch + Duration::from_secs(1 << 24) };
    let mut answers = Answers::default();
    scope(|threads| -> anyhow::Result<()> {
        let (sent_at, all_sent, sent, done) = (&sent_at, &all_sent, &sent, &done);
        let sender = threads.spawn(move || -> anyhow::Result<Duration> {
            let outcome = send_all(&mut send, pace, base, sent_at, [sent, done], epoch);
            all_sent.store(true, Release);
            outcome
        });
        let mut came = Vec::new();
        let mut last = Instant::now();
        loop {
            let whole = all_sent.load(Acquire);
            answers.expected = sent.load(Relaxed) / way.group();
            if whole && answers.answered + answers.wrong >= answers.expected {
                break;
            }
            came.clear();
            receive(&mut came)?;
            let now = Instant::now();
            if !whole {
                last = now;
            } else if now - last > way.patience() {
                break;
            }
            for answer in came.drain(..) {
                match answer {
                    Ok(number) => {
                        let Some(at) =
                            number.checked_sub(base).and_then(|index| sent_at.get(index as usize))
                        else {
                            continue;
                        };
                        let at = epoch + Duration::from_nanos(at.load(Relaxed));
                        answers.answered += 1;
                        answers.in_time += u64::from(now - at <= IN_TIME);
                        answers.latency.add(at, now, window);
                        answers.elapsed = now - epoch;
                    }
                    Err(text) => {
                        answers.wrong += 1;
                        answers.first_wrong.get_or_insert(text);
                    }
                }
                last = now;
            }
            done.store(answers.answered + answers.wrong, Relaxed);
        }
        answers.sending = sender.join().expect("the sender does not panic")?;
        Ok(())
    })?;
    Ok(answers)
}

fn send_all(
    send: &mut Sender,
    pace: Pace,
    base: u64,
    sent_at: &[AtomicU64],
    [sent, done]: [&AtomicU64; 2],
    epoch: Instant,
) -> anyhow::Result<Duration> {
    let total = sent_at.len() as u64;
    let mut next = 0;
    while next < total {
        let due = match pace {
            Pace::Rate(rate, _) => (epoch.elapsed().as_secs_f64() * rate) as u64 + 1,
            Pace::AtOnce(total) => total,
            Pace::Outstanding(_, length) if epoch.elapsed() > length.mul_f64(1.25) => break,
            Pace::Outstanding(window, _) => done.load(Relaxed) + window,
        };
        let to = due.min(total).min(next + BATCH);
        if to <= next {
            match pace {
                Pace::Rate(rate, _) => {
                    let at = epoch + Duration::from_secs_f64(next as f64 / rate);
                    sleep(at.saturating_duration_since(Instant::now()));
                }
                Pace::Outstanding(..) => sleep(LOOK),
                Pace::AtOnce(_) => {}
            }
            continue;
        }
        let now = epoch.elapsed().as_nanos() as u64;
        sent_at[next as usize..to as usize].iter().for_each(|at| at.store(now, Relaxed));
        sent.store(to, Relaxed);
        send(base + next..base + to)?;
        next = to;
    }
    Ok(epoch.elapsed())
}

/// The payload of a request.
pub fn payload(number: u64) -> String {
    format!("{{\"n\":{number}}}")
}

/// The number in an answer. With `computed` it has to have what a function adds.
pub fn number(answer: &[u8], computed: bool) -> Result<u64, String> {
    let text = String::from_utf8_lossy(answer);
    let digits = text.split_once("\"n\":").map(|(_, rest)| rest.trim_start()).unwrap_or_default();
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    match digits[..end].parse() {
        Ok(number) if !computed || text.contains("\"x\":") => Ok(number),
        _ => Err(text.into_owned()),
    }
}

/// Over MQTT 3.1.1, QoS 0, on one connection.
pub struct Mqtt {
    address: SocketAddr,
    /// Where requests go; `{n}` is their number.
    request: String,
    /// Where answers come.
    filter: String,
    computed: bool,
    group: u64,
}

impl Mqtt {
    /// Asks below `root`, at `invoke/NUMBER`, and is answered at `result/NUMBER`.
    pub fn asking(address: SocketAddr, root: &str, computed: bool) -> Self {
        let (request, filter) = (format!("{root}/invoke/{{n}}"), format!("{root}/result/+"));
        Self { address, request, filter, computed, group: 1 }
    }

    /// Gets back what it sends, by a topic of this kind.
    pub fn echoing(address: SocketAddr, root: &str) -> Self {
        let (request, filter) = (format!("{root}/{{n}}"), format!("{root}/+"));
        Self { address, request, filter, computed: false, group: 1 }
    }

    /// Sends to one topic; an answer for each `group` comes on another.
    pub fn through(address: SocketAddr, request: &str, filter: &str, group: u64) -> Self {
        Self { address, request: request.into(), filter: filter.into(), computed: true, group }
    }
}

impl Way for Mqtt {
    fn open(&self) -> anyhow::Result<(Sender, Receiver)> {
        let client = format!("load-{}", NUMBERS.fetch_add(1, Relaxed));
        let mut stream = connect(self.address, &client, true)?;
        let body = [&[0, 1][..], &text(&self.filter), &[0]].concat();
        stream.write_all(&packet(0x82, &body))?;
        let mut suback = [0; 5];
        stream.read_exact(&mut suback)?;
        ensure!(suback == [0x90, 3, 0, 1, 0], "SUBACK is {suback:x?}");
        let (mut writer, mut out, request) = (stream.try_clone()?, Vec::new(), self.request.clone());
        let send: Sender = Box::new(move |numbers| {
            out.clear();
            for number in numbers {
                let topic = text(&request.replace("{n}", &number.to_string()));
                out.extend(packet(0x30, &[&topic[..], payload(number).as_bytes()].concat()));
            }
            Ok(writer.write_all(&out)?)
        });
        let mut reader = Reader { stream, buffer: vec![0; 1 << 18], filled: 0 };
        let computed = self.computed;
        let receive: Receiver = Box::new(move |came| reader.receive(computed, came));
        Ok((send, receive))
    }

    fn group(&self) -> u64 {
        self.group
    }

    fn patience(&self) -> Duration {
        if self.group > 1 { LOST_EVENTS } else { LOST }
    }
}

struct Reader {
    stream: std::net::TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Reader {
    fn receive(&mut self, computed: bool, came: &mut Vec<Result<u64, String>>) -> anyhow::Result<()> {
        match self.stream.read(&mut self.buffer[self.filled..]) {
            Ok(read) => {
                ensure!(read > 0, "the broker closed the connection");
                self.filled += read;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        let mut at = 0;
        while let Some((body, end)) = frame(&self.buffer[at..self.filled]) {
            let (first_byte, body) = (self.buffer[at], &self.buffer[at + body..at + end]);
            at += end;
            if first_byte & 0xf6 != 0x30 {
                continue;
            }
            let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
            came.push(number(&body[2 + topic..], computed));
        }
        self.buffer.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The sender has the connection as well.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_answers() {
        assert_eq!(number(br#"{"n":17,"x":3}"#, true), Ok(17));
        assert_eq!(number(br#"{"x":3,"n": 5}"#, true), Ok(5));
        assert_eq!(number(br#"{"n":17}"#, false), Ok(17));
        assert!(number(br#"{"n":17}"#, true).is_err());
        assert!(number(br#"{"status":429}"#, false).is_err());
        assert_eq!(number(payload(9).as_bytes(), false), Ok(9));
    }
}
