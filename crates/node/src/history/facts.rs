//! Facts of the node for warnings and samples, from its parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use edgefaas_functions::registry::{LiveApp, LiveFunction, LiveWorkflow};
use edgefaas_platform::is_loopback;

use super::changes::{BridgeSeen, LAST_DEAD, Seen};
use super::failures::Counts;
use super::warnings::{Facts, FunctionFacts, MemberFacts, UnsetSecrets, WorkflowFacts};
use crate::cluster::{ClusterStatus, Presence};
use crate::control::{ControlParts, unset_secrets};

/// The facts now, with the temperature that was read. Blocks for the time of reading some small files.
pub fn facts(parts: &ControlParts, temperature_millicelsius: Option<i32>) -> Facts {
    let (mut functions, mut workflows, mut unset) = (Vec::new(), Vec::new(), Vec::new());
    {
        let routes = parts.registry.routes();
        for app in routes.apps() {
            functions.extend(app.functions.iter().map(|function| function_facts(parts, function)));
            workflows.extend(app.workflows.iter().map(|workflow| workflow_facts(workflow)));
            unset.extend(unset_of(parts, app));
        }
    }
    let (members, own_copy, revoked) = match parts.cluster.status() {
        Ok(status) => (member_facts(&status), status.copy, status.revoked),
        // The cluster reports a file that cannot be read itself.
        Err(_) => Default::default(),
    };
    let mqtt = parts.facts.addresses.mqtt;
    Facts {
        now_unix_ms: parts.registry.clock().now_unix_ms(),
        uptime: parts.facts.started.elapsed(),
        space: parts.store.committer().space(),
        memory: parts.memory.level(),
        guests: parts.isolates.memory().reading(),
        temperature_millicelsius,
        functions,
        workflows,
        unset_secrets: unset,
        bridges: parts.bridges.status(),
        members,
        own_copy,
        revoked,
        plain_mqtt: (!is_loopback(mqtt.ip())).then_some(mqtt),
        is_draining: parts.drain.is_draining(),
    }
}

fn function_facts(parts: &ControlParts, function: &LiveFunction) -> FunctionFacts {
    let (invocations, failures, _) = function.metrics.totals();
    let (_, waiting) = function.admission.load();
    let limits = &function.spec.limits;
    let pending = parts.durable.pending(&function.name);
    // Durable invocations that run are pending too.
    let max_pending = u64::from(limits.queue.capacity) + u64::from(limits.concurrency);
    let full_queue = if waiting >= limits.queue.capacity {
        Some(u64::from(waiting))
    } else {
        (pending >= max_pending).then_some(pending)
    };
    FunctionFacts {
        app: function.app.clone(),
        name: function.name.clone(),
        error: function.failure().map(|error| error.to_string()),
        counts: Counts { invocations, failures },
        full_queue,
    }
}

fn workflow_facts(workflow: &LiveWorkflow) -> WorkflowFacts {
    let (completed, failures) =
        (workflow.figures.completed.load(Relaxed), workflow.figures.faulted.load(Relaxed));
    WorkflowFacts {
        app: workflow.app.clone(),
        name: workflow.name.clone(),
        counts: Counts { invocations: completed + failures, failures },
    }
}

fn unset_of(parts: &ControlParts, app: &LiveApp) -> Vec<UnsetSecrets> {
    let mut found: Vec<UnsetSecrets> = Vec::new();
    for (user, secret) in unset_secrets(app, &parts.secrets) {
        match found.last_mut().filter(|last| last.user == *user) {
            Some(last) => last.secrets.push(secret.to_owned()),
            None => found.push(UnsetSecrets {
                app: app.name.clone(),
                user: user.clone(),
                secrets: vec![secret.to_owned()],
            }),
        }
    }
    found
}

fn member_facts(status: &ClusterStatus) -> Vec<MemberFacts> {
    let facts = |member: &crate::cluster::MemberStatus| {
        let view = status.view.member(member.node_id);
        let (is_connected, away) = match view.map(|member| member.presence) {
            Some(Presence::Connected) => (true, None),
            Some(Presence::Away { since }) => (false, since.map(|since| since.elapsed())),
            // The view is a moment behind the certificates.
            None => (member.peer.is_some(), None),
        };
        let (name, copy_address) = (member.name.clone(), member.copy_address.clone());
        MemberFacts { name, is_connected, away, copy_address }
    };
    status.members.iter().map(facts).collect()
}

/// What can become an event.
pub(super) fn seen(parts: &ControlParts, facts: &Facts) -> Seen {
    let bridge = |bridge: &crate::bridge::BridgeStatus| {
        let state = BridgeSeen {
            is_connected: bridge.connected_since_unix_ms.is_some(),
            url: bridge.url.clone(),
            last_error: bridge.last_error.clone().unwrap_or_default(),
        };
        (bridge.name.clone(), state)
    };
    let view = parts.cluster.view();
    Seen {
        apps: live_apps(parts),
        members: view.others.iter().map(|member| (member.name.clone(), member.presence)).collect(),
        bridges: facts.bridges.iter().map(bridge).collect(),
        dead: parts.durable.reading().dead_lettered,
        last_dead: parts.durable.functions_of_last_dead(LAST_DEAD),
    }
}

/// The live revisions by app.
pub(super) fn live_apps(parts: &ControlParts) -> BTreeMap<String, String> {
    let routes = parts.registry.routes();
    let revision = |app: &Arc<LiveApp>| (app.name.to_string(), app.revision.clone());
    routes.apps().map(revision).collect()
}
