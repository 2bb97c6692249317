//! Tables and plots of turns.

use edgefaas_benches::plots::{Axis, Line, draw};
use edgefaas_benches::results::{Plot, Table};
use edgefaas_benches::samples::quantile;

use crate::contestants::{NAMES, PROCESSES, Turn};
use crate::load::Answer;
use crate::trace::{Kind, Trace};

/// A node's invocation that waited longer than this, in milliseconds, may have waited for its code to be loaded.
const WAITED_MS: f64 = 5.0;

/// The tables of a report, which grow turn by turn.
pub struct Tables {
    latency: Table,
    kinds: Table,
    starts: Table,
    resources: Table,
}

impl Tables {
    /// Without rounds so far.
    pub fn new() -> Self {
        let kinds = Kind::ALL.map(|kind| (format!("{} p50", kind.name()), format!("{} p99", kind.name())));
        let kinds: Vec<(&str, &str)> =
            kinds.iter().flat_map(|(p50, p99)| [(p50.as_str(), "ms"), (p99.as_str(), "ms")]).collect();
        let latency = [
            ("calls", "number"),
            ("failed", "number"),
            ("answered", "1/s"),
            ("p50", "ms"),
            ("p90", "ms"),
            ("p99", "ms"),
            ("slowdown p50", "x"),
            ("slowdown p99", "x"),
            ("sent late, p99", "ms"),
        ];
        let starts = [
            ("instances started", "number"),
            ("of calls", "%"),
            ("start p50", "ms"),
            ("start p99", "ms"),
            ("calls that loaded code, at most", "number"),
            ("first call of a function, p50", "ms"),
        ];
        let resources = [
            ("memory, mean", "MB"),
            ("memory, most", "MB"),
            ("processes, most", "number"),
            ("processor time", "s"),
        ];
        Self {
            latency: Table::new("All calls", &NAMES, &latency),
            kinds: Table::new("Latency by kind of function", &NAMES, &kinds),
            starts: Table::new("Starts", &NAMES, &starts),
            resources: Table::new("Memory and processor", &NAMES, &resources),
        }
    }

    /// Adds a turn. `own_ms` has what each function takes by itself.
    pub fn add(&mut self, contestant: usize, trace: &Trace, own_ms: &[f64], turn: &Turn) {
        let answered = || turn.answers.iter().filter(|answer| answer.failure.is_none());
        let latencies: Vec<f64> = answered().map(latency_ms).collect();
        let slowdowns: Vec<f64> =
            answered().map(|answer| latency_ms(answer) / own_ms[answer.function]).collect();
        let late: Vec<f64> = turn.answers.iter().map(|answer| answer.late.as_secs_f64() * 1e3).collect();
        let calls = turn.answers.len() as f64;
        self.latency.add(
            contestant,
            &[
                calls,
                calls - latencies.len() as f64,
                latencies.len() as f64 / turn.took.as_secs_f64(),
                quantile(&latencies, 0.5),
                quantile(&latencies, 0.9),
                quantile(&latencies, 0.99),
                quantile(&slowdowns, 0.5),
                quantile(&slowdowns, 0.99),
                quantile(&late, 0.99),
            ],
        );

        let of_kinds = Kind::ALL.map(|kind| {
            let of_kind = |answer: &&Answer| trace.functions[answer.function].kind == kind;
            let latencies: Vec<f64> = answered().filter(of_kind).map(latency_ms).collect();
            [quantile(&latencies, 0.5), quantile(&latencies, 0.99)]
        });
        self.kinds.add(contestant, of_kinds.as_flattened());

        let start: Vec<f64> = answered().filter_map(|answer| answer.start_ms).collect();
        let loaded = match contestant {
            PROCESSES => turn.starts,
            _ => {
                answered().filter(|answer| answer.queue_ms.is_some_and(|ms| ms > WAITED_MS)).count() as f64
            }
        };
        let first = first_calls(&turn.answers, trace.functions.len());
        self.starts.add(
            contestant,
            &[
                turn.starts,
                turn.starts / calls * 100.0,
                quantile(&start, 0.5),
                quantile(&start, 0.99),
                loaded,
                quantile(&first, 0.5),
            ],
        );

        let memory = || turn.samples.iter().map(|sample| sample.mb);
        let processes = turn.samples.iter().map(|sample| sample.processes).max().unwrap_or(0);
        self.resources.add(
            contestant,
            &[
                memory().sum::<f64>() / turn.samples.len() as f64,
                memory().fold(0.0, f64::max),
                processes as f64,
                turn.cpu_seconds,
            ],
        );
    }

    /// All of them.
    pub fn into_tables(self) -> Vec<Table> {
        vec![self.latency, self.kinds, self.starts, self.resources]
    }
}

/// Draws the turns of one round, one of each contestant.
pub fn plots(turns: &[Turn]) -> anyhow::Result<Vec<Plot>> {
    let lines = |points: &dyn Fn(&Turn) -> Vec<(f64, f64)>| -> Vec<Line> {
        NAMES.iter().zip(turns).map(|(name, turn)| ((*name).to_owned(), points(turn))).collect()
    };
    let time = Axis { title: "wall time, s", logarithmic: false };
    let memory = lines(&|turn| turn.samples.iter().map(|s| (s.at.as_secs_f64(), s.mb)).collect());
    let starts = lines(&|turn| {
        let before = turn.samples.first().map_or(0.0, |sample| sample.starts);
        turn.samples.iter().map(|s| (s.at.as_secs_f64(), s.starts - before)).collect()
    });
    let latency = lines(&|turn| {
        let mut latencies: Vec<f64> =
            turn.answers.iter().filter(|answer| answer.failure.is_none()).map(latency_ms).collect();
        latencies.sort_by(f64::total_cmp);
        let count = latencies.len() as f64;
        let slower =
            latencies.iter().enumerate().map(|(number, ms)| (*ms, (count - number as f64) / count));
        slower.collect()
    });
    let mb = Axis { title: "memory (PSS), MB", logarithmic: false };
    let number = Axis { title: "instances started", logarithmic: true };
    let ms = Axis { title: "latency, ms", logarithmic: true };
    let share = Axis { title: "share of calls that take longer", logarithmic: true };
    Ok(vec![
        draw("photons-memory.svg", "Memory of all processes while the trace is played", time, mb, &memory)?,
        draw("photons-latency.svg", "Latency: the share of calls that take longer", ms, share, &latency)?,
        draw("photons-starts.svg", "Instances started since the beginning", time, number, &starts)?,
    ])
}

fn latency_ms(answer: &Answer) -> f64 {
    answer.latency.as_secs_f64() * 1e3
}

/// The latency of the first answered call of each function that was called, in milliseconds.
fn first_calls(answers: &[Answer], functions: usize) -> Vec<f64> {
    let mut first = vec![None; functions];
    for answer in answers.iter().filter(|answer| answer.failure.is_none()) {
        first[answer.function].get_or_insert(latency_ms(answer));
    }
    first.into_iter().flatten().collect()
}
