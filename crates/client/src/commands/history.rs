//! `edgefaas history`

use chrono::{DateTime, Local};
use edgefaas_api::history as proto;
use serde_json::{Value, json};

use crate::args::{Format, Global, History};
use crate::connection;
use crate::fitting::{self, Column, Fit};
use crate::output::{self, size};

/// Characters of the course of a figure.
const COURSE_WIDTH: usize = 36;
/// Heights of a figure, the lowest first.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

const COLUMNS: [Column; 5] = [
    Column { name: "FIGURE", fit: Fit::Whole },
    Column { name: "NOW", fit: Fit::Whole },
    Column { name: "MEAN", fit: Fit::LeftOut(1) },
    Column { name: "HIGHEST", fit: Fit::Whole },
    Column { name: "COURSE", fit: Fit::LeftOut(0) },
];

/// A figure of the table.
struct Figure {
    name: &'static str,
    /// Its value in a sample; `None` if it is unknown.
    value: fn(&proto::Sample) -> Option<f64>,
    /// The value for people.
    text: fn(f64) -> String,
}

const FIGURES: [Figure; 12] = [
    Figure { name: "invocations", value: |sample| Some(sample.invocations), text: per_second },
    Figure { name: "failures", value: |sample| Some(sample.failures), text: per_second },
    Figure { name: "messages in", value: |sample| Some(sample.messages_in), text: per_second },
    Figure { name: "messages out", value: |sample| Some(sample.messages_out), text: per_second },
    Figure {
        name: "processor",
        value: |sample| Some(f64::from(sample.cpu_permille)),
        text: |permille| format!("{:.1} %", permille / 10.0),
    },
    Figure { name: "memory used", value: |sample| Some(sample.rss_bytes as f64), text: bytes },
    Figure {
        name: "memory left",
        value: |sample| known(sample.memory_available_bytes as f64),
        text: bytes,
    },
    Figure { name: "disk left", value: |sample| Some(sample.disk_free_bytes as f64), text: bytes },
    Figure { name: "MQTT clients", value: |sample| Some(f64::from(sample.mqtt_connections)), text: count },
    Figure { name: "isolates", value: |sample| Some(f64::from(sample.isolates_running)), text: count },
    Figure { name: "pending", value: |sample| Some(sample.pending as f64), text: count },
    Figure {
        name: "temperature",
        value: |sample| sample.temperature_millicelsius.map(f64::from),
        text: |millicelsius| format!("{:.1} °C", millicelsius / 1000.0),
    },
];

fn known(value: f64) -> Option<f64> {
    (value > 0.0).then_some(value)
}

fn per_second(rate: f64) -> String {
    format!("{rate:.1}/s")
}

fn bytes(value: f64) -> String {
    size(value as u64)
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}

pub async fn run(args: &History, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_history(global).await?;
    let request = proto::GetRequest { week: args.week, after_unix_ms: 0 };
    let response = client.get(request).await.map_err(|status| connection::failure(&status))?;
    let proto::GetResponse { step_ms, samples } = response.into_inner();
    if global.output == Format::Json {
        let samples: Vec<_> = samples.iter().map(as_json).collect();
        return output::json(&json!({ "step_ms": step_ms, "samples": samples }));
    }
    let [first, .., last] = &samples[..] else {
        return output::text(
            "the node has no samples yet: the first two come within 10 seconds, with --week within 10 minutes\n",
        );
    };
    let step = humantime::format_duration(std::time::Duration::from_millis(step_ms.into()));
    output::text(&format!("{} to {}, each {step}\n\n", time(first.unix_ms), time(last.unix_ms)))?;
    fitting::print(&COLUMNS, rows(&samples))
}

fn time(unix_ms: u64) -> String {
    let time = DateTime::from_timestamp_millis(unix_ms as i64).unwrap_or_default();
    time.with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string()
}

/// A row for each figure that the node has.
fn rows(samples: &[proto::Sample]) -> Vec<Vec<String>> {
    let row = |figure: &Figure| {
        let values: Vec<_> =
            samples.iter().filter_map(|sample| Some((sample.unix_ms, (figure.value)(sample)?))).collect();
        let (_, now) = values.last()?;
        let mean = values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
        let highest = values.iter().map(|(_, value)| *value).fold(f64::MIN, f64::max);
        let texts = [*now, mean, highest].map(figure.text);
        Some([figure.name.to_owned()].into_iter().chain(texts).chain([course(&values)]).collect())
    };
    FIGURES.iter().filter_map(row).collect()
}

