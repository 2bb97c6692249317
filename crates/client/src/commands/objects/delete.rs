//! `edgefaas objects delete`, and the objects of an app that is removed.

use edgefaas_api::objects as proto;
use edgefaas_manifest::glob_matches;
use serde_json::json;

use crate::args::{Format, Global};
use crate::connection::{self, ObjectsClient};
use crate::exit::{Exit, Failure};
use crate::input;
use crate::output;
use crate::progress::Step;

pub(super) async fn run(
    mut client: ObjectsClient,
    app: &str,
    object: &str,
    field: Option<&str>,
    yes: bool,
    global: &Global,
) -> anyhow::Result<()> {
    if object.contains('*') && !yes {
        confirm(&mut client, app, object, field).await?;
    }
    let deleted = delete(&mut client, app, object, field).await?;
    match global.output {
        Format::Json => output::json(&as_json(deleted)),
        Format::Table => output::text(&format!("deleted {}\n", in_words(deleted))),
    }
}

/// Deletes all objects of an app.
pub(in crate::commands) async fn delete_all(
    client: &mut ObjectsClient,
    app: &str,
) -> anyhow::Result<proto::DeleteResponse> {
    delete(client, app, "*", None).await
}

/// True if an app has objects.
pub(in crate::commands) async fn has_any(client: &mut ObjectsClient, app: &str) -> anyhow::Result<bool> {
    let request = proto::ListRequest { app: app.to_owned(), limit: 1, ..proto::ListRequest::default() };
    let page = client.list(request).await.map_err(|status| connection::failure(&status))?;
    Ok(!page.into_inner().objects.is_empty())
}

/// The numbers as JSON.
pub(in crate::commands) fn as_json(deleted: proto::DeleteResponse) -> serde_json::Value {
    json!({ "objects": deleted.objects, "fields": deleted.fields })
}

/// The numbers in words.
pub(in crate::commands) fn in_words(deleted: proto::DeleteResponse) -> String {
    let count = |count: u64, name: &str| format!("{count} {name}{}", if count == 1 { "" } else { "s" });
    format!("{} of {}", count(deleted.fields, "field"), count(deleted.objects, "object"))
}

async fn delete(
    client: &mut ObjectsClient,
    app: &str,
    object: &str,
    field: Option<&str>,
) -> anyhow::Result<proto::DeleteResponse> {
    let request = proto::DeleteRequest {
        app: app.to_owned(),
        object: object.to_owned(),
        field: field.map(str::to_owned),
    };
    let step = Step::start("Deleting");
    let deleted = client.delete(request).await;
    drop(step);
    Ok(deleted.map_err(|status| connection::failure(&status))?.into_inner())
}

/// Asks before the objects of a pattern are deleted, with their numbers; nothing to delete needs no question.
///
/// # Errors
/// The answer is no, or there is no terminal.
async fn confirm(
    client: &mut ObjectsClient,
    app: &str,
    pattern: &str,
    field: Option<&str>,
) -> anyhow::Result<()> {
    let matching = count(client, app, pattern, field).await?;
    if matching.fields == 0 {
        return Ok(());
    }
    let what = format!("{} of app `{app}`", in_words(matching));
    let question = format!("Delete {what}?");
    if input::confirm(&question, &format!("the deletion of {what}"), "--yes")? {
        return Ok(());
    }
    Err(Failure::new(Exit::Failed, "nothing was deleted"))
}

/// The numbers of matching objects and fields.
async fn count(
    client: &mut ObjectsClient,
    app: &str,
    pattern: &str,
    field: Option<&str>,
) -> anyhow::Result<proto::DeleteResponse> {
    let mut found = proto::DeleteResponse::default();
    let mut after = String::new();
    loop {
        let after_app = if after.is_empty() { String::new() } else { app.to_owned() };
        let request =
            proto::ListRequest { app: app.to_owned(), after_app, after_object: after.clone(), limit: 0 };
        let page = client.list(request).await.map_err(|status| connection::failure(&status))?.into_inner();
        let Some(last) = page.objects.last() else { return Ok(found) };
        after.clone_from(&last.object);
        for object in page.objects.iter().filter(|object| glob_matches(pattern, &object.object)) {
            let fields = match field {
                Some(field) => u64::from(object.fields.contains_key(field)),
                None => object.fields.len() as u64,
            };
            found.fields += fields;
            found.objects += u64::from(fields > 0);
        }
    }
}
