//! Samples of the last hour each 5 seconds, and of the last week each 5 minutes, without I/O.
//!
//! A sample is at the end of its step, on a multiple of it by the wall clock. A time in which the node did not run has no samples.
//!
//! A board without a clock of its own starts with an old time, and the network sets it later. So samples with times before those that
//! are kept are ignored at first. Only when the clock has been behind for [`MAX_BEHIND`] samples is it believed, and the samples that
//! are in its future are dropped. Samples of a clock that was never set never replace those of one that was.

use std::collections::VecDeque;

use super::sample::Sample;

/// The step of fine samples.
pub const FINE_STEP_MS: u64 = 5_000;
/// The step of coarse samples.
pub const COARSE_STEP_MS: u64 = 300_000;
/// Maximum number of fine samples: an hour.
pub const FINE_SAMPLES: usize = 720;
/// Maximum number of coarse samples: a week.
pub const COARSE_SAMPLES: usize = 2016;
/// Number of samples in a row before the kept ones after which the clock is believed: 10 minutes.
pub const MAX_BEHIND: u32 = 120;
/// 2024-01-01: the clock of a machine that shows an earlier time was never set.
pub const CLOCK_IS_SET_MS: u64 = 1_704_067_200_000;

/// The end of time: later ones are taken as this one, so that no sum overflows.
const MAX_UNIX_MS: u64 = COARSE_STEP_MS << 32;

/// The kept samples of both steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rings {
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
    /// Samples in a row that were ignored since they are before the kept ones.
    behind: u32,
}

/// The step of samples that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// 5 seconds.
    Fine,
    /// 5 minutes.
    Coarse,
}

impl Step {
    /// Its length in milliseconds.
    pub fn ms(self) -> u64 {
        match self {
            Self::Fine => FINE_STEP_MS,
            Self::Coarse => COARSE_STEP_MS,
        }
    }

    fn span_ms(self) -> u64 {
        match self {
            Self::Fine => FINE_STEP_MS * FINE_SAMPLES as u64,
            Self::Coarse => COARSE_STEP_MS * COARSE_SAMPLES as u64,
        }
    }
}

/// The end of the coarse step that a time belongs to.
pub fn period(unix_ms: u64) -> u64 {
    unix_ms.min(MAX_UNIX_MS).div_ceil(COARSE_STEP_MS) * COARSE_STEP_MS
}

impl Rings {
    /// Rings with stored samples. Those that are not in order are left out, and the oldest ones if there are too many.
    pub fn restored(
        fine: impl IntoIterator<Item = Sample>,
        coarse: impl IntoIterator<Item = Sample>,
    ) -> Self {
        let mut rings = Self::default();
        for sample in fine {
            if is_next(&rings.fine, &sample, FINE_STEP_MS) {
                add(&mut rings.fine, sample, FINE_SAMPLES);
            }
        }
        for sample in coarse {
            if is_next(&rings.coarse, &sample, COARSE_STEP_MS) {
                add(&mut rings.coarse, sample, COARSE_SAMPLES);
            }
        }
        rings
    }

    /// Adds a fine sample, whose time is put on the multiple of the step before it. Returns the ends of the coarse steps that it
    /// completes, each of which now has a coarse sample. A second sample of the same step is ignored.
    pub fn push(&mut self, mut sample: Sample) -> Vec<u64> {
        sample.unix_ms = sample.unix_ms.min(MAX_UNIX_MS);
        sample.unix_ms -= sample.unix_ms % FINE_STEP_MS;
        let at = sample.unix_ms;
        let mut closed = Vec::new();
        if let Some(last) = self.last_unix_ms() {
            if at == last {
                return closed;
            }
            if at < last {
                let was_set = last >= CLOCK_IS_SET_MS && at < CLOCK_IS_SET_MS;
                self.behind = self.behind.saturating_add(1);
                if was_set || self.behind < MAX_BEHIND {
                    return closed;
                }
                self.drop_from(at);
            }
        }
        self.behind = 0;
        if let Some(before) = self.fine.back().map(|last| period(last.unix_ms))
            && before < period(at)
        {
            closed.extend(self.close(before));
        }
        add(&mut self.fine, sample, FINE_SAMPLES);
        if period(at) == at {
            closed.extend(self.close(at));
        }
        closed
    }

    /// Kept samples after a time, oldest first: of the hour or the week before the last sample.
    pub fn after(&self, step: Step, after_unix_ms: u64) -> impl Iterator<Item = &Sample> {
        let samples = match step {
            Step::Fine => &self.fine,
            Step::Coarse => &self.coarse,
        };
        let begin = samples.back().map_or(0, |last| last.unix_ms.saturating_sub(step.span_ms()));
        samples.iter().filter(move |sample| sample.unix_ms > begin.max(after_unix_ms))
    }

    /// The fine samples of a coarse step, which ends at `period`.
    pub fn fine_of(&self, period: u64) -> impl Iterator<Item = &Sample> {
        let begin = period.saturating_sub(COARSE_STEP_MS);
        self.fine
            .iter()
            .filter(move |sample| sample.unix_ms <= period && (sample.unix_ms > begin || period == 0))
    }

    /// The coarse sample of the step that ends at `period`.
    pub fn coarse_of(&self, period: u64) -> Option<&Sample> {
        let at = self.coarse.binary_search_by_key(&period, |sample| sample.unix_ms).ok()?;
        self.coarse.get(at)
    }

    /// The coarse step of the last fine sample; `None` without samples.
    pub fn open_period(&self) -> Option<u64> {
        self.fine.back().map(|last| period(last.unix_ms))
    }

    /// True if fine samples of this coarse step are kept.
    pub fn keeps_fine(&self, period: u64) -> bool {
        self.fine_of(period).next().is_some()
    }

    fn last_unix_ms(&self) -> Option<u64> {
        let last = |samples: &VecDeque<Sample>| samples.back().map(|sample| sample.unix_ms);
        // A coarse sample is at the end of its step: the node ended before it if no fine ones are kept.
        last(&self.fine).or_else(|| last(&self.coarse))
    }

    /// Drops the samples from a time on.
    fn drop_from(&mut self, unix_ms: u64) {
        let fine = self.fine.partition_point(|sample| sample.unix_ms < unix_ms);
        self.fine.truncate(fine);
        let coarse = self.coarse.partition_point(|sample| sample.unix_ms < unix_ms);
        self.coarse.truncate(coarse);
    }

    /// Makes the coarse sample of a step, if it has none.
    fn close(&mut self, period: u64) -> Option<u64> {
        if self.coarse.back().is_some_and(|last| last.unix_ms >= period) {
            return None;
        }
        let sample = Sample::of_all(period, self.fine_of(period))?;
        add(&mut self.coarse, sample, COARSE_SAMPLES);
        Some(period)
    }
}

/// True if the sample may follow the samples.
fn is_next(samples: &VecDeque<Sample>, sample: &Sample, step_ms: u64) -> bool {
    sample.unix_ms.is_multiple_of(step_ms)
        && samples.back().is_none_or(|last| last.unix_ms < sample.unix_ms)
}

fn add(samples: &mut VecDeque<Sample>, sample: Sample, max: usize) {
    if samples.len() >= max {
        samples.pop_front();
    }
    samples.push_back(sample);
}

#[cfg(test)]
mod tests;
