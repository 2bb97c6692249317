//! `edgefaas objects list|get|watch|set|add|remove|delete|export|import`

mod delete;

pub(super) use delete::{as_json as deleted_json, delete_all, has_any, in_words as deleted_in_words};

use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use edgefaas_api::objects as proto;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_state::objects::bytes_of_json;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::list::check_app;
use crate::args::{FieldName, Format, Global, Objects};
use crate::connection::{self, ObjectsClient};
use crate::exit::{Exit, Failure};
use crate::fitting::{self, Column, Fit};
use crate::output;
use crate::progress::Step;

/// Bytes of an archive in one message.
const CHUNK_BYTES: usize = 256 << 10;

/// The columns of `objects list`.
const COLUMNS: [Column; 4] = [
    Column { name: "APP", fit: Fit::Middle(8) },
    Column { name: "OBJECT", fit: Fit::Middle(16) },
    Column { name: "SIZE", fit: Fit::Whole },
    Column { name: "FIELDS", fit: Fit::End(12, 0) },
];

pub async fn run(args: &Objects, global: &Global) -> anyhow::Result<()> {
    let mut client = connection::connect_objects(global).await?;
    match args {
        Objects::List { app } => list(client, app.as_deref(), global).await,
        Objects::Get { app, object, field, path } => {
            get(client, app, object, field.as_deref(), path, global).await
        }
        Objects::Watch { app, object, field } => watch(client, app, object, field.as_deref(), global).await,
        Objects::Set { name, value, field_type, at } => {
            let kind = kind(&mut client, name, field_type.as_deref(), "register").await?;
            let operation = set(&kind, value, at.as_deref(), &mut client, name).await?;
            update(client, name, operation, global).await
        }
        Objects::Add { name, value, field_type } => {
            let kind = kind(&mut client, name, field_type.as_deref(), "counter").await?;
            update(client, name, add(&kind, value)?, global).await
        }
        Objects::Remove { name, value } => {
            let kind = kind(&mut client, name, None, "").await?;
            update(client, name, remove(&kind, value)?, global).await
        }
        Objects::Delete { app, object, field, yes } => {
            delete::run(client, app, object, field.as_deref(), *yes, global).await
        }
        Objects::Export { file, app } => export(client, file, app.as_deref(), global).await,
        Objects::Import { file } => import(client, file, global).await,
    }
}

async fn list(mut client: ObjectsClient, app: Option<&str>, global: &Global) -> anyhow::Result<()> {
    let mut objects = Vec::new();
    loop {
        let last: Option<&proto::Object> = objects.last();
        let request = proto::ListRequest {
            app: app.unwrap_or_default().to_owned(),
            after_app: last.map(|object| object.app.clone()).unwrap_or_default(),
            after_object: last.map(|object| object.object.clone()).unwrap_or_default(),
            limit: 0,
        };
        let page = client.list(request).await.map_err(|status| connection::failure(&status))?.into_inner();
        if page.objects.is_empty() {
            break;
        }
        objects.extend(page.objects);
    }
    if let (Some(app), true) = (app, objects.is_empty()) {
        check_app(app, "object of it", global).await?;
    }
    let fields = |object: &proto::Object| {
        let mut fields: Vec<_> = object.fields.clone().into_iter().collect();
        fields.sort();
        fields
    };
    if global.output == Format::Json {
        let as_json = |object: &proto::Object| {
            let fields: serde_json::Map<_, _> =
                fields(object).into_iter().map(|(name, kind)| (name, kind.into())).collect();
            json!({"app": object.app, "object": object.object, "bytes": object.bytes, "fields": fields})
        };
        return output::json(&json!({ "objects": objects.iter().map(as_json).collect::<Vec<_>>() }));
    }
    if objects.is_empty() {
        eprintln!("there are no objects; the first write of a function creates one");
        return Ok(());
    }
    let row = |object: &proto::Object| {
        let fields: Vec<_> =
            fields(object).into_iter().map(|(name, kind)| format!("{name} ({kind})")).collect();
        let size = output::size(object.bytes);
        vec![object.app.clone(), object.object.clone(), size, fields.join(", ")]
    };
    fitting::print(&COLUMNS, objects.iter().map(row).collect())
}

