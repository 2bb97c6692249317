//! Object triggers.
//!
//! A trigger has at most one invocation in flight for each field, so its function sees the changes of a field in order. Changes
//! of the field during an invocation are merged into one, with the earliest previous value and the latest value. Pending
//! changes are in memory only: those that are not handled when the node stops are lost.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_functions::invocation::{Invocation, InvocationError, Principal};
use edgefaas_functions::invoker::Invoker;
use edgefaas_functions::registry::{ObjectRoute, Registry};
use edgefaas_functions::workers::Workers;
use edgefaas_isolates::{Event, ObjectChange, Trigger};
use edgefaas_state::objects::{ChangeNotice, FieldKey, Objects, Watch, json_of_value};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Maximum number of invocations in flight for one trigger.
const MAX_IN_FLIGHT: usize = 64;
/// Interval of the attempts to start a function whose queue or memory is full.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Runs the object triggers until `cancel` fires.
pub async fn run(
    registry: Arc<Registry>,
    objects: Arc<Objects>,
    invoker: Arc<Invoker>,
    workers: Arc<Workers>,
    cancel: CancellationToken,
) {
    let mut changes = registry.changes();
    let mut running: Vec<(ObjectRoute, CancellationToken)> = Vec::new();
    let mut tasks = JoinSet::new();
    loop {
        changes.borrow_and_update();
        let routes = registry.routes().object_changes().to_vec();
        // An unchanged trigger keeps its task, so no change is lost between the old revision and the new one.
        let mut kept = Vec::new();
        for route in routes {
            match running.iter().position(|(other, _)| *other == route) {
                Some(at) => kept.push(running.swap_remove(at)),
                None => {
                    let watch = objects.watch(route.scope.clone());
                    let stop = cancel.child_token();
                    let fire = fire(invoker.clone(), workers.clone(), route.clone(), watch, stop.clone());
                    tasks.spawn(fire);
                    kept.push((route, stop));
                }
            }
        }
        for (_, stop) in std::mem::replace(&mut running, kept) {
            stop.cancel();
        }
        tokio::select! {
            () = cancel.cancelled() => break,
            changed = changes.changed() => if changed.is_err() { break },
            Some(_) = tasks.join_next() => {}
        }
    }
    while tasks.join_next().await.is_some() {}
}

async fn fire(
    invoker: Arc<Invoker>,
    workers: Arc<Workers>,
    route: ObjectRoute,
    mut watch: Watch,
    stop: CancellationToken,
) {
    let mut busy: HashSet<FieldKey> = HashSet::new();
    let mut in_flight: JoinSet<FieldKey> = JoinSet::new();
    // Changes whose function had no room. Their fields are in `busy`.
    let mut retries: HashMap<FieldKey, ChangeNotice> = HashMap::new();
    loop {
        while in_flight.len() < MAX_IN_FLIGHT
            && let Some((notice, lost)) = watch.take(|key| !busy.contains(key))
        {
            if lost > 0 {
                tracing::warn!(function = %route.function, lost, "changes of objects were lost: too many changes are pending");
            }
            if route.origin.is_none_or(|origin| origin == notice.origin) {
                let key = notice.key.clone();
                busy.insert(key.clone());
                start(&invoker, &workers, &route, notice, &mut in_flight, &mut retries);
            }
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = watch.arrived(), if in_flight.len() < MAX_IN_FLIGHT => {}
            Some(ended) = in_flight.join_next() => {
                if let Ok(key) = ended {
                    busy.remove(&key);
                }
            }
            () = tokio::time::sleep(RETRY_INTERVAL), if !retries.is_empty() => {
                for (_, notice) in std::mem::take(&mut retries) {
                    start(&invoker, &workers, &route, notice, &mut in_flight, &mut retries);
                }
            }
        }
    }
    // Invocations in flight continue; only the wait for their end is dropped here.
}

/// Starts the function for a change. If the function has no room now, adds the change to `retries`.
fn start(
    invoker: &Arc<Invoker>,
    workers: &Workers,
    route: &ObjectRoute,
    notice: ChangeNotice,
    in_flight: &mut JoinSet<FieldKey>,
    retries: &mut HashMap<FieldKey, ChangeNotice>,
) {
    let key = notice.key.clone();
    let mut invocation = Invocation::new(route.function.to_string(), Principal::Object, event(&notice));
    invocation.depth = notice.depth.saturating_add(1);
    match invoker.admit(invocation) {
        Ok(admitted) => {
            let invoker = invoker.clone();
            // Closed at the end of the invocation, also after a panic.
            let (done, ended) = oneshot::channel::<()>();
            workers.spawn(async move {
                invoker.run(admitted).await;
                drop(done);
            });
            in_flight.spawn(async move {
                let _ = ended.await;
                key
            });
        }
        Err(InvocationError::QueueFull { .. } | InvocationError::NoMemory { .. }) => {
            drop(retries.insert(key, notice));
        }
        Err(error) => {
            // A function that is no longer deployed has no log.
            if !matches!(error, InvocationError::UnknownFunction { .. }) {
                invoker.log_dropped(&route.function, &error);
            }
            in_flight.spawn(async move { key });
        }
    }
}

fn event(notice: &ChangeNotice) -> Event {
    let (object, field) = (notice.key.object().to_owned(), notice.key.field().to_owned());
    let body = json!({
        "object": object,
        "field": field,
        "type": notice.field_type.to_string(),
        "previous": notice.previous.as_ref().map(json_of_value),
        "value": notice.value.as_ref().map(json_of_value),
        "deleted": notice.value.is_none(),
        "origin": notice.origin.as_str(),
    });
    Event { trigger: Trigger::Object(ObjectChange { object, field }), body: body.to_string().into() }
}
