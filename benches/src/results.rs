//! What was measured: the form in which it is kept, and tables of it.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Deserializer, Serialize};

use crate::results_folder;
use crate::samples::median;

/// The results of one run of one benchmark.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Names the file.
    pub name: String,
    /// Heading.
    pub title: String,
    /// What was done, in a sentence or two.
    pub what: String,
    /// What to type to do it again.
    pub command: String,
    /// Year, month, day.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// Load average over one minute when it began; above its number of cores others were at work.
    pub load_average: f64,
    /// One table for each question.
    pub tables: Vec<Table>,
    /// What was to be reached.
    pub targets: Vec<Target>,
    /// Pictures of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
}

/// The shape of a machine, without its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_gib: u64,
    pub kernel: String,
}

/// A picture in `docs/plots`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plot {
    /// Its file's name.
    pub file: String,
    /// What it shows.
    pub title: String,
}

/// Contestants side by side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Table {
    /// What is compared.
    pub title: String,
    /// One for each contestant.
    pub rows: Vec<Row>,
}

/// One contestant's figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Who.
    pub contestant: String,
    /// In the same order in all rows of a table.
    pub figures: Vec<Figure>,
}

/// A figure in every round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// What.
    pub name: String,
    /// Such as `us`.
    pub unit: String,
    /// One value a round; `NaN`, which JSON has as `null`, where there was nothing to measure.
    #[serde(deserialize_with = "values")]
    pub rounds: Vec<f64>,
}

/// Something that was to be reached.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Target {
    /// Key into `findings.toml`; targets with one cause share it.
    pub id: String,
    /// In words, with its limit.
    pub text: String,
    /// The value that was reached: the median over the rounds. As in [`Figure::rounds`].
    #[serde(deserialize_with = "value")]
    pub reached: f64,
    /// What it was held against.
    pub limit: f64,
    /// Whether less is better.
    pub at_most: bool,
}

fn value<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn values<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let values: Vec<Option<f64>> = Vec::deserialize(from)?;
    Ok(values.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

impl Figure {
    /// A figure without rounds so far.
    pub fn new(name: &str, unit: &str) -> Self {
        Self { name: name.into(), unit: unit.into(), rounds: Vec::new() }
    }

    /// The middle of the rounds.
    pub fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// The least and the most of the rounds.
    pub fn spread(&self) -> (f64, f64) {
        let fold = |pick: fn(f64, f64) -> f64| self.rounds.iter().copied().reduce(pick).unwrap_or(f64::NAN);
        (fold(f64::min), fold(f64::max))
    }
}

impl Target {
    /// At most `limit`.
    pub fn at_most(id: &str, text: &str, reached: f64, limit: f64) -> Self {
        Self { id: id.into(), text: text.into(), reached, limit, at_most: true }
    }

    /// At least `limit`.
    pub fn at_least(id: &str, text: &str, reached: f64, limit: f64) -> Self {
        Self { id: id.into(), text: text.into(), reached, limit, at_most: false }
    }

    /// Whether it was.
    pub fn is_met(&self) -> bool {
        if self.at_most { self.reached <= self.limit } else { self.reached >= self.limit }
    }
}

impl Table {
    /// A table for `contestants`, each with figures of these names and units.
    pub fn new(title: &str, contestants: &[&str], figures: &[(&str, &str)]) -> Self {
        let row = |contestant: &&str| Row {
            contestant: (*contestant).to_owned(),
            figures: figures.iter().map(|(name, unit)| Figure::new(name, unit)).collect(),
        };
        Self { title: title.into(), rows: contestants.iter().map(row).collect() }
    }

    /// Adds a round of one contestant, its values in the order of its figures.
    pub fn add(&mut self, contestant: usize, values: &[f64]) {
        for (figure, value) in self.rows[contestant].figures.iter_mut().zip(values) {
            figure.rounds.push(*value);
        }
    }

    /// The median over the rounds of the quotient of two contestants' figure number `figure`: what is slow in a round
    /// is slow for both.
    pub fn ratio(&self, contestant: usize, peer: usize, figure: usize) -> f64 {
        let rounds = |row: usize| self.rows[row].figures[figure].rounds.iter();
        let ratios: Vec<f64> = rounds(contestant).zip(rounds(peer)).map(|(a, b)| a / b).collect();
        median(&ratios)
    }

    /// As Markdown, which reads well on a terminal too.
    pub fn markdown(&self) -> String {
        let Some(first) = self.rows.first() else { return String::new() };
        let mut cells = vec![vec![String::new()]];
        cells[0].extend(first.figures.iter().map(|figure| format!("{}, {}", figure.name, figure.unit)));
        for row in &self.rows {
            let mut line = vec![row.contestant.clone()];
            line.extend(row.figures.iter().map(cell));
            cells.push(line);
        }
        let widths: Vec<usize> = (0..cells[0].len())
            .map(|column| cells.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut out = format!("**{}**\n\n", self.title);
        for (number, line) in cells.iter().enumerate() {
            out.push('|');
            for (text, width) in line.iter().zip(&widths) {
                let _ = write!(out, " {text:<width$} |");
            }
            out.push('\n');
            if number == 0 {
                out.push('|');
                for width in &widths {
                    let _ = write!(out, "{}|", "-".repeat(width + 2));
                }
                out.push('\n');
            }
        }
        out
    }
}

/// The median, and the spread if there is one.
fn cell(figure: &Figure) -> String {
    if figure.rounds.is_empty() {
        return "-".into();
    }
    let (least, most) = figure.spread();
    if figure.rounds.len() < 2 || least == most {
        return number(figure.median());
    }
    format!("{} ({} to {})", number(figure.median()), number(least), number(most))
}

/// With as many digits as say something; `-` for none.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "-".into();
    }
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    let plain = format!("{value:.digits$}");
    let (whole, rest) = plain.split_once('.').map_or((plain.as_str(), ""), |(whole, rest)| (whole, rest));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    if rest.is_empty() { grouped } else { format!("{grouped}.{rest}") }
}

