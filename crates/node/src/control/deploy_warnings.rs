//! Warnings about what a deployed app names and the node does not have.

use std::sync::Arc;

use edgefaas_functions::registry::{LiveApp, Routes};
use edgefaas_functions::secrets::Secrets;

/// A warning for each function or workflow that a function of the app may call and that is not deployed.
pub(super) fn unknown_calls(app: &LiveApp, routes: &Routes) -> Vec<String> {
    let mut warnings = Vec::new();
    for function in &app.functions {
        for called in &function.spec.permissions.call {
            let is_known = routes.function(called).is_some() || routes.workflow(called).is_some();
            if !called.contains('*') && !is_known {
                warnings.push(format!("`{}` may call `{called}`, which is not deployed", function.name));
            }
        }
    }
    warnings
}

/// A warning for each secret that a function or workflow of the app names and that is not set.
pub(super) fn of_unset_secrets(app: &LiveApp, secrets: &Secrets) -> Vec<String> {
    let warning = |(name, secret): (&Arc<str>, &str)| {
        format!(
            "`{name}` reads secret `{secret}`, which is not set: edgefaas secrets set --app {} {secret}",
            app.name
        )
    };
    unset_secrets(app, secrets).map(warning).collect()
}

/// Functions and workflows of the app, each with a secret that it names and that is not set.
pub(crate) fn unset_secrets<'a>(
    app: &'a LiveApp,
    secrets: &'a Secrets,
) -> impl Iterator<Item = (&'a Arc<str>, &'a str)> {
    let functions = app.functions.iter().map(|function| (&function.name, &function.spec.secrets));
    let workflows = app.workflows.iter().map(|workflow| (&workflow.name, &workflow.program.secrets));
    functions.chain(workflows).flat_map(|(name, named)| {
        let unset = named.iter().filter(|secret| secrets.get(&app.name, secret).is_none());
        unset.map(move |secret| (name, secret.as_str()))
    })
}
