//! Stateful objects over gRPC.

mod deletion;

use std::io::Read as _;
use std::sync::Arc;

use bytes::Bytes;
use edgefaas_api::objects::objects_server::{Objects, ObjectsServer};
use edgefaas_api::objects::update_request::Operation as Requested;
use edgefaas_api::objects::{self as proto, value::Kind};
use edgefaas_crdt::{ApplyError, Field, FieldType, Operation, Value};
use edgefaas_manifest::{glob_error, is_name};
use edgefaas_state::objects::{
    ArchiveError, ArchiveReader, ArchiveWriter, CLUSTER_APP, FieldKey, FieldRefused, MAX_FIELDS_PER_OBJECT,
    MAX_NAME_BYTES, MAX_PATH, MAX_VALUE_BYTES, NO_BOUNDED_IN_MAP, WatchScope, json_of_value, name_error,
};
use edgefaas_state::store::{Batch, CommitError, Durability, StoreError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::io::SyncIoBridge;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_types::{ErrorDetails, StatusExt};

use super::caller::stream_end;
use super::dependencies::ControlParts;
use super::rpcs::{Answer, Flow, serve_rpcs};

/// Default and maximum number of objects in a list.
const LIST_OBJECTS: usize = 1000;
/// Maximum number of updates in one commit.
const MAX_UPDATES: usize = 10_000;
/// Approximate maximum size of a response with all fields of an object.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// Maximum number of buffered changes of a watch.
const STREAM_CHANGES: usize = 16;
/// Size of a chunk of an archive, in bytes.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of buffered chunks.
const STREAM_CHUNKS: usize = 4;
/// Above the names of all objects.
const LAST_NAME: &str = "\u{10FFFF}";
/// Number of imported fields in one commit.
const IMPORT_FIELDS: usize = 256;

pub(super) fn service(
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    tasks: TaskTracker,
) -> ObjectsServer<ObjectsService> {
    let message_bytes = parts.facts.plan.message_bytes();
    ObjectsServer::new(ObjectsService { parts, cancel, tasks })
        .max_decoding_message_size(message_bytes)
        .max_encoding_message_size(message_bytes)
}

#[derive(Clone)]
pub(super) struct ObjectsService {
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    /// Owner of the tasks that fill streams.
    tasks: TaskTracker,
}

serve_rpcs! {
    Objects for ObjectsService, streams [WatchStream: proto::Change, ExportStream: proto::Chunk];
    update(proto::UpdateRequest) -> proto::UpdateResponse;
    update_all(proto::UpdateAllRequest) -> proto::UpdateAllResponse;
    delete(proto::DeleteRequest) -> proto::DeleteResponse;
    get(proto::GetRequest) -> proto::GetResponse;
    list(proto::ListRequest) -> proto::ListResponse;
    watch(proto::WatchRequest) -> Flow<proto::Change>;
    export(proto::ExportRequest) -> Flow<proto::Chunk>;
    import(Streaming<proto::Chunk>) -> proto::ImportResponse;
}

impl ObjectsService {
    async fn update(&self, request: Request<proto::UpdateRequest>) -> Answer<proto::UpdateResponse> {
        let mut batch = Batch::default();
        add(&mut batch, request.into_inner())?;
        self.commit(batch).await?;
        Ok(Response::new(proto::UpdateResponse {}))
    }

    async fn update_all(
        &self,
        request: Request<proto::UpdateAllRequest>,
    ) -> Answer<proto::UpdateAllResponse> {
        let updates = request.into_inner().updates;
        if updates.len() > MAX_UPDATES {
            let message =
                format!("the request has {} updates; at most {MAX_UPDATES} are allowed", updates.len());
            return Err(refused(Code::InvalidArgument, "TOO_MANY_UPDATES", message));
        }
        let mut batch = Batch::default();
        for update in updates {
            add(&mut batch, update)?;
        }
        self.commit(batch).await?;
        Ok(Response::new(proto::UpdateAllResponse {}))
    }

    async fn delete(&self, request: Request<proto::DeleteRequest>) -> Answer<proto::DeleteResponse> {
        let scope = deletion::Scope::of(request.into_inner())?;
        Ok(Response::new(self.delete_all(scope).await?))
    }

    async fn get(&self, request: Request<proto::GetRequest>) -> Answer<proto::GetResponse> {
        let proto::GetRequest { app, object, field, path } = request.into_inner();
        check_names(&app, &object, (!field.is_empty()).then_some(&field), &path)?;
        let objects = self.parts.store.objects();
        let mut keys = match field.is_empty() {
            true => objects.fields(&app, &object, None, MAX_FIELDS_PER_OBJECT + 1).map_err(store_status)?,
            false => vec![FieldKey::new(&app, &object, &field)],
        };
        let more = keys.len() > MAX_FIELDS_PER_OBJECT;
        keys.truncate(MAX_FIELDS_PER_OBJECT);
        let mut answer = proto::GetResponse { fields: Vec::new(), more };
        let mut bytes = 0;
        for key in keys {
            let node = objects.replica().node;
            let state = objects.read(&key, |field| {
                let Some(field) = field else { return Ok(None) };
                let inner = field.at_path(&path)?;
                Ok(inner.map(|inner| (field_state(key.field(), inner, node), inner.size_bytes())))
            });
            let state = state.map_err(store_status)?.map_err(|error: edgefaas_crdt::WrongType| {
                let error = error.below(key.field());
                let message = format!("object `{object}`: {error}");
                refused(Code::FailedPrecondition, "WRONG_TYPE", message)
            })?;
            let Some((state, size)) = state else { continue };
            bytes += size + state.json.len();
            if bytes > MAX_ANSWER_BYTES && !answer.fields.is_empty() {
                answer.more = true;
                break;
            }
            answer.fields.push(state);
        }
        Ok(Response::new(answer))
    }

    async fn list(&self, request: Request<proto::ListRequest>) -> Answer<proto::ListResponse> {
        let proto::ListRequest { app, after_app, after_object, limit } = request.into_inner();
        check_app(&app)?;
        // They need not exist, nor be valid names, but the store has a limit for keys.
        if after_app.len().max(after_object.len()) > MAX_NAME_BYTES {
            let message = format!("`after_app` and `after_object` have at most {MAX_NAME_BYTES} bytes");
            return Err(refused(Code::InvalidArgument, "BAD_NAME", message));
        }
        let limit = if limit == 0 { LIST_OBJECTS } else { (limit as usize).min(LIST_OBJECTS) };
        let objects = self.parts.store.objects().clone();
        let listed = self.tasks.spawn_blocking(move || {
            let is_first = after_app.is_empty() && after_object.is_empty();
            // The objects of the cluster itself come before those of all apps.
            let after = (!is_first).then_some((after_app.as_str(), after_object.as_str()));
            match app.is_empty() {
                true => objects.list(None, after.max(Some((CLUSTER_APP, LAST_NAME))), limit),
                false => objects.list(Some(&app), after, limit),
            }
        });
        let listed =
            listed.await.map_err(|error| Status::internal(error.to_string()))?.map_err(store_status)?;
        let objects = listed.into_iter().map(|object| proto::Object {
            app: object.app,
            object: object.object,
            fields: object.fields.into_iter().map(|(name, kind)| (name, kind.to_string())).collect(),
            bytes: object.bytes,
        });
        Ok(Response::new(proto::ListResponse { objects: objects.collect() }))
    }

    async fn watch(&self, request: Request<proto::WatchRequest>) -> Answer<Flow<proto::Change>> {
        let cancel = stream_end(request.extensions(), &self.cancel);
        let proto::WatchRequest { app, object, field } = request.into_inner();
        let bad = |message: String| refused(Code::InvalidArgument, "BAD_NAME", message);
        if !is_name(&app) {
            return Err(bad(format!("`{}` is not a valid app name", app.escape_debug())));
        }
        for pattern in [Some(&object), Some(&field).filter(|field| !field.is_empty())].into_iter().flatten()
        {
            if let Some(reason) = glob_error(pattern) {
                return Err(bad(format!("`{}` is not a valid pattern: {reason}", pattern.escape_debug())));
            }
        }
        let field = (!field.is_empty()).then_some(field);
        let mut watch = self.parts.store.objects().watch(WatchScope { app, object, field });
        let (changes, stream) = mpsc::channel(STREAM_CHANGES);
        self.tasks.spawn(async move {
            loop {
                let (notice, lost_before) = tokio::select! {
                    () = cancel.cancelled() => return,
                    () = changes.closed() => return,
                    next = watch.next() => next,
                };
                let change = proto::Change {
                    app: notice.key.app().to_owned(),
                    object: notice.key.object().to_owned(),
                    field: notice.key.field().to_owned(),
                    r#type: notice.field_type.to_string(),
                    previous_json: notice.previous.as_ref().map(|value| json_of_value(value).to_string()),
                    json: notice.value.as_ref().map(json_of_value).unwrap_or_default().to_string(),
                    origin: notice.origin.as_str().to_owned(),
                    lost_before,
                    deleted: notice.value.is_none(),
                };
                match cancel.run_until_cancelled(changes.send(Ok(change))).await {
                    Some(Ok(())) => {}
                    Some(Err(_)) | None => return,
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn export(&self, request: Request<proto::ExportRequest>) -> Answer<Flow<proto::Chunk>> {
        let app = request.into_inner().app;
        check_app(&app)?;
        let (chunks, stream) = mpsc::channel::<Result<proto::Chunk, Status>>(STREAM_CHUNKS);
        let objects = self.parts.store.objects().clone();
        self.tasks.spawn_blocking(move || {
            let export = || -> Result<(), ArchiveError> {
                let send = |bytes: Vec<u8>| {
                    let sent = chunks.blocking_send(Ok(proto::Chunk { data: bytes }));
                    sent.map_err(|_| std::io::Error::from(std::io::ErrorKind::BrokenPipe))
                };
                let mut writer = ArchiveWriter::new(Vec::new())?;
                objects.visit(|key, field| -> Result<(), ArchiveError> {
                    if app == key.app() || (app.is_empty() && key.app() != CLUSTER_APP) {
                        writer.add(key, field)?;
                    }
                    if writer.get_mut().len() >= CHUNK_BYTES {
                        send(std::mem::take(writer.get_mut()))?;
                    }
                    Ok(())
                })?;
                let (rest, fields) = writer.finish()?;
                if fields == 0 && !app.is_empty() {
                    let message =
                        format!("app `{app}` has no objects; `edgefaas objects list` shows all objects");
                    let _ = chunks.blocking_send(Err(refused(Code::NotFound, "NO_OBJECTS", message)));
                    return Ok(());
                }
                Ok(send(rest)?)
            };
            if let Err(error) = export() {
                let _ =
                    chunks.blocking_send(Err(refused(Code::DataLoss, "STORE_FAILED", error.to_string())));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn import(&self, request: Request<Streaming<proto::Chunk>>) -> Answer<proto::ImportResponse> {
        let chunks = request.into_inner();
        let chunks = futures_util::StreamExt::map(chunks, |chunk| {
            chunk.map(|chunk| Bytes::from(chunk.data)).map_err(std::io::Error::other)
        });
        let bytes = SyncIoBridge::new(tokio_util::io::StreamReader::new(chunks));
        let (fields, mut read) = mpsc::channel(IMPORT_FIELDS);
        let reading = self.tasks.spawn_blocking(move || {
            let mut reader = ArchiveReader::new(std::io::BufReader::new(bytes.take(u64::MAX)))?;
            while let Some(field) = reader.next_field()? {
                if fields.blocking_send(field).is_err() {
                    break;
                }
            }
            Ok::<_, ArchiveError>(())
        });
        let mut count = 0;
        let mut group = Vec::new();
        while read.recv_many(&mut group, IMPORT_FIELDS).await > 0 {
            count += group.len() as u64;
            let mut batch = Batch::default();
            for (key, field) in group.drain(..) {
                if key.app() == CLUSTER_APP {
                    let message =
                        "the archive has objects of a cluster itself, which cannot be imported".to_owned();
                    return Err(refused(Code::InvalidArgument, "BAD_ARCHIVE", message));
                }
                batch.import(key, field.into());
            }
            self.commit(batch).await?;
        }
        let ended = reading.await.map_err(|error| Status::internal(error.to_string()))?;
        ended.map_err(|error| {
            let message = match count {
                0 => error.to_string(),
                count => format!("{error}; the {count} fields before it were imported"),
            };
            refused(Code::InvalidArgument, "BAD_ARCHIVE", message)
        })?;
        self.parts
            .store
            .committer()
            .commit(Batch::default(), Durability::Synced)
            .await
            .map_err(commit_status)?;
        Ok(Response::new(proto::ImportResponse { fields: count }))
    }
}

impl ObjectsService {
    async fn commit(&self, batch: Batch) -> Result<(), Status> {
        let committer = self.parts.store.committer();
        committer.commit(batch, Durability::Written).await.map_err(commit_status)
    }
}

fn add(batch: &mut Batch, update: proto::UpdateRequest) -> Result<(), Status> {
    let proto::UpdateRequest { app, object, field, path, operation } = update;
    check_names(&app, &object, Some(&field), &path)?;
    let Some(operation) = operation else {
        let message = format!("field `{field}` has no operation; set one, such as counter_add");
        return Err(refused(Code::InvalidArgument, "NO_OPERATION", message));
    };
    let operation = match operation {
        Requested::CounterAdd(amount) => Operation::CounterAdd(amount),
        Requested::RegisterSet(value) => Operation::RegisterSet(value.into()),
        Requested::GCounterAdd(amount) => Operation::GCounterAdd(amount),
        Requested::BoundedCounterAdd(amount) => Operation::BoundedCounterAdd(amount),
        Requested::MvRegisterSet(value) => Operation::MvRegisterSet(value.into()),
        Requested::GSetAdd(value) => Operation::GSetAdd(value.into()),
        Requested::SetAdd(value) => Operation::SetAdd(value.into()),
        Requested::SetRemove(value) => Operation::SetRemove(value.into()),
        Requested::SetClear(_) => Operation::SetClear,
        Requested::MapRemove(key) => Operation::MapRemove(key),
        Requested::MapClear(_) => Operation::MapClear,
        Requested::EwFlagSet(flag) => Operation::EwFlagSet(flag),
        Requested::DwFlagSet(flag) => Operation::DwFlagSet(flag),
        Requested::ListInsert(element) => Operation::ListInsert(element.index, element.value.into()),
        Requested::ListPush(value) => Operation::ListPush(value.into()),
        Requested::ListSet(element) => Operation::ListSet(element.index, element.value.into()),
        Requested::ListRemove(index) => Operation::ListRemove(index),
        Requested::TextSplice(proto::TextSplice { at, delete, insert }) => {
            Operation::TextSplice { at, delete, insert }
        }
        Requested::JsonSet(proto::JsonSet { pointer, value }) => Operation::JsonSet { pointer, value },
        Requested::JsonRemove(pointer) => Operation::JsonRemove { pointer },
        Requested::DeleteField(_) if path.is_empty() => {
            batch.delete_field(FieldKey::new(&app, &object, &field));
            return Ok(());
        }
        Requested::DeleteField(_) => {
            let message = format!(
                "field `{field}`: delete_field deletes a whole field, so path must be empty; for an entry of a map set map_remove"
            );
            return Err(refused(Code::InvalidArgument, "BAD_NAME", message));
        }
    };
    let bytes = operation.size_bytes();
    if bytes > MAX_VALUE_BYTES {
        let message =
            format!("field `{field}`: the value has {bytes} bytes; at most {MAX_VALUE_BYTES} are allowed");
        return Err(refused(Code::InvalidArgument, "VALUE_TOO_LARGE", message));
    }
    if operation.field_type() == FieldType::BoundedCounter && !path.is_empty() {
        return Err(refused(Code::InvalidArgument, "WRONG_TYPE", NO_BOUNDED_IN_MAP.to_owned()));
    }
    let nest = |operation, key| Operation::MapUpdate(key, Box::new(operation));
    batch.operate(FieldKey::new(&app, &object, &field), path.into_iter().rev().fold(operation, nest));
    Ok(())
}

/// Checks the app's name of a request; an empty name stands for all apps.
fn check_app(app: &str) -> Result<(), Status> {
    if app.is_empty() || is_name(app) {
        return Ok(());
    }
    let message = format!("`{}` is not a valid app name", app.escape_debug());
    Err(refused(Code::InvalidArgument, "BAD_NAME", message))
}

fn check_names(app: &str, object: &str, field: Option<&String>, path: &[String]) -> Result<(), Status> {
    let problem = if !is_name(app) {
        Some(format!("`{}` is not a valid app name", app.escape_debug()))
    } else if path.len() > MAX_PATH {
        Some(format!("maps may be nested {MAX_PATH} deep, not {}", path.len()))
    } else {
        name_error("object", object)
            .or_else(|| field.and_then(|field| name_error("field", field)))
            .or_else(|| path.iter().find_map(|key| name_error("map's key", key)))
    };
    problem.map_or(Ok(()), |message| Err(refused(Code::InvalidArgument, "BAD_NAME", message)))
}

fn field_state(name: &str, field: &Field, node: u64) -> proto::FieldState {
    let value = field.value();
    let json = json_of_value(&value).to_string();
    let values = |values: Vec<Bytes>| {
        Kind::Values(proto::Values { values: values.into_iter().map(Vec::from).collect() })
    };
    let kind = match value {
        Value::Integer(number) => Some(Kind::Integer(number)),
        Value::Unsigned(number) => Some(Kind::Unsigned(number)),
        Value::Register(value) => value.map(|value| Kind::Bytes(value.into())),
        Value::Values(all) | Value::List(all) => Some(values(all)),
        Value::Flag(flag) => Some(Kind::Flag(flag)),
        Value::Text(text) => Some(Kind::Text(text)),
        Value::Json(text) => Some(Kind::Json(text)),
        Value::Map(_) => Some(Kind::Json(json.clone())),
    };
    proto::FieldState {
        name: name.to_owned(),
        r#type: field.field_type().to_string(),
        value: Some(proto::Value { kind }),
        json,
        share: field.bounded_counter(name).map_or(0, |counter| counter.share(node)),
    }
}

fn commit_status(error: CommitError) -> Status {
    let (code, reason) = match &error {
        CommitError::DiskFull { .. } => (Code::ResourceExhausted, "DISK_FULL"),
        CommitError::KeyTooLong { .. } => (Code::InvalidArgument, "BAD_NAME"),
        CommitError::Failed(_) => (Code::Internal, "STORE_FAILED"),
        CommitError::Closed => (Code::Unavailable, "STORE_FAILED"),
        CommitError::Field(FieldRefused::OverQuota { .. }) => (Code::ResourceExhausted, "QUOTA_EXCEEDED"),
        CommitError::Field(FieldRefused::TooManyFields { .. } | FieldRefused::TooManyDeletions { .. }) => {
            (Code::ResourceExhausted, "TOO_MANY_FIELDS")
        }
        CommitError::Field(FieldRefused::Apply { error, .. }) => match error {
            ApplyError::WrongType(_) => (Code::FailedPrecondition, "WRONG_TYPE"),
            ApplyError::DeletedAs { .. } => (Code::FailedPrecondition, "TYPE_RESERVED"),
            ApplyError::BelowFloor { .. } => (Code::FailedPrecondition, "BELOW_FLOOR"),
            ApplyError::CounterOverflow { .. }
            | ApplyError::GCounterOverflow { .. }
            | ApplyError::IndexOutOfRange { .. } => (Code::OutOfRange, "OUT_OF_RANGE"),
            ApplyError::BadPointer { .. } => (Code::InvalidArgument, "BAD_POINTER"),
            ApplyError::BadJson { .. } => (Code::InvalidArgument, "BAD_JSON"),
            ApplyError::TooLarge { .. } | ApplyError::TooCrowded { .. } => {
                (Code::ResourceExhausted, "DOCUMENT_FULL")
            }
            _ => (Code::InvalidArgument, "VALUE_TOO_LARGE"),
        },
    };
    refused(code, reason, error.to_string())
}

fn store_status(error: StoreError) -> Status {
    refused(Code::DataLoss, "STORE_FAILED", error.to_string())
}

fn refused(code: Code, reason: &str, message: String) -> Status {
    let details = ErrorDetails::with_error_info(reason, "objects.edgefaas", [] as [(String, String); 0]);
    Status::with_error_details(code, message, details)
}
