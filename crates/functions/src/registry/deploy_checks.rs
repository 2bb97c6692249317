//! Checks of a deploy that need no compiler.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_broker::topic::TopicName;
use edgefaas_isolates::FunctionSource;
use edgefaas_manifest::{MAX_ASSETS, Manifest, SourceKind, is_asset_name};
use edgefaas_workflow::program::RunWorkflow;

use super::deploy_error::DeployError;
use super::{LiveWorkflow, NoWorkflow, Routes, near};
use crate::topics::{event_topic, functions_may_publish};

pub(super) fn check_sources(
    manifest: &Manifest,
    sources: &BTreeMap<String, FunctionSource>,
) -> Result<(), DeployError> {
    if let Some(function) = sources.keys().find(|name| !manifest.functions.contains_key(*name)) {
        return Err(DeployError::UnknownSource { function: function.clone() });
    }
    for (name, function) in &manifest.functions {
        let source =
            sources.get(name).ok_or_else(|| DeployError::MissingSource { function: name.clone() })?;
        let is_script = matches!(source, FunctionSource::JavaScript(_));
        if is_script != (function.source_kind() == SourceKind::Script) {
            return Err(DeployError::WrongKind {
                function: name.clone(),
                main: function.main.clone(),
                kind: source.kind(),
            });
        }
    }
    Ok(())
}

pub(super) fn check_assets(
    manifest: &Manifest,
    assets: &BTreeMap<String, Bytes>,
) -> Result<(), DeployError> {
    if assets.len() > MAX_ASSETS {
        return Err(DeployError::TooManyAssets { count: assets.len() });
    }
    let patterns: Vec<_> =
        manifest.assets.iter().filter_map(|text| glob::Pattern::new(text).ok()).collect();
    for name in assets.keys() {
        if !is_asset_name(name) || !patterns.iter().any(|pattern| pattern.matches(name)) {
            return Err(DeployError::UnknownAsset { name: name.clone() });
        }
    }
    Ok(())
}

pub(super) fn check_workflow_files(
    manifest: &Manifest,
    texts: &BTreeMap<String, String>,
) -> Result<(), DeployError> {
    let patterns: Vec<_> =
        manifest.workflows.files.iter().filter_map(|text| glob::Pattern::new(text).ok()).collect();
    let stray = texts
        .keys()
        .find(|file| !is_asset_name(file) || !patterns.iter().any(|pattern| pattern.matches(file)));
    stray.map_or(Ok(()), |file| Err(DeployError::UnknownWorkflow { file: file.clone() }))
}

/// Checks the calls of workflows. Returns errors for calls that are not permitted, and warnings for calls of unknown functions.
pub(super) fn check_calls(
    manifest: &Manifest,
    workflows: &[Arc<LiveWorkflow>],
    routes: &Routes,
) -> (Vec<String>, Vec<String>) {
    let (mut refused, mut missing) = (Vec::new(), Vec::new());
    let is_own = |name: &str| {
        manifest.functions.contains_key(name) || workflows.iter().any(|workflow| *workflow.name == *name)
    };
    // What the app has now is replaced.
    let is_elsewhere = |name: &str| {
        routes.function(name).is_some_and(|function| *function.app != *manifest.app)
            || routes.workflow(name).is_some_and(|workflow| *workflow.app != *manifest.app)
    };
    for workflow in workflows {
        let (calls, runs) = (workflow.program.functions(), workflow.program.workflows());
        for run in workflow.program.runs() {
            let found = match own_version(run, workflows) {
                Some(found) => found,
                None if is_elsewhere(&run.name) => routes.workflow_version(run).map(drop),
                // The check of its name below finds it.
                None => Ok(()),
            };
            if let Err(error) = found {
                missing.push(format!("workflow `{}` runs `{}`: {error}", workflow.name, run.name));
            }
        }
        for name in calls.iter().chain(&runs) {
            let exists = is_elsewhere(name);
            if is_own(name) {
                continue;
            }
            if !workflow.permissions.allows_call(name) && exists {
                refused.push(format!(
                    "workflow `{}` calls `{name}` of another app, which its permissions do not name: \
                     [workflows.{}.permissions] call = [\"{name}\"], or --allow call={name} for a single file",
                    workflow.name, workflow.name
                ));
            } else if !exists {
                let names = routes.functions().map(|function| &*function.name);
                let names = names.chain(manifest.functions.keys().map(String::as_str));
                let near = match near(name, names).as_slice() {
                    [] => String::new(),
                    near => format!("; did you mean `{}`?", near.join("` or `")),
                };
                missing.push(format!(
                    "workflow `{}` calls `{name}`, which is not deployed{near}",
                    workflow.name
                ));
            }
        }
    }
    (refused, missing)
}

/// Whether the workflow that a task runs is among those of the app; `None` if the app has none of this name.
fn own_version(run: &RunWorkflow, workflows: &[Arc<LiveWorkflow>]) -> Option<Result<(), NoWorkflow>> {
    let named = || workflows.iter().map(|own| &own.program).filter(|own| own.name == run.name);
    // Calls by name reach the latest version.
    let latest = workflows.iter().find(|own| *own.name == *run.name).map(|own| &own.program)?;
    let found = match &run.version {
        None => Some(latest),
        Some(version) => named().find(|own| own.version == *version),
    };
    let name = run.name.clone();
    Some(match (found, &run.version, &run.namespace) {
        (Some(found), _, Some(namespace)) if *namespace != found.namespace => Err(NoWorkflow::Namespace {
            name,
            namespace: namespace.clone(),
            found: found.namespace.clone(),
        }),
        (None, Some(version), _) => {
            Err(NoWorkflow::Version { name, version: version.clone(), latest: latest.version.clone() })
        }
        _ => Ok(()),
    })
}

/// Problems with the topics and the types of events, without expressions, that tasks of workflows send: invalid, without permission, or
/// of the node.
///
/// Not a part of the compiler: stored definitions of earlier versions must stay valid.
pub(super) fn check_topics(workflows: &[Arc<LiveWorkflow>]) -> Vec<String> {
    let mut problems = Vec::new();
    for workflow in workflows {
        for (node, emit, kind) in workflow.program.constant_event_types() {
            let (name, path) = (&workflow.name, &node.path);
            if emit.topic.is_none()
                && let Err(error) = event_topic(kind)
            {
                problems.push(format!(
                    "workflow `{name}` emits an event of type `{kind}` in {path}, which cannot be the last level of its topic: \
                     {error}; choose another type, or a topic by metadata: {{ topic: … }}"
                ));
            }
        }
        for (node, topic) in workflow.program.constant_topics() {
            let (name, path) = (&workflow.name, &node.path);
            if let Err(error) = TopicName::new(topic) {
                problems.push(format!(
                    "workflow `{name}` sends to `{topic}` in {path}, not a topic name: {error}"
                ));
            } else if !functions_may_publish(topic) {
                problems.push(format!(
                    "workflow `{name}` sends to `{topic}` in {path}: only the node publishes there"
                ));
            } else if !workflow.permissions.allows_publish(topic) {
                problems.push(format!(
                    "workflow `{name}` sends to `{topic}` in {path}, which its permissions do not name: \
                     [workflows.{name}.permissions] publish = [\"{topic}\"], or --allow publish={topic} for a single file"
                ));
            }
        }
    }
    problems
}
