//! Tests of the rings: order, gaps, wraps and jumps of the clock.

use proptest::prelude::*;

use super::*;

/// A time at which a coarse step ends.
const START: u64 = 1_800_000_000_000;

fn sample(unix_ms: u64) -> Sample {
    Sample { unix_ms, invocations: (unix_ms / FINE_STEP_MS % 100) as f32, ..Sample::default() }
}

fn filled(from: u64, count: u64) -> Rings {
    let mut rings = Rings::default();
    for number in 0..count {
        rings.push(sample(from + number * FINE_STEP_MS));
    }
    rings
}

fn times(rings: &Rings, step: Step) -> Vec<u64> {
    rings.after(step, 0).map(|sample| sample.unix_ms).collect()
}

#[test]
fn a_coarse_sample_comes_at_the_end_of_its_step() {
    let mut rings = Rings::default();
    for number in 1..60 {
        assert!(rings.push(sample(START + number * FINE_STEP_MS)).is_empty());
    }
    assert_eq!(rings.push(sample(START + COARSE_STEP_MS)), [START + COARSE_STEP_MS]);
    let coarse = rings.coarse_of(START + COARSE_STEP_MS).unwrap();
    let sum: f32 = rings.fine_of(START + COARSE_STEP_MS).map(|sample| sample.invocations).sum();
    assert_eq!((coarse.invocations, rings.fine_of(START + COARSE_STEP_MS).count()), (sum / 60.0, 60));
    // The same step again, and a time inside of it.
    assert!(rings.push(sample(START + COARSE_STEP_MS + 4_999)).is_empty());
    assert_eq!(rings.fine.len(), 60);
}

#[test]
fn a_time_without_the_node_has_no_samples() {
    let mut rings = filled(START + FINE_STEP_MS, 10);
    let later = START + 10 * COARSE_STEP_MS;
    assert_eq!(rings.push(sample(later + 7_000)), [START + COARSE_STEP_MS], "the step that was begun");
    assert_eq!(rings.fine.len(), 11);
    assert_eq!(times(&rings, Step::Fine).last(), Some(&(later + FINE_STEP_MS)));
    assert_eq!(times(&rings, Step::Coarse), [START + COARSE_STEP_MS]);
    assert_eq!(rings.after(Step::Fine, later).count(), 1);
    // The hour before the last sample is shown.
    rings.push(sample(later + 3_600_000));
    assert_eq!(times(&rings, Step::Fine), [later + FINE_STEP_MS, later + 3_600_000]);
}

#[test]
fn an_hour_and_a_week_are_kept() {
    let week = 7 * 24 * 720;
    let rings = filled(START + FINE_STEP_MS, week + 600);
    assert_eq!((rings.fine.len(), rings.coarse.len()), (FINE_SAMPLES, COARSE_SAMPLES));
    assert_eq!(times(&rings, Step::Fine).len(), FINE_SAMPLES);
    assert_eq!(times(&rings, Step::Coarse).len(), COARSE_SAMPLES);
    assert_eq!(times(&rings, Step::Coarse)[0], START + 11 * COARSE_STEP_MS);
    let bytes = (FINE_SAMPLES + COARSE_SAMPLES) * size_of::<Sample>();
    assert!(bytes < 300_000, "{bytes}");
}

#[test]
fn a_clock_that_goes_back_is_believed_after_a_while() {
    let mut rings = filled(START, 100);
    let before = rings.clone();
    let back = START + 10 * FINE_STEP_MS;
    for number in 0..u64::from(MAX_BEHIND) - 20 {
        assert!(rings.push(sample(back - 100 * FINE_STEP_MS + number * FINE_STEP_MS)).is_empty());
    }
    assert_eq!(times(&rings, Step::Fine), times(&before, Step::Fine), "nothing is lost meanwhile");
    // It is set again in time.
    rings.push(sample(START + 100 * FINE_STEP_MS));
    assert_eq!((rings.fine.len(), rings.behind), (101, 0));

    // A day back: what is in the future of this clock is dropped in the end.
    let back = START - 24 * 3_600_000;
    for number in 0..u64::from(MAX_BEHIND) {
        assert_eq!(rings.fine.len(), 101);
        rings.push(sample(back + number * FINE_STEP_MS));
    }
    assert_eq!(times(&rings, Step::Fine), [back + u64::from(MAX_BEHIND - 1) * FINE_STEP_MS]);
    assert_eq!(times(&rings, Step::Coarse), [0; 0]);
}

#[test]
fn a_clock_that_was_never_set_destroys_nothing() {
    let mut rings = filled(START, 100);
    for number in 0..10_000 {
        rings.push(sample(number * FINE_STEP_MS));
    }
    assert_eq!(rings.fine.len(), 100);
    rings.push(sample(START + 3_600_000));
    assert_eq!(rings.fine.len(), 101);
    // Without anything else, its samples are kept until the clock is set.
    let mut rings = filled(0, 100);
    assert_eq!((rings.fine.len(), times(&rings, Step::Coarse)), (100, vec![COARSE_STEP_MS]));
    rings.push(sample(START));
    assert_eq!(times(&rings, Step::Fine), [START]);
}

#[test]
fn one_wrong_time_far_ahead_destroys_nothing() {
    let mut rings = filled(START, 500);
    let before = times(&rings, Step::Coarse);
    rings.push(sample(START + 80 * 365 * 24 * 3_600_000));
    for number in 500..500 + u64::from(MAX_BEHIND) {
        rings.push(sample(START + number * FINE_STEP_MS));
    }
    assert!(times(&rings, Step::Coarse).starts_with(&before));
    assert_eq!(rings.fine.len(), 501);
}

#[test]
fn the_last_times_of_the_clock_do_not_overflow() {
    let mut rings = filled(START, 3);
    rings.push(sample(u64::MAX));
    rings.push(sample(u64::MAX - 1));
    assert_eq!(times(&rings, Step::Fine).len(), 1);
    rings.push(sample(0));
}

fn jumps() -> impl Strategy<Value = Vec<(u64, u16)>> {
    // Times at which the clock is set, and the steps that follow.
    let times = prop_oneof![0..10_u64, (START..START + 40 * 24 * 3_600_000), any::<u64>()];
    prop::collection::vec((times, 0..400_u16), 1..12)
}

proptest! {
    #[test]
    fn samples_are_in_order_and_bounded_whatever_the_clock_does(jumps in jumps()) {
        let mut rings = Rings::default();
        for (start, steps) in jumps {
            for number in 0..u64::from(steps) {
                for closed in rings.push(sample(start.saturating_add(number * 7_001))) {
                    prop_assert!(rings.coarse_of(closed).is_some());
                    prop_assert!(rings.keeps_fine(closed));
                }
            }
        }
        for (samples, step_ms, max) in
            [(&rings.fine, FINE_STEP_MS, FINE_SAMPLES), (&rings.coarse, COARSE_STEP_MS, COARSE_SAMPLES)]
        {
            prop_assert!(samples.len() <= max);
            prop_assert!(samples.iter().zip(samples.iter().skip(1)).all(|(one, next)| one.unix_ms < next.unix_ms));
            prop_assert!(samples.iter().all(|sample| sample.unix_ms.is_multiple_of(step_ms)));
        }
        let restored = Rings::restored(rings.fine.iter().copied(), rings.coarse.iter().copied());
        prop_assert_eq!(&restored.fine, &rings.fine);
    }
}
