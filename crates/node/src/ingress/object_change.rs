//! Changes of stateful objects as a way in: object triggers.
//!
//! A trigger has at most one invocation under way for each field, so that a function sees the changes of a field in order;
//! what changes meanwhile is one change with the earliest and the latest value. Changes are told of from memory: those
//! that no function has seen when the node stops are not told of again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_isolates::{Event, ObjectChange, Trigger};
use edgefaas_state::objects::{ChangeNotice, FieldKey, Watch, json_of_value};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dispatch::{Dispatcher, Workers};
use crate::invocation::{Invocation, InvocationError, Principal};
use crate::registry::ObjectRoute;

/// Invocations of one trigger that may be under way.
const MAX_UNDER_WAY: usize = 64;
/// How long to wait before a function whose queue is full is asked again.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// Fires object triggers until `cancel` does.
pub async fn run(dispatcher: Arc<Dispatcher>, workers: Arc<Workers>, cancel: CancellationToken) {
    let mut changes = dispatcher.registry().changes();
    let mut running: Vec<(ObjectRoute, CancellationToken)> = Vec::new();
    let mut tasks = JoinSet::new();
    loop {
        changes.borrow_and_update();
        let routes = dispatcher.registry().routes().object_changes().to_vec();
        // A trigger that is still there goes on where it is: no change falls between the old revision and the new one.
        let mut kept = Vec::new();
        for route in routes {
            match running.iter().position(|(other, _)| *other == route) {
                Some(at) => kept.push(running.swap_remove(at)),
                None => {
                    let watch = dispatcher.store().objects().watch(route.scope.clone());
                    let stop = cancel.child_token();
                    let fire =
                        fire(dispatcher.clone(), workers.clone(), route.clone(), watch, stop.clone());
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
    dispatcher: Arc<Dispatcher>,
    workers: Arc<Workers>,
    route: ObjectRoute,
    mut watch: Watch,
    stop: CancellationToken,
) {
    let mut busy: HashSet<FieldKey> = HashSet::new();
    let mut under_way: JoinSet<FieldKey> = JoinSet::new();
    let mut waits: HashMap<FieldKey, ChangeNotice> = HashMap::new();
    loop {
        while under_way.len() < MAX_UNDER_WAY
            && let Some((notice, lost)) = watch.take(|key| !busy.contains(key))
        {
            if lost > 0 {
                tracing::warn!(function = %route.function, lost, "changes of objects were lost: too many wait");
            }
            if route.origin.is_none_or(|origin| origin == notice.origin) {
                let key = notice.key.clone();
                busy.insert(key.clone());
                start(&dispatcher, &workers, &route, notice, &mut under_way, &mut waits);
            }
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = watch.arrived(), if under_way.len() < MAX_UNDER_WAY => {}
            Some(ended) = under_way.join_next() => {
                if let Ok(key) = ended {
                    busy.remove(&key);
                }
            }
            () = tokio::time::sleep(FULL_PAUSE), if !waits.is_empty() => {
                for (_, notice) in std::mem::take(&mut waits) {
                    start(&dispatcher, &workers, &route, notice, &mut under_way, &mut waits);
                }
            }
        }
    }
    // What runs comes to its end: only the waiting for it ends here.
}

/// Starts the function for a change; it waits in `waits` if the function has no room.
fn start(
    dispatcher: &Arc<Dispatcher>,
    workers: &Workers,
    route: &ObjectRoute,
    notice: ChangeNotice,
    under_way: &mut JoinSet<FieldKey>,
    waits: &mut HashMap<FieldKey, ChangeNotice>,
) {
    let key = notice.key.clone();
    let mut invocation = Invocation::new(route.function.to_string(), Principal::Object, event(&notice));
    invocation.depth = notice.depth.saturating_add(1);
    match dispatcher.admit(invocation) {
        Ok(admitted) => {
            let dispatcher = dispatcher.clone();
            let (done, ended) = oneshot::channel::<()>();
            workers.spawn(async move {
                dispatcher.run(admitted).await;
                drop(done);
            });
            under_way.spawn(async move {
                let _ = ended.await;
                key
            });
        }
        Err(InvocationError::QueueFull { .. } | InvocationError::NoMemory { .. }) => {
            drop(waits.insert(key, notice));
        }
        Err(error) => {
            let routes = dispatcher.registry().routes();
            if let Some(function) = routes.function(&route.function) {
                dispatcher.log_dropped(function, &error);
            }
            under_way.spawn(async move { key });
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
