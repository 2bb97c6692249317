//! Six programs that compute, for functions of a node and as native code; kernels.mjs has the same for JavaScript. Each answers with a
//! text by which the languages can be compared.

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

const SIZE: usize = 100;
const RECORDS: usize = 900;
const ROUNDS: usize = 64;

/// The answer of a kernel, which runs so often for it. `None` if there is no kernel of this name.
pub fn run(kernel: &str, times: u32) -> Option<String> {
    let kernel = match kernel {
        "matrix" => matrix,
        "json" => json_text,
        "expressions" => expressions,
        "strings" => strings,
        "sha256" => sha256,
        "sort" => sort,
        _ => return None,
    };
    let mut answer = String::new();
    for _ in 0..times {
        answer = black_box(kernel)();
    }
    Some(answer)
}

/// Numerical Recipes' generator.
fn numbers(count: usize) -> impl Iterator<Item = u32> {
    let next = |last: &u32| Some(last.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    std::iter::successors(next(&1), next).take(count)
}

type Square = Vec<Vec<f64>>;

fn square(value: fn(usize, usize) -> f64) -> Square {
    (0..SIZE).map(|row| (0..SIZE).map(|column| value(row, column)).collect()).collect()
}

static LEFT: LazyLock<Square> =
    LazyLock::new(|| square(|row, column| ((row * 7 + column * 3) % 10) as f64 + 0.5));
static RIGHT: LazyLock<Square> =
    LazyLock::new(|| square(|row, column| ((row * 5 + column * 11) % 13) as f64 - 0.25));

/// The product of two matrices.
fn matrix() -> String {
    let (left, right) = (black_box(&*LEFT), black_box(&*RIGHT));
    let mut trace = 0.0;
    for (row, line) in left.iter().enumerate() {
        for column in 0..SIZE {
            let mut sum = 0.0;
            for at in 0..SIZE {
                sum += line[at] * right[at][column];
            }
            trace += sum * if row == column { 8.0 } else { 1.0 };
        }
    }
    (trace * 8.0).to_string()
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let record = |at: usize| {
        json!({
            "at": 1_700_000_000 + at * 60, "celsius": 18.25 + (at % 70) as f64 / 10.0, "id": format!("sensor-{}", at % 20),
            "ok": at % 7 != 0, "room": format!("hall {}, \"north\"", at % 11), "tags": ["a", "bc", null],
        })
    };
    Value::Array((0..RECORDS).map(record).collect()).to_string()
});

/// 100 kB parsed, and written again.
fn json_text() -> String {
    let document = black_box(&*DOCUMENT);
    let records: Value = serde_json::from_str(document).unwrap_or_default();
    let text = records.to_string();
    let id = records[RECORDS - 1]["id"].as_str().unwrap_or_default();
    format!("{} {} {id}", text.len(), text == *document)
}

static LINES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let line = |at: usize| {
        format!(
            "2026-11-{}T0{}:30:00 INFO pump-{}-a{at} temperature={} state={}",
            10 + at % 20,
            at % 10,
            at % 9,
            (at % 400) as f64 / 4.0 - 20.0,
            if at % 2 == 1 { "on" } else { "off" },
        )
    };
    (0..500).map(line).collect()
});

static DATE: LazyLock<Regex> = LazyLock::new(|| expression(r"^(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d)"));
static TEMPERATURE: LazyLock<Regex> = LazyLock::new(|| expression(r"temperature=(-?\d+(?:\.\d+)?)"));
static WORD: LazyLock<Regex> = LazyLock::new(|| expression(r"\b[a-z]+(?:-[a-z0-9]+)*\b"));

/// JavaScript's classes are those of ASCII.
fn expression(text: &str) -> Regex {
    Regex::new(&format!("(?-u:{text})")).expect("an expression of this file")
}

/// Three expressions over 500 lines.
fn expressions() -> String {
    let (mut days, mut characters, mut words) = (0, 0, 0);
    for line in black_box(&*LINES) {
        if let Some(date) = DATE.captures(line) {
            days += date[3].parse::<u64>().unwrap_or(0);
        }
        if let Some(temperature) = TEMPERATURE.captures(line) {
            characters += temperature[1].len();
        }
        words += WORD.find_iter(line).map(|word| word.len()).sum::<usize>();
    }
    format!("{days} {characters} {words}")
}

