//! Changes of stateful objects as a way in: object triggers.
//!
//! A trigger has at most one invocation under way for each field, so that a function sees the changes of a field in order;
//! what changes meanwhile is one change with the earliest and the latest value. Changes are told of from memory: those
//! that no function has seen when the node stops are not told of again.

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

/// Invocations of one trigger that may be under way.
const MAX_IN_FLIGHT: usize = 64;
/// How long to wait before a function whose queue is full is asked again.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// Fires object triggers until `cancel` does.
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
        // A trigger that is still there goes on where it is: no change falls between the old revision and the new one.
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
    let mut waits: HashMap<FieldKey, ChangeNotice> = HashMap::new();
    loop {
        while in_flight.len() < MAX_IN_FLIGHT
            && let Some((notice, lost)) = watch.take(|key| !busy.contains(key))
        {
            if lost > 0 {
                tracing::warn!(function = %route.function, lost, "changes of objects were lost: too many wait");
            }
            if route.origin.is_none_or(|origin| origin == notice.origin) {
                let key = notice.key.clone();
                busy.insert(key.clone());
                start(&invoker, &workers, &route, notice, &mut in_flight, &mut waits);
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
            () = tokio::time::sleep(FULL_PAUSE), if !waits.is_empty() => {
                for (_, notice) in std::mem::take(&mut waits) {
                    start(&invoker, &workers, &route, notice, &mut in_flight, &mut waits);
                }
            }
        }
    }
    // What runs comes to its end: only the waiting for it ends here.
}

/// Starts the function for a change; it waits in `waits` if the function has no room.
fn start(
    invoker: &Arc<Invoker>,
    workers: &Workers,
    route: &ObjectRoute,
    notice: ChangeNotice,
    in_flight: &mut JoinSet<FieldKey>,
    waits: &mut HashMap<FieldKey, ChangeNotice>,
) {
    let key = notice.key.clone();
    let mut invocation = Invocation::new(route.function.to_string(), Principal::Object, event(&notice));
    invocation.depth = notice.depth.saturating_add(1);
    match invoker.admit(invocation) {
        Ok(admitted) => {
            let invoker = invoker.clone();
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
            drop(waits.insert(key, notice));
        }
        Err(error) => {
            // A function that is gone has no log.
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
        "value": json_of_value(&notice.value),
        "origin": notice.origin.as_str(),
    });
    Event { trigger: Trigger::Object(ObjectChange { object, field }), body: body.to_string().into() }
}
