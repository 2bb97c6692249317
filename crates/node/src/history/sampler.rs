//! The task that looks at the node each 5 seconds. A look costs less than a millisecond of processor time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_platform::Clock;
use tokio_util::sync::CancellationToken;

use super::events::{Happened, Kind};
use super::facts::{facts, live_apps, seen};
use super::machine::{CpuTimes, Sensors};
use super::ring::FINE_STEP_MS;
use super::sample::Sample;
use crate::control::ControlParts;

/// Minimum time between two writes of events.
const EVENTS_INTERVAL: Duration = Duration::from_secs(10);

/// Counters at one time, which rates come from.
#[derive(Debug, Clone, Copy)]
struct Totals {
    at: Instant,
    invocations: u64,
    failures: u64,
    messages_in: u64,
    messages_out: u64,
    cpu: CpuTimes,
}

/// Looks at the node until `cancel` fires, then stores what is not stored yet.
pub async fn run(parts: Arc<ControlParts>, clock: Clock, cancel: CancellationToken) {
    let history = parts.history.clone();
    // Before the start is said: what is deployed from then on is an event.
    let mut changes = parts.registry.changes();
    history.begin_apps(live_apps(&parts));
    history.events.add(started(&parts));
    // No due time: a test that advances the clock by days would stop at each of them. It wakes this task at its end.
    let sleeper = clock.sleeper();
    let Some(mut sampler) = Sampler::begin(parts.clone(), clock.clone()).await else { return };
    // At once: the next start tells by it whether this one was stopped.
    sampler.store_events().await;
    loop {
        let wait = FINE_STEP_MS - clock.now_unix_ms() % FINE_STEP_MS;
        tokio::select! {
            () = cancel.cancelled() => break,
            Ok(()) = changes.changed() => {
                history.note_apps(live_apps(&parts));
                continue;
            }
            () = sleeper.sleep(None, Duration::from_millis(wait)) => {}
        }
        sampler.look().await;
    }
    history.events.add(happened(Kind::Stop, "edgefaas was stopped".to_owned()));
    if let Err(error) = history.store_rest().await {
        tracing::debug!(%error, "the last samples of the history are not kept");
    }
}

fn started(parts: &ControlParts) -> Happened {
    let apps = parts.registry.routes().apps().count();
    let apps = if apps == 1 { "1 app".to_owned() } else { format!("{apps} apps") };
    let was_cut_off = parts.history.events.last().is_some_and(|last| last.happened.kind != Kind::Stop);
    let before = match was_cut_off {
        true => "; it was not stopped before: the power failed, or it was killed",
        false => "",
    };
    happened(
        Kind::Start,
        format!("edgefaas {} has started, with {apps}{before}", env!("CARGO_PKG_VERSION")),
    )
}

fn happened(kind: Kind, text: String) -> Happened {
    Happened { kind, subject: String::new(), text }
}

/// The state of the task between two looks.
struct Sampler {
    parts: Arc<ControlParts>,
    clock: Clock,
    sensors: Arc<Sensors>,
    before: Totals,
    /// The step of the last look, as a multiple of its length.
    last_step: u64,
    /// The time of the last write of events.
    events_stored: Instant,
}

impl Sampler {
    /// Takes the node as it is; `None` if it stops.
    async fn begin(parts: Arc<ControlParts>, clock: Clock) -> Option<Self> {
        let last_step = clock.now_unix_ms() / FINE_STEP_MS;
        let (reading, now) = (parts.clone(), clock.instant());
        let (sensors, before) = tokio::task::spawn_blocking(move || {
            let sensors = Arc::new(Sensors::find());
            let facts = facts(&reading, sensors.highest_millicelsius());
            reading.history.begin(&facts, seen(&reading, &facts).dead);
            (sensors, Totals::read(&reading, now))
        })
        .await
        .ok()?;
        Some(Self { parts, clock, sensors, before, last_step, events_stored: now })
    }

    /// Looks at the node: a sample, events, warnings; stores samples if it is time.
    async fn look(&mut self) {
        let (parts, sensors, before) = (self.parts.clone(), self.sensors.clone(), self.before);
        let (now, unix_ms) = (self.clock.instant(), self.clock.now_unix_ms());
        let looked = tokio::task::spawn_blocking(move || {
            let temperature = sensors.highest_millicelsius();
            let facts = facts(&parts, temperature);
            let totals = Totals::read(&parts, now);
            let sample = sample(&parts, unix_ms, temperature, before, totals);
            parts.history.note(&facts, seen(&parts, &facts), now);
            (sample, totals)
        });
        let Ok((sample, totals)) = looked.await else { return };
        let step = unix_ms / FINE_STEP_MS;
        if step == self.last_step {
            // Woken between two samples.
            return;
        }
        self.last_step = step;
        self.before = totals;
        let ended = self.parts.history.add(sample);
        if !ended.is_empty()
            && let Err(error) = self.parts.history.store(&ended).await
        {
            tracing::debug!(%error, "samples of the history are not kept over a restart");
        }
        if now.saturating_duration_since(self.events_stored) >= EVENTS_INTERVAL {
            self.store_events().await;
        }
    }

    async fn store_events(&mut self) {
        self.events_stored = self.clock.instant();
        if let Err(error) = self.parts.history.store_events().await {
            tracing::debug!(%error, "events of the history are not kept over a restart");
        }
    }
}

impl Totals {
    fn read(parts: &ControlParts, at: Instant) -> Self {
        let (invocations, failures) = parts.invoker.totals();
        let broker = parts.broker.stats();
        let (messages_in, messages_out) = (broker.messages_in, broker.messages_out);
        Self { at, invocations, failures, messages_in, messages_out, cpu: CpuTimes::read() }
    }
}

fn sample(
    parts: &ControlParts,
    unix_ms: u64,
    temperature_millicelsius: Option<i32>,
    before: Totals,
    now: Totals,
) -> Sample {
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(0.001);
    let rate = |before: u64, now: u64| (now.saturating_sub(before) as f64 / seconds) as f32;
    let reading = parts.reading();
    Sample {
        unix_ms,
        invocations: rate(before.invocations, now.invocations),
        failures: rate(before.failures, now.failures),
        messages_in: rate(before.messages_in, now.messages_in),
        messages_out: rate(before.messages_out, now.messages_out),
        cpu_permille: now.cpu.used_permille_since(before.cpu),
        rss_bytes: reading.rss_bytes,
        memory_available_bytes: parts.memory.level().map_or(0, |level| level.available_bytes),
        disk_free_bytes: reading.space.free_bytes,
        mqtt_connections: u32::try_from(reading.broker.connections).unwrap_or(u32::MAX),
        isolates_running: reading.isolates_running,
        pending: reading.durable.pending,
        temperature_millicelsius,
    }
}