/// A text of 10,000 lines built, split, and read by character.
fn strings() -> String {
    let mut text = String::new();
    for at in 0..black_box(10_000) {
        let _ = writeln!(text, "line {at} of many");
    }
    let mut sum: u64 =
        text.split('\n').filter(|line| line.ends_with("7 of many")).map(|line| line.len() as u64).sum();
    for byte in text.bytes() {
        sum = (sum * 31 + u64::from(byte)) % 1_000_003;
    }
    sum.to_string()
}

struct Sha256 {
    constants: [u32; ROUNDS],
    initial: [u32; 8],
    message: Vec<u8>,
}

static SHA256: LazyLock<Sha256> = LazyLock::new(|| {
    let is_prime = |candidate: &u32| (2..*candidate).all(|divisor| candidate % divisor != 0);
    let mut primes = (2..).filter(is_prime).map(f64::from);
    let primes: [f64; ROUNDS] = std::array::from_fn(|_| primes.next().unwrap_or_default());
    let fraction = |value: f64| (value.fract() * 2f64.powi(32)) as u32;
    Sha256 {
        constants: primes.map(|prime| fraction(prime.cbrt())),
        initial: std::array::from_fn(|at| fraction(primes[at].sqrt())),
        message: (0..16_384u32).map(|at| (at * 7) as u8).collect(),
    }
});

/// SHA-256 of 16 KiB, without the processor's instructions for it.
fn sha256() -> String {
    let Sha256 { constants, initial, message } = black_box(&*SHA256);
    let mut padded = vec![0; (message.len() + 9).div_ceil(64) * 64];
    padded[..message.len()].copy_from_slice(message);
    padded[message.len()] = 0x80;
    let bits = padded.len() - 8;
    padded[bits..].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut state = *initial;
    let mut words = [0u32; ROUNDS];
    for block in padded.chunks_exact(64) {
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        for at in 16..ROUNDS {
            let (x, y) = (words[at - 15], words[at - 2]);
            let s0 = x.rotate_right(7) ^ x.rotate_right(18) ^ (x >> 3);
            let s1 = y.rotate_right(17) ^ y.rotate_right(19) ^ (y >> 10);
            words[at] = words[at - 16].wrapping_add(s0).wrapping_add(words[at - 7]).wrapping_add(s1);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for at in 0..ROUNDS {
            let s1 = e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25);
            let choice = (e & f) ^ (!e & g);
            let one =
                h.wrapping_add(s1).wrapping_add(choice).wrapping_add(constants[at]).wrapping_add(words[at]);
            let s0 = a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22);
            let two = s0.wrapping_add((a & b) ^ (a & c) ^ (b & c));
            (h, g, f, e) = (g, f, e, d.wrapping_add(one));
            (d, c, b, a) = (c, b, a, one.wrapping_add(two));
        }
        for (word, add) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *word = word.wrapping_add(add);
        }
    }
    state.iter().fold(String::new(), |mut text, word| {
        let _ = write!(text, "{word:08x}");
        text
    })
}

#[derive(Clone)]
struct Item {
    id: usize,
    score: u32,
}

static UNSORTED: LazyLock<(Vec<u32>, Vec<String>, Vec<Item>)> = LazyLock::new(|| {
    let unsorted: Vec<u32> = numbers(20_000).collect();
    let texts = unsorted[..3000].iter().map(|number| format!("item {}", number % 100_000)).collect();
    let items = unsorted[3000..6000].iter().enumerate();
    let items = items.map(|(id, number)| Item { id, score: number % 1000 }).collect();
    (unsorted, texts, items)
});

/// 20,000 numbers, 3,000 texts and 3,000 objects.
fn sort() -> String {
    let (mut numbers, mut texts, mut items) = black_box(&*UNSORTED).clone();
    numbers.sort();
    texts.sort();
    items.sort_by_key(|item| item.score);
    format!("{} {} {}", numbers[10_000], texts[1500], items[1500].id)
}
