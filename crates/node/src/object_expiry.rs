//! Objects that expire: deletes them when their time to live is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use edgefaas_functions::registry::Registry;
use edgefaas_platform::Clock;
use edgefaas_state::objects::{ExpiredObjects, FieldKey, MAX_FIELDS_PER_OBJECT};
use edgefaas_state::store::{Batch, CommitError, Durability, Store, StoreError};
use tokio_util::sync::CancellationToken;

/// Maximum number of objects that are looked for at a time.
const MAX_OBJECTS: usize = 1_000;
/// Minimum and maximum time between two searches.
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(600);
/// Difference between the wall clock and the elapsed time that counts as a change of the clock.
const JUMP: Duration = Duration::from_secs(60);

/// Deletes expired objects until `cancel` fires.
pub(crate) async fn run(
    registry: Arc<Registry>,
    store: Arc<Store>,
    clock: Clock,
    cancel: CancellationToken,
) {
    let mut changes = registry.changes();
    let mut jumps = ClockJumps::new(&clock);
    let sleeper = clock.sleeper();
    loop {
        changes.borrow_and_update();
        if let Err(error) = end(&store).await {
            tracing::warn!(%error, "the time to live of some objects has not ended");
        }
        let Some(shortest_ttl) = registry.routes().object_classes().shortest_ttl() else {
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return } else { continue },
                () = sleeper.sleep(None, Duration::MAX) => continue,
            }
        };
        if let Err(error) = begin(&store).await {
            tracing::warn!(%error, "the time to live of some objects has not begun");
        }
        loop {
            jumps.observe(&clock);
            let wait = match expire(&store, &clock, &jumps).await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::warn!(%error, "expired objects could not be deleted; the next attempt follows");
                    MAX_WAIT
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return } else { break },
                // An object that changes from now on expires no earlier.
                () = sleeper.sleep(Some(wait.min(shortest_ttl)), MAX_WAIT) => {}
            }
        }
    }
}

/// Expired objects could not be found or deleted.
#[derive(Debug, thiserror::Error)]
enum ExpiryError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error("the search was stopped")]
    Stopped,
}

/// Ends the time to live of objects whose class has none any more: if it gets one again, it begins anew.
async fn end(store: &Arc<Store>) -> Result<(), ExpiryError> {
    let searched = store.clone();
    let staying = tokio::task::spawn_blocking(move || searched.objects_that_stay()).await;
    for objects in staying.map_err(|_| ExpiryError::Stopped)??.chunks(MAX_OBJECTS) {
        let mut batch = Batch::default();
        objects.iter().for_each(|(app, object)| batch.forget_last_change(app, object));
        store.committer().commit(batch, Durability::Written).await?;
    }
    Ok(())
}

/// Begins the time to live of objects that were there before their class had one.
async fn begin(store: &Arc<Store>) -> Result<(), ExpiryError> {
    let searched = store.clone();
    let unknown = tokio::task::spawn_blocking(move || searched.objects_without_last_change()).await;
    for keys in unknown.map_err(|_| ExpiryError::Stopped)?.chunks(MAX_OBJECTS) {
        let mut batch = Batch::default();
        keys.iter().cloned().for_each(|key| batch.touch(key));
        store.committer().commit(batch, Durability::Written).await?;
    }
    Ok(())
}

/// Deletes some expired objects; returns the time until the next search.
async fn expire(store: &Arc<Store>, clock: &Clock, jumps: &ClockJumps) -> Result<Duration, ExpiryError> {
    let now_ms = clock.now_unix_ms();
    let searched = store.clone();
    let found = tokio::task::spawn_blocking(move || -> Result<_, StoreError> {
        let ExpiredObjects { objects, next_unix_ms } = searched.expired_objects(now_ms, MAX_OBJECTS)?;
        let mut fields: BTreeMap<(String, String), Vec<FieldKey>> = BTreeMap::new();
        for (app, object) in objects {
            let keys = searched.objects().fields(&app, &object, None, MAX_FIELDS_PER_OBJECT)?;
            fields.insert((app, object), keys);
        }
        Ok((fields, next_unix_ms))
    });
    let (objects, next_unix_ms) = found.await.map_err(|_| ExpiryError::Stopped)??;
    let is_full = objects.len() >= MAX_OBJECTS;
    let mut held_back = None;
    for ((app, object), fields) in objects {
        let class = store.objects().class(&app, &object);
        if let Some(left) = class.ttl.and_then(|ttl| jumps.keeps(ttl, clock)) {
            held_back = Some(held_back.map_or(left, |before: Duration| before.min(left)));
            continue;
        }
        let mut batch = Batch::default();
        batch.expire(&app, &object, fields);
        store.committer().commit(batch, Durability::Written).await?;
    }
    if is_full && held_back.is_none() {
        return Ok(Duration::ZERO);
    }
    let next = next_unix_ms.map(|next_ms| Duration::from_millis(next_ms.saturating_sub(now_ms)));
    let wait = next.into_iter().chain(held_back).min().unwrap_or(MAX_WAIT);
    Ok(wait.clamp(MIN_WAIT, MAX_WAIT))
}

/// Changes of the wall clock. A machine without a clock of its own starts with an old time: what changed then has not expired
/// when the clock is set.
struct ClockJumps {
    seen_unix_ms: u64,
    seen: Instant,
    jumped: Option<Instant>,
}

impl ClockJumps {
    fn new(clock: &Clock) -> Self {
        Self { seen_unix_ms: clock.now_unix_ms(), seen: clock.instant(), jumped: None }
    }

    fn observe(&mut self, clock: &Clock) {
        let (now_ms, now) = (clock.now_unix_ms(), clock.instant());
        let passed_ms = (now - self.seen).as_millis() as u64;
        if now_ms > self.seen_unix_ms + passed_ms + JUMP.as_millis() as u64 {
            self.jumped = Some(now);
        }
        (self.seen_unix_ms, self.seen) = (now_ms, now);
    }

    /// Time for which an expired object is kept because the clock was set.
    fn keeps(&self, ttl: Duration, clock: &Clock) -> Option<Duration> {
        let left = ttl.checked_sub(clock.instant().saturating_duration_since(self.jumped?))?;
        (!left.is_zero()).then_some(left)
    }
}
