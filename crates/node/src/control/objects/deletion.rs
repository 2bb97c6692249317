//! Deletion of fields and objects, in bounded batches.

use edgefaas_api::objects as proto;
use edgefaas_manifest::{glob_error, is_name};
use edgefaas_state::objects::{FieldKey, name_error};
use edgefaas_state::store::{Batch, StoreError};
use tonic::{Code, Status};

use super::{ObjectsService, refused, store_status};

/// Number of deleted fields in one commit.
const DELETE_FIELDS: usize = 1000;

/// The fields that a request deletes.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    app: String,
    /// A pattern of object names.
    object: String,
    /// `None` for all fields.
    field: Option<String>,
}

impl Scope {
    /// Checks the names of a request.
    pub(super) fn of(request: proto::DeleteRequest) -> Result<Self, Status> {
        let proto::DeleteRequest { app, object, field } = request;
        let problem = if !is_name(&app) {
            Some(format!("`{}` is not a valid app name", app.escape_debug()))
        } else if object.contains('*') {
            let pattern = object.escape_debug();
            glob_error(&object).map(|reason| format!("`{pattern}` is not a valid pattern: {reason}"))
        } else {
            name_error("object", &object)
        };
        let problem = problem.or_else(|| field.as_ref().and_then(|field| name_error("field", field)));
        match problem {
            Some(message) => Err(refused(Code::InvalidArgument, "BAD_NAME", message)),
            None => Ok(Self { app, object, field }),
        }
    }
}

impl ObjectsService {
    /// Deletes all fields of a scope that exist now. After an error, earlier batches are deleted.
    pub(super) async fn delete_all(&self, scope: Scope) -> Result<proto::DeleteResponse, Status> {
        let mut deleted = proto::DeleteResponse::default();
        let mut last: Option<FieldKey> = None;
        loop {
            let keys = self.next_keys(scope.clone(), last.clone()).await?;
            let mut batch = Batch::default();
            for key in &keys {
                batch.delete_field(key.clone());
                let is_same = last.as_ref().is_some_and(|last| last.object() == key.object());
                deleted.objects += u64::from(!is_same);
                last = Some(key.clone());
            }
            if keys.is_empty() {
                return Ok(deleted);
            }
            deleted.fields += keys.len() as u64;
            self.commit(batch).await?;
        }
    }

    async fn next_keys(&self, scope: Scope, after: Option<FieldKey>) -> Result<Vec<FieldKey>, Status> {
        let objects = self.parts.store.objects().clone();
        let keys = self.tasks.spawn_blocking(move || -> Result<_, StoreError> {
            let Scope { app, object, field } = scope;
            objects.matching(&app, &object, field.as_deref(), after.as_ref(), DELETE_FIELDS)
        });
        keys.await.map_err(|error| Status::internal(error.to_string()))?.map_err(store_status)
    }
}