impl Report {
    /// A report of today without tables so far.
    pub fn new(name: &str, title: &str, what: &str, command: &str) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            what: what.into(),
            command: command.into(),
            date: chrono::Utc::now().format("%Y-%m-%d").to_string(),
            machine: Machine::here(),
            load_average: load_average(),
            tables: Vec::new(),
            targets: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Reads one that was kept.
    pub fn load(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a report", path.display()))
    }

    /// Keeps it.
    pub fn save(&self) -> anyhow::Result<()> {
        let folder = results_folder();
        std::fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{}.json", self.name));
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// Prints tables and targets.
    pub fn print(&self) {
        println!(
            "\n# {} ({} cores, load average {:.1})\n",
            self.title, self.machine.cores, self.load_average
        );
        for table in &self.tables {
            println!("{}", table.markdown());
        }
        for target in &self.targets {
            let word = if target.is_met() { "reached" } else { "missed" };
            println!("{word}: {}: {}", target.text, number(target.reached));
        }
    }
}

/// A target that is reached much worse than in the kept report.
#[derive(Debug, Clone, PartialEq)]
pub struct Regression {
    /// The target's text.
    pub text: String,
    /// The value that was kept.
    pub kept: f64,
    /// The value of now.
    pub now: f64,
}

impl Report {
    /// The targets that are worse than the kept report's by more than `factor`. A target that the kept report does not have is none.
    pub fn regressions(&self, kept: &Report, factor: f64) -> Vec<Regression> {
        let mut found = Vec::new();
        for target in &self.targets {
            let known = |before: &&Target| before.text == target.text && !before.reached.is_nan();
            let Some(before) = kept.targets.iter().find(known) else { continue };
            let worse = if target.at_most {
                target.reached / before.reached
            } else {
                before.reached / target.reached
            };
            // A value that is no number is worse too.
            if worse.is_nan() || worse > factor {
                found.push(Regression {
                    text: target.text.clone(),
                    kept: before.reached,
                    now: target.reached,
                });
            }
        }
        found
    }
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
        };
        let memory_kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.split(' ').next()?.parse::<u64>().ok())
            .unwrap_or(0);
        let processor = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into());
        Self {
            processor: format!("{processor} ({})", std::env::consts::ARCH),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_gib: (memory_kib as f64 / f64::from(1 << 20)).round() as u64,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|value| value.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut table = Table::new("t", &["ours", "peer"], &[("p50", "us")]);
        for (ours, peer) in [(2.0, 1.0), (20.0, 10.0), (9.0, 3.0)] {
            table.add(0, &[ours]);
            table.add(1, &[peer]);
        }
        assert_eq!(table.ratio(0, 1, 0), 2.0);
        assert!(table.markdown().contains("| ours | 9.00 (2.00 to 20.0) |"), "{}", table.markdown());
    }

    #[test]
    fn numbers_have_the_digits_that_count() {
        let texts = [0.126, 12.34, 1234.5, 1_234_567.0, -1234.0].map(number);
        assert_eq!(texts, ["0.13", "12.3", "1,234", "1,234,567", "-1,234"]);
    }

    #[test]
    fn a_round_without_a_value_is_kept_and_read_again() {
        let mut report = Report::new("r", "", "", "");
        let mut table = Table::new("t", &["ours"], &[("p50", "us")]);
        for value in [f64::NAN, 1.0, 2.0] {
            table.add(0, &[value]);
        }
        report.tables.push(table);
        report.targets.push(Target::at_most("a", "time", f64::NAN, 1.0));
        let read: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        let rounds = &read.tables[0].rows[0].figures[0].rounds;
        assert!(rounds[0].is_nan() && rounds[1..] == [1.0, 2.0]);
        assert!(read.targets[0].reached.is_nan() && !read.targets[0].is_met());
        assert!(read.regressions(&read, 2.0).is_empty(), "nothing to compare with");
    }

    #[test]
    fn a_regression_is_a_target_that_is_worse_by_more_than_the_factor() {
        let report = |rate: f64, time: f64| {
            let mut report = Report::new("r", "", "", "");
            report.targets =
                vec![Target::at_least("a", "rate", rate, 2.0), Target::at_most("a", "time", time, 2.0)];
            report
        };
        let kept = report(3.0, 1.0);
        assert_eq!(report(1.6, 1.9).regressions(&kept, 2.0), []);
        assert_eq!(report(30.0, 0.1).regressions(&kept, 2.0), []);
        let found = report(1.4, f64::NAN).regressions(&kept, 2.0);
        assert_eq!(found.iter().map(|found| found.text.as_str()).collect::<Vec<_>>(), ["rate", "time"]);
        let mut other = kept.clone();
        other.targets.clear();
        assert_eq!(report(0.1, 10.0).regressions(&other, 2.0), []);
    }

    #[test]
    fn targets_know_their_direction() {
        assert!(Target::at_most("a", "", 1.2, 1.2).is_met());
        assert!(!Target::at_least("a", "", 2.9, 3.0).is_met());
    }
}
