//! One sample of the node's figures.

use serde::{Deserialize, Serialize};

/// Figures of one step. It has about 90 bytes in memory, and 50 on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The end of the step, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Invocations a second.
    pub invocations: f32,
    /// Failed invocations a second.
    pub failures: f32,
    /// Messages to the broker a second.
    pub messages_in: f32,
    /// Messages of the broker to subscribers a second.
    pub messages_out: f32,
    /// Used processor time of the machine, in thousandths of all its cores.
    pub cpu_permille: u16,
    /// Resident memory of the process, in bytes.
    pub rss_bytes: u64,
    /// Memory that is left within the limit of the process, in bytes; 0 if it is unknown.
    pub memory_available_bytes: u64,
    /// Free bytes on the disk of the data directory.
    pub disk_free_bytes: u64,
    /// Connected MQTT clients.
    pub mqtt_connections: u32,
    /// Isolates in use.
    pub isolates_running: u32,
    /// Durable invocations that have not ended.
    pub pending: u64,
    /// Temperature of the board; `None` if it does not tell.
    pub temperature_millicelsius: Option<i32>,
}

impl Sample {
    /// One sample for the time of several ones, which are in the order of their times: averages of rates and of the processor time, the
    /// highest temperature, and the last of all other figures. `None` if there are no samples.
    pub fn of_all<'a>(unix_ms: u64, samples: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let (mut merged, mut count) = (Self::default(), 0_u16);
        let mut cpu_permille = 0_u64;
        for sample in samples {
            count = count.saturating_add(1);
            cpu_permille += u64::from(sample.cpu_permille);
            let rates = [
                merged.invocations + sample.invocations,
                merged.failures + sample.failures,
                merged.messages_in + sample.messages_in,
                merged.messages_out + sample.messages_out,
            ];
            let temperature_millicelsius =
                merged.temperature_millicelsius.max(sample.temperature_millicelsius);
            let [invocations, failures, messages_in, messages_out] = rates;
            merged = Self {
                invocations,
                failures,
                messages_in,
                messages_out,
                temperature_millicelsius,
                ..*sample
            };
        }
        if count == 0 {
            return None;
        }
        let number = f32::from(count);
        Some(Self {
            unix_ms,
            invocations: merged.invocations / number,
            failures: merged.failures / number,
            messages_in: merged.messages_in / number,
            messages_out: merged.messages_out / number,
            cpu_permille: u16::try_from(cpu_permille / u64::from(count)).unwrap_or(u16::MAX),
            ..merged
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_samples_become_one_with_averages_and_last_figures() {
        let sample = |invocations, cpu_permille, rss_bytes, temperature_millicelsius| Sample {
            unix_ms: 5,
            invocations,
            cpu_permille,
            rss_bytes,
            temperature_millicelsius,
            ..Sample::default()
        };
        let samples =
            [sample(1.0, 1000, 7, None), sample(2.0, 500, 8, Some(61_000)), sample(6.0, 0, 9, None)];
        assert_eq!(
            Sample::of_all(300_000, samples.iter()),
            Some(Sample { unix_ms: 300_000, ..sample(3.0, 500, 9, Some(61_000)) })
        );
        assert_eq!(Sample::of_all(300_000, [].iter()), None);
        assert!(size_of::<Sample>() <= 96, "{}", size_of::<Sample>());
    }
}