/// The course of values over their times: the highest value of each part of the time, and a space for a part without any.
fn course(values: &[(u64, f64)]) -> String {
    let (Some((first, _)), Some((last, _))) = (values.first(), values.last()) else {
        return String::new();
    };
    let span = last.saturating_sub(*first).max(1);
    let mut parts: [Option<f64>; COURSE_WIDTH] = [None; COURSE_WIDTH];
    for (at, value) in values {
        let part = u128::from(at.saturating_sub(*first)) * (COURSE_WIDTH as u128 - 1) / u128::from(span);
        if let Some(highest) = parts.get_mut(part as usize) {
            *highest = Some(highest.map_or(*value, |before| before.max(*value)));
        }
    }
    let found = || parts.iter().flatten().copied();
    let (lowest, highest) = (found().fold(f64::MAX, f64::min), found().fold(f64::MIN, f64::max));
    let bar = |value: f64| {
        let height = (value - lowest) / (highest - lowest).max(f64::MIN_POSITIVE);
        let bar = (height * (BARS.len() - 1) as f64).round() as usize;
        BARS.get(bar).copied().unwrap_or(' ')
    };
    parts.into_iter().map(|part| part.map_or(' ', bar)).collect()
}

fn as_json(sample: &proto::Sample) -> Value {
    json!({
        "unix_ms": sample.unix_ms,
        "invocations": sample.invocations,
        "failures": sample.failures,
        "messages_in": sample.messages_in,
        "messages_out": sample.messages_out,
        "cpu_permille": sample.cpu_permille,
        "rss_bytes": sample.rss_bytes,
        "memory_available_bytes": sample.memory_available_bytes,
        "disk_free_bytes": sample.disk_free_bytes,
        "mqtt_connections": sample.mqtt_connections,
        "isolates_running": sample.isolates_running,
        "pending": sample.pending,
        "temperature_millicelsius": sample.temperature_millicelsius,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_has_the_highest_values_and_gaps() {
        let values: Vec<_> = (0..720).map(|number| (number * 5, number as f64)).collect();
        let rising = course(&values);
        assert_eq!(rising.chars().count(), COURSE_WIDTH);
        assert!(rising.starts_with('▁') && rising.ends_with('█'), "{rising}");
        let mut peak = vec![(0, 1.0), (1, 9.0), (2, 1.0), (1000, 1.0)];
        assert_eq!(course(&peak), format!("█{}▁", " ".repeat(COURSE_WIDTH - 2)));
        peak.truncate(1);
        assert_eq!(course(&peak).trim_end(), "▁");
        assert_eq!(course(&[]), "");
    }

    #[test]
    fn a_table_has_each_figure_that_the_node_has() {
        let sample = |unix_ms, invocations, temperature_millicelsius| proto::Sample {
            unix_ms,
            invocations,
            cpu_permille: 125,
            rss_bytes: 3 << 20,
            temperature_millicelsius,
            ..Default::default()
        };
        let samples = [sample(5000, 1.0, None), sample(10_000, 2.5, None)];
        let text = fitting::table(&COLUMNS, rows(&samples), 100);
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        let invocations = row("invocations").unwrap();
        assert!(["2.5/s", "1.8/s", "▁", "█"].iter().all(|part| invocations.contains(part)), "{text}");
        assert!(row("processor").unwrap().contains("12.5 %"), "{text}");
        assert!(row("memory used").unwrap().contains("3.0 MiB"), "{text}");
        assert_eq!((row("temperature"), row("memory left")), (None, None), "they are unknown: {text}");
        let narrow = fitting::table(&COLUMNS, rows(&samples), 40);
        assert!(narrow.lines().all(|line| line.chars().count() <= 40) && !narrow.contains('█'), "{narrow}");
        let warm = rows(&[sample(5000, 1.0, Some(61_250))]);
        assert_eq!(warm.last().unwrap()[..2], ["temperature", "61.2 °C"]);
    }
}
