//! Memory and processor time of each node, second by second: what is left of a function that nobody calls.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use edgefaas_benches::fleet::Member;
use edgefaas_benches::plots::Line;
use edgefaas_benches::process::{cpu_seconds_of, resident_mb_of};
use edgefaas_benches::results::Table;

const INTERVAL: Duration = Duration::from_secs(1);
/// Over which the processor time at the end is taken.
const END_SAMPLES: usize = 10;

/// Of one node: when, resident memory, processor time so far.
pub type Sample = (Duration, f64, f64);

/// Runs `work`, and gives its result and what the nodes took meanwhile.
pub fn watch<R: Send>(members: &[Member<'_>], work: impl FnOnce() -> R + Send) -> (R, Vec<Vec<Sample>>) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let begun = Instant::now();
            let mut samples = vec![Vec::new(); members.len()];
            loop {
                for (member, samples) in members.iter().zip(&mut samples) {
                    let id = member.process.id();
                    if let (Ok((resident_mb, _)), Ok(cpu_s)) = (resident_mb_of(id), cpu_seconds_of(id)) {
                        samples.push((begun.elapsed(), resident_mb, cpu_s));
                    }
                }
                if is_done.load(Relaxed) {
                    return samples;
                }
                std::thread::sleep(INTERVAL);
            }
        });
        let result = work();
        is_done.store(true, Relaxed);
        (result, sampling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// A row for each node: its memory before, at most and at the end, and its processor time over the last samples.
pub fn table(members: &[Member<'_>], samples: &[Vec<Sample>]) -> Table {
    let names: Vec<_> = members.iter().map(|member| member.host.name()).collect();
    let figures =
        [("before", "MB"), ("most", "MB"), ("at the end", "MB"), ("processor at the end", "ms a second")];
    let mut table = Table::new("scale-to-zero: resident memory and processor time", &names, &figures);
    for (number, samples) in samples.iter().enumerate() {
        let (Some(first), Some(last)) = (samples.first(), samples.last()) else { continue };
        let most = samples.iter().map(|sample| sample.1).fold(0.0, f64::max);
        let earlier = &samples[samples.len().saturating_sub(END_SAMPLES)];
        let seconds = (last.0 - earlier.0).as_secs_f64();
        table.add(number, &[first.1, most, last.1, (last.2 - earlier.2) * 1e3 / seconds]);
    }
    table
}

/// Memory in MB and processor time in percent of one processor over time, a line for each node.
pub fn lines(members: &[Member<'_>], samples: &[Vec<Sample>]) -> [Vec<Line>; 2] {
    let line = |points: fn(&[Sample]) -> Vec<(f64, f64)>| {
        let lines = members.iter().zip(samples);
        lines.map(|(member, samples)| (member.host.name().to_owned(), points(samples))).collect()
    };
    let memory =
        |samples: &[Sample]| samples.iter().map(|sample| (sample.0.as_secs_f64(), sample.1)).collect();
    let processor = |samples: &[Sample]| {
        let pairs = samples.windows(2).map(|pair| {
            let seconds = (pair[1].0 - pair[0].0).as_secs_f64();
            (pair[1].0.as_secs_f64(), (pair[1].2 - pair[0].2) * 100.0 / seconds)
        });
        pairs.collect()
    };
    [line(memory), line(processor)]
}
