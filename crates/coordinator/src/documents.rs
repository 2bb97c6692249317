//! Documents that describe services: files of the app, or fetched from a permitted server and kept for a short time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use edgefaas_functions::durable::{Digest, digest};
use edgefaas_workflow::api_document::ApiDocument;
use edgefaas_workflow::instance::{Credentials, DocumentSource, RequestParts};
use edgefaas_workflow::program::{Channel, Kind, Listen, NodeId, OpenApi, Publish};
use edgefaas_workflow::{ErrorKind, WorkflowError};
use parking_lot::Mutex;
use serde_json::Value;

use super::coordinator::Coordinator;
use super::instance::Running;
use super::run_state::WorkflowResult;

/// Maximum number of kept documents. Beyond it all are dropped and fetched again.
const MAX_DOCUMENTS: usize = 32;
/// Maximum size of a fetched document, in bytes. Its parsed form takes several times as much.
const MAX_BYTES: usize = 1 << 20;
/// Limit of the request for a document, with that for its token.
const FETCH_WAIT: Duration = Duration::from_secs(60);
/// The time for which a fetched document is used.
const KEEP_MS: u64 = 5 * 60 * 1_000;

/// The fetched documents of a node, by app and URL.
#[derive(Default)]
pub(crate) struct FetchedDocuments {
    kept: Mutex<HashMap<Digest, Kept>>,
}

struct Kept {
    document: Arc<ApiDocument>,
    /// By the clock of instances.
    until_ms: u64,
}

impl Coordinator {
    /// Carries out a task that needs a document: sends the request of an operation of OpenAPI, or finds the topic of one of AsyncAPI.
    pub(super) async fn document_step(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        source: DocumentSource,
        parameters: &Value,
        credentials: Option<Credentials>,
    ) -> WorkflowResult {
        let url = match &source {
            DocumentSource::File(_) => None,
            DocumentSource::Request(request) => Some(request.url.clone()),
        };
        let (call, operation) = match &running.workflow.program.node(node).kind {
            Kind::OpenApi(call) => (Some(call), None),
            Kind::Publish(Publish { channel: Channel::Operation(_, operation), .. })
            | Kind::Listen(Listen { operation: Some((_, operation)), .. }) => (None, Some(operation)),
            _ => (None, None),
        };
        let with = |document: &ApiDocument| match (call, operation) {
            (Some(OpenApi { operation, .. }), _) => {
                Ok(Found::Request(document.operation(operation)?.request(parameters, url.as_deref())?))
            }
            (None, Some(operation)) => Ok(Found::Topic(document.address(operation)?.address)),
            (None, None) => Ok(Found::Topic(String::new())),
        };
        let found: Result<Found, WorkflowError> = match source {
            DocumentSource::File(file) => with(self.file(running, &file)?.as_ref()),
            DocumentSource::Request(request) => {
                with(&*self.fetched_document(running, node, request).await?)
            }
        };
        match (found?, call) {
            (Found::Request(mut request), Some(call)) => {
                request.credentials = credentials;
                self.request_step(running, node, request, call.output, call.redirect).await
            }
            (Found::Topic(address), _) => Ok(Arc::new(serde_json::json!({"address": address}))),
            (Found::Request(_), None) => Ok(Arc::new(Value::Null)),
        }
    }

    /// A document of the app, in the revision that is deployed now if the one of the instance is not known any more.
    fn file(&self, running: &Running, file: &str) -> Result<AppDocument, WorkflowError> {
        let routes = self.registry.routes();
        let own = running.workflow.documents.contains_key(file).then(|| running.workflow.documents.clone());
        let now = || routes.workflow(&running.workflow.name).map(|workflow| workflow.documents.clone());
        match own.or_else(now).filter(|documents| documents.contains_key(file)) {
            Some(documents) => Ok(AppDocument { documents, file: file.to_owned() }),
            None => {
                let detail =
                    format!("the app has no document `{file}`: deploy it with the files of `workflows`");
                Err(WorkflowError::new(ErrorKind::Configuration, detail).with_status(404))
            }
        }
    }

    async fn fetched_document(
        self: &Arc<Self>,
        running: &Running,
        node: NodeId,
        request: RequestParts,
    ) -> Result<Arc<ApiDocument>, WorkflowError> {
        let url = request.url.clone();
        // Another workflow may not have the permission.
        let key = digest(&[running.workflow.name.as_bytes(), url.as_bytes()]);
        let now_ms = self.time.now_ms();
        if let Some(kept) = self.documents.kept.lock().get(&key).filter(|kept| kept.until_ms > now_ms) {
            return Ok(kept.document.clone());
        }
        let sent = tokio::time::timeout(FETCH_WAIT, self.send_authorized(running, node, request)).await;
        let answer = sent.unwrap_or_else(|_| {
            let detail = format!("the server of the document `{url}` gave no answer within {FETCH_WAIT:?}");
            Err(WorkflowError::new(ErrorKind::Communication, detail).with_status(504))
        })?;
        let communication = |detail: String, status: u16| {
            Err(WorkflowError::new(ErrorKind::Communication, detail).with_status(status))
        };
        if !(200..300).contains(&answer.status) {
            let status = answer.status;
            return communication(
                format!("the document `{url}` is not there: the server answered {status}"),
                status,
            );
        }
        if answer.body.len() > MAX_BYTES {
            let detail = format!(
                "the document `{url}` has more than {} KiB: deploy the part that the workflow uses with the app",
                MAX_BYTES >> 10
            );
            return communication(detail, 500);
        }
        let body = answer.body;
        // Parsing may take milliseconds.
        let read =
            tokio::task::spawn_blocking(move || ApiDocument::read(&String::from_utf8_lossy(&body))).await;
        let document = match read {
            Ok(read) => Arc::new(read?),
            Err(error) => {
                return communication(format!("the document `{url}` cannot be read: {error}"), 500);
            }
        };
        let mut kept = self.documents.kept.lock();
        if kept.len() >= MAX_DOCUMENTS {
            kept.clear();
        }
        kept.insert(key, Kept { document: document.clone(), until_ms: now_ms.saturating_add(KEEP_MS) });
        Ok(document)
    }
}

/// What a document says about a task.
enum Found {
    Request(RequestParts),
    Topic(String),
}

/// A document among those of an app.
struct AppDocument {
    documents: Arc<edgefaas_functions::registry::Documents>,
    file: String,
}

impl AsRef<ApiDocument> for AppDocument {
    fn as_ref(&self) -> &ApiDocument {
        &self.documents[&self.file]
    }
}