async fn get(
    mut client: ObjectsClient,
    app: &str,
    object: &str,
    field: Option<&str>,
    path: &[String],
    global: &Global,
) -> anyhow::Result<()> {
    let fields = read(&mut client, app, object, field.unwrap_or_default(), path).await?;
    if fields.is_empty() {
        let what = match field {
            Some(field) => {
                let name = std::iter::once(field).chain(path.iter().map(String::as_str));
                let name = name.collect::<Vec<_>>().join("/");
                format!("field `{name}` of object `{object}` of app `{app}`")
            }
            None => format!("object `{object}` of app `{app}`"),
        };
        return Err(Failure::new(
            Exit::NotFound,
            format!("there is no {what}; `edgefaas objects list` lists all objects"),
        ));
    }
    let value = |state: &proto::FieldState| serde_json::from_str::<Value>(&state.json).unwrap_or_default();
    match (global.output, field) {
        (Format::Json, Some(_)) => {
            let state = &fields[0];
            let mut all = json!({"type": state.r#type, "value": value(state)});
            if state.r#type == "bounded-counter" {
                all["share"] = state.share.into();
            }
            output::json(&all)
        }
        (Format::Json, None) => {
            let all: serde_json::Map<_, _> = fields
                .iter()
                .map(|state| (state.name.clone(), json!({"type": state.r#type, "value": value(state)})))
                .collect();
            output::json(&all)
        }
        (Format::Table, Some(_)) => output::text(&format!("{}\n", output::line(&fields[0].json))),
        (Format::Table, None) => {
            let row = |state: &proto::FieldState| {
                vec![state.name.clone(), state.r#type.clone(), state.json.clone()]
            };
            output::table(&["FIELD", "TYPE", "VALUE"], fields.iter().map(row).collect())
        }
    }
}

async fn watch(
    mut client: ObjectsClient,
    app: &str,
    object: &str,
    field: Option<&str>,
    global: &Global,
) -> anyhow::Result<()> {
    let request = proto::WatchRequest {
        app: app.to_owned(),
        object: object.to_owned(),
        field: field.unwrap_or_default().to_owned(),
    };
    let mut changes =
        client.watch(request).await.map_err(|status| connection::failure(&status))?.into_inner();
    while let Some(change) = changes.message().await.map_err(|status| connection::failure(&status))? {
        if change.lost_before > 0 {
            eprintln!("{} changes were lost: they came faster than this command reads", change.lost_before);
        }
        match global.output {
            Format::Json => {
                let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
                output::json(&json!({
                    "app": change.app, "object": change.object, "field": change.field, "type": change.r#type,
                    "previous": change.previous_json.as_deref().map(value), "value": value(&change.json),
                    "deleted": change.deleted, "origin": change.origin,
                }))?;
            }
            Format::Table => {
                let previous = change.previous_json.as_deref().unwrap_or("-");
                let (object, field) = (output::line(&change.object), output::line(&change.field));
                let after = if change.deleted { "deleted" } else { &change.json };
                let (before, after) = (output::line(previous), output::line(after));
                output::text(&format!("{object}.{field}  {before} -> {after}  ({})\n", change.origin))?;
            }
        }
    }
    Ok(())
}

async fn update(
    mut client: ObjectsClient,
    name: &FieldName,
    operation: Operation,
    global: &Global,
) -> anyhow::Result<()> {
    let request = proto::UpdateRequest {
        app: name.app.clone(),
        object: name.object.clone(),
        field: name.field.clone(),
        path: name.path.clone(),
        operation: Some(operation),
    };
    client.update(request).await.map_err(|status| connection::failure(&status))?;
    let states = read(&mut client, &name.app, &name.object, &name.field, &name.path).await?;
    let state = states.first().map_or("null", |state| state.json.as_str());
    match global.output {
        Format::Json => output::json(&json!({ "value": serde_json::from_str::<Value>(state)? })),
        Format::Table => output::text(&format!("{}\n", output::line(state))),
    }
}

async fn read(
    client: &mut ObjectsClient,
    app: &str,
    object: &str,
    field: &str,
    path: &[String],
) -> anyhow::Result<Vec<proto::FieldState>> {
    let request = proto::GetRequest {
        app: app.to_owned(),
        object: object.to_owned(),
        field: field.to_owned(),
        path: path.to_vec(),
    };
    Ok(client.get(request).await.map_err(|status| connection::failure(&status))?.into_inner().fields)
}

/// The type of the field: as given, as stored, or `default` for a new field.
async fn kind(
    client: &mut ObjectsClient,
    name: &FieldName,
    given: Option<&str>,
    default: &str,
) -> anyhow::Result<String> {
    if let Some(given) = given {
        return Ok(given.to_owned());
    }
    let states = read(client, &name.app, &name.object, &name.field, &name.path).await?;
    Ok(states.first().map_or(default, |state| &state.r#type).to_owned())
}

async fn set(
    kind: &str,
    value: &str,
    at: Option<&str>,
    client: &mut ObjectsClient,
    name: &FieldName,
) -> anyhow::Result<Operation> {
    let bytes = || Vec::from(bytes_of_json(&as_json(value)));
    let flag = || match value {
        "true" | "on" => Ok(true),
        "false" | "off" => Ok(false),
        _ => Err(Failure::new(Exit::Usage, format!("a flag is `true` or `false`, not `{value}`"))),
    };
    Ok(match (kind, at) {
        ("register", None) => Operation::RegisterSet(bytes()),
        ("mv-register", None) => Operation::MvRegisterSet(bytes()),
        ("ew-flag", None) => Operation::EwFlagSet(flag()?),
        ("dw-flag", None) => Operation::DwFlagSet(flag()?),
        ("text", None) => {
            let states = read(client, &name.app, &name.object, &name.field, &name.path).await?;
            let before = states.first().and_then(|state| serde_json::from_str::<String>(&state.json).ok());
            let delete = before.map_or(0, |text| text.chars().count() as u32);
            let insert = match as_json(value) {
                Value::String(text) => text,
                _ => value.to_owned(),
            };
            Operation::TextSplice(proto::TextSplice { at: 0, delete, insert })
        }
        ("list", Some(at)) => Operation::ListSet(proto::ListElement { index: index(at)?, value: bytes() }),
        ("json", at) => {
            let value = as_json(value).to_string();
            Operation::JsonSet(proto::JsonSet { pointer: at.unwrap_or_default().to_owned(), value })
        }
        ("list", None) => {
            return Err(Failure::new(Exit::Usage, "name the element of the list: --at INDEX"));
        }
        (_, Some(_)) => return Err(Failure::new(Exit::Usage, format!("--at has no meaning for a {kind}"))),
        _ => return Err(other(kind, "set", "edgefaas objects add")),
    })
}

fn add(kind: &str, value: &str) -> anyhow::Result<Operation> {
    let bytes = || Vec::from(bytes_of_json(&as_json(value)));
    let number = || {
        let whole = value.parse::<i64>();
        whole.map_err(|_| {
            Failure::new(Exit::Usage, format!("a counter takes a whole number, not `{value}`"))
        })
    };
    Ok(match kind {
        "counter" => Operation::CounterAdd(number()?),
        "g-counter" => Operation::GCounterAdd(u64::try_from(number()?).map_err(|_| {
            Failure::new(Exit::Usage, "a g-counter only goes up; use a counter to go down as well")
        })?),
        "bounded-counter" => Operation::BoundedCounterAdd(number()?),
        "g-set" => Operation::GSetAdd(bytes()),
        "set" => Operation::SetAdd(bytes()),
        "list" => Operation::ListPush(bytes()),
        _ => return Err(other(kind, "added to", "edgefaas objects set")),
    })
}

fn remove(kind: &str, value: &str) -> anyhow::Result<Operation> {
    Ok(match kind {
        "set" => Operation::SetRemove(bytes_of_json(&as_json(value)).into()),
        "map" => Operation::MapRemove(value.to_owned()),
        "list" => Operation::ListRemove(index(value)?),
        "json" => Operation::JsonRemove(value.to_owned()),
        "" => return Err(Failure::new(Exit::NotFound, "there is no such field")),
        "counter" | "bounded-counter" => {
            return Err(Failure::new(
                Exit::Usage,
                format!(
                    "nothing is removed from a {kind}; to subtract, add a negative number: `edgefaas objects add … -- -{value}`"
                ),
            ));
        }
        _ => return Err(other(kind, "removed from", "edgefaas objects set")),
    })
}

async fn export(
    mut client: ObjectsClient,
    file: &Path,
    app: Option<&str>,
    global: &Global,
) -> anyhow::Result<()> {
    let request = proto::ExportRequest { app: app.unwrap_or_default().to_owned() };
    let mut chunks =
        client.export(request).await.map_err(|status| connection::failure(&status))?.into_inner();
    let unwritable = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("{} cannot be written: {error}", file.display()))
    };
    let to_stdout = file == Path::new("-");
    let target = (!to_stdout).then(|| Target::of(file));
    let mut out: Box<dyn Write> = match &target {
        None => Box::new(std::io::stdout().lock()),
        Some(target) => Box::new(target.create().map_err(unwritable)?),
    };
    let step = Step::start("Exporting objects");
    let mut bytes = 0;
    let written = async {
        while let Some(chunk) = chunks.message().await.map_err(|status| connection::failure(&status))? {
            out.write_all(&chunk.data).map_err(unwritable)?;
            bytes += chunk.data.len() as u64;
            step.detail(output::size(bytes));
        }
        out.flush().map_err(unwritable)
    };
    let written = written.await;
    drop((step, out));
    let Some(target) = target else { return written };
    if let Err(error) = written {
        target.give_up();
        return Err(error);
    }
    target.keep().map_err(unwritable)?;
    match global.output {
        Format::Json => output::json(&json!({ "bytes": bytes })),
        Format::Table => output::text(&format!("{} with {}\n", file.display(), output::size(bytes))),
    }
}

/// Destination of an archive.
enum Target {
    /// A file. One that is there stays until the new one is whole.
    File { path: PathBuf, partial: PathBuf },
    /// A device or a pipe.
    Stream(PathBuf),
}

impl Target {
    fn of(file: &Path) -> Self {
        // The file that a link leads to is replaced, and not the link.
        let path = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
        match std::fs::metadata(&path) {
            Ok(metadata) if !metadata.is_file() => Self::Stream(path),
            _ => Self::File { partial: path.with_added_extension("partial"), path },
        }
    }

    fn create(&self) -> std::io::Result<std::fs::File> {
        let mut options = std::fs::File::options();
        match self {
            // The archive holds all data of the functions, so only its owner may read it.
            Self::File { partial, .. } => {
                let _ = std::fs::remove_file(partial);
                options.create_new(true).mode(0o600).write(true).open(partial)
            }
            Self::Stream(path) => options.write(true).open(path),
        }
    }

    fn keep(&self) -> std::io::Result<()> {
        let Self::File { path, partial } = self else { return Ok(()) };
        let written = std::fs::File::open(partial)?;
        if let Ok(before) = std::fs::metadata(path) {
            written.set_permissions(before.permissions())?;
        }
        written.sync_all()?;
        std::fs::rename(partial, path)
    }

    fn give_up(&self) {
        if let Self::File { partial, .. } = self {
            let _ = std::fs::remove_file(partial);
        }
    }
}

async fn import(mut client: ObjectsClient, file: &Path, global: &Global) -> anyhow::Result<()> {
    let unreadable = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("{} cannot be read: {error}", file.display()))
    };
    let mut from: Box<dyn Read + Send> = match file == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(file).map_err(unreadable)?),
    };
    let (chunks, stream) = mpsc::channel(2);
    let reading = tokio::task::spawn_blocking(move || {
        loop {
            let mut data = vec![0; CHUNK_BYTES];
            let count = from.read(&mut data)?;
            data.truncate(count);
            if count == 0 || chunks.blocking_send(proto::Chunk { data }).is_err() {
                return Ok::<_, std::io::Error>(());
            }
        }
    });
    let step = Step::start("Importing objects");
    let imported = client.import(ReceiverStream::new(stream)).await;
    drop(step);
    if let Ok(Err(error)) = reading.await {
        return Err(unreadable(error));
    }
    let fields = imported.map_err(|status| connection::failure(&status))?.into_inner().fields;
    match global.output {
        Format::Json => output::json(&json!({ "fields": fields })),
        Format::Table => output::text(&format!("{fields} fields\n")),
    }
}

/// Text that is not JSON is a string, so that a shell command needs no quotes within quotes.
fn as_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn index(text: &str) -> anyhow::Result<u32> {
    text.parse().map_err(|_| {
        Failure::new(Exit::Usage, format!("`{text}` is not an index of a list; the first is 0"))
    })
}

fn other(kind: &str, done: &str, instead: &str) -> anyhow::Error {
    Failure::new(Exit::Usage, format!("a {kind} is not {done}; see `{instead} --help`"))
}
