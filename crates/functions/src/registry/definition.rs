//! Deployed workflows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use edgefaas_manifest::{InstanceOrder, Manifest, OrderKey, Permissions, Succession, is_name};
use edgefaas_workflow::api_document::{ApiDocument, ApiDocumentError, ParameterError};
use edgefaas_workflow::expression::{Expression, ExpressionError, Template};
use edgefaas_workflow::program::{Channel, Kind, Listen, Mode, Publish, Resource, ResourcePlace};
use edgefaas_workflow::{Compiled, DefinitionError, Program, compile};

use crate::outgoing::{Caller, ResponseLimit};

/// Documents that describe services, by file: the files of `workflows` that are no workflows.
pub type Documents = BTreeMap<String, ApiDocument>;

/// A deployed workflow of one revision.
pub struct LiveWorkflow {
    /// Its name: `document.name`.
    pub name: Arc<str>,
    /// The app it belongs to.
    pub app: Arc<str>,
    /// The documents of its app, by file.
    pub documents: Arc<Documents>,
    /// Its text.
    pub text: Arc<str>,
    /// The digest of its text: instances are bound to it.
    pub digest: [u8; 32],
    /// The compiled definition.
    pub program: Arc<Program>,
    /// The functions that it calls, each once: [`Program::functions`].
    pub functions: Vec<String>,
    /// Its permissions outside its own app.
    pub permissions: Permissions,
    /// The order of the instances that messages start.
    pub order: LiveOrder,
    /// The owner of its outgoing requests.
    pub caller: Caller,
    /// Its metrics, also those of earlier revisions whose instances go on.
    pub figures: Arc<WorkflowFigures>,
    /// True if the events that start it are evaluated in a lane of its own.
    pub needs_lane: bool,
    /// Warnings of the compiler.
    pub warnings: Option<DefinitionError>,
    /// Problems for which a deploy is refused, but not a definition that is stored.
    pub refusal: Option<DefinitionError>,
}

/// The order of the instances that messages start, see [`InstanceOrder`].
#[derive(Debug, Clone, Default)]
pub struct LiveOrder {
    /// The expression of the key; `None` for the topic of the message.
    pub key: Option<Expression>,
    /// What the instances of one key do one after another.
    pub succession: Succession,
}

/// Counters of the instances of a workflow since the start of the node. A new revision goes on with those of the one before.
#[derive(Default)]
#[allow(missing_docs)]
pub struct WorkflowFigures {
    pub started: AtomicU64,
    pub completed: AtomicU64,
    pub faulted: AtomicU64,
    pub cancelled: AtomicU64,
    pub rejected: AtomicU64,
    /// Number of instances that have not ended.
    pub live: AtomicU64,
    /// Number of instances that run a task.
    pub running: AtomicU64,
    pub duration_us: AtomicU64,
    /// The last time that a dropped event was logged, in milliseconds of the node's own clock; 0 for never.
    pub drop_logged_ms: AtomicU64,
}

/// Errors of the workflows of a deploy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowError {
    /// A definition is invalid.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// The name is invalid.
    #[error(
        "{file}: `document.name` is `{name}`; here a name has 1 to 63 of a-z, 0-9, `_` and `-`, and is not `files`"
    )]
    Name {
        /// The file.
        file: String,
        /// The name.
        name: String,
    },
    /// A document that describes a service cannot be read.
    #[error("{file}: {error}")]
    Document {
        /// The file.
        file: String,
        /// The error.
        error: ApiDocumentError,
    },
    /// A task cannot use a document of the app.
    #[error("workflow `{name}` cannot use `{file}` in {task}: {error}")]
    Operation {
        /// The workflow.
        name: String,
        /// The file of the document.
        file: String,
        /// The task.
        task: String,
        /// The error.
        error: ApiDocumentError,
    },
    /// The constant input of a task has no suitable value for a parameter of an address.
    #[error("workflow `{name}` cannot send or subscribe in {task}: {error}")]
    Parameter {
        /// The workflow.
        name: String,
        /// The task.
        task: String,
        /// The error.
        error: ParameterError,
    },
    /// A task names a document that the app does not have.
    #[error(
        "workflow `{name}` uses `{file}` in {task}, and the app has no such file; name it among the files of `workflows` in the \
         manifest: workflows = [\"workflows/*.yaml\", \"{file}\"]"
    )]
    MissingDocument {
        /// The workflow.
        name: String,
        /// The file.
        file: String,
        /// The task.
        task: String,
    },
    /// Two files have the same `document.name` and `document.version`.
    #[error(
        "{file}: workflow `{name}` of this version is in `{other}` already; give one of them another `document.version`"
    )]
    Twice {
        /// The file.
        file: String,
        /// The name.
        name: String,
        /// The other file.
        other: String,
    },
    /// Of several versions of a workflow, one cannot be compared.
    #[error(
        "{file}: workflow `{name}` has several versions, and `{version}` is not a semantic version: {reason}; write it as \
         version: '1.2.0'"
    )]
    Version {
        /// The file.
        file: String,
        /// The name.
        name: String,
        /// The version.
        version: String,
        /// The error of the parser.
        reason: String,
    },
    /// A function of the app has the same name.
    #[error("{file}: `{name}` is the name of a function of this app; workflows are called like functions")]
    IsFunction {
        /// The file.
        file: String,
        /// The name.
        name: String,
    },
    /// The manifest orders the instances of a workflow that no message starts.
    #[error(
        "[workflows.{name}]: `order_by` is for workflows that messages start, and `{name}` has no `schedule.on`; remove `order_by`, \
         or add `schedule.on`"
    )]
    OrderWithoutEvents {
        /// The name.
        name: String,
    },
    /// The expression in `order_by` is invalid.
    #[error(
        "[workflows.{name}]: `order_by`: {error}; it is an expression over the event, without variables: order_by = \"${{ .data.room }}\""
    )]
    OrderKey {
        /// The name.
        name: String,
        /// The error of the compiler.
        error: ExpressionError,
    },
    /// The manifest has a table for an unknown workflow.
    #[error(
        "[workflows.{name}] in the manifest does not match a workflow of this app: the name must be the `document.name` of a \
         definition"
    )]
    Unknown {
        /// The name.
        name: String,
    },
}

impl LiveWorkflow {
    /// Compiles a definition.
    ///
    /// # Errors
    /// The definition is invalid.
    pub fn compile(
        app: &Arc<str>,
        file: &str,
        text: &str,
        permissions: Permissions,
    ) -> Result<Self, DefinitionError> {
        let Compiled { program, warnings, refusal } = compile(text, file)?;
        Ok(Self {
            name: program.name.as_str().into(),
            app: app.clone(),
            documents: Arc::default(),
            text: text.into(),
            caller: Caller::new(
                format!("workflow `{}`", program.name),
                permissions.http.clone(),
                ResponseLimit::Fixed,
            ),
            digest: *blake3::hash(text.as_bytes()).as_bytes(),
            needs_lane: needs_lane(&program),
            functions: program.functions(),
            program: Arc::new(program),
            permissions,
            order: LiveOrder::default(),
            figures: Arc::default(),
            warnings,
            refusal,
        })
    }

    /// Goes on with the figures of another revision of the same workflow.
    pub fn keep_figures(&mut self, before: Option<&Self>) {
        if let Some(before) = before.filter(|before| before.app == self.app) {
            self.figures = before.figures.clone();
        }
    }

    /// Sets the order of its instances.
    ///
    /// # Errors
    /// The expression of the key is invalid, or no message starts the workflow.
    fn set_order(&mut self, order: &InstanceOrder) -> Result<(), WorkflowError> {
        if self.program.schedule.as_ref().is_none_or(|schedule| schedule.on.is_none()) {
            return Err(WorkflowError::OrderWithoutEvents { name: self.name.to_string() });
        }
        let key = match &order.key {
            OrderKey::Topic => None,
            OrderKey::Expression(text) => {
                let key = Expression::parse(text, &[]);
                Some(key.map_err(|error| WorkflowError::OrderKey { name: self.name.to_string(), error })?)
            }
        };
        // An interpreted key may take long: it is evaluated where interpreted filters are.
        self.needs_lane |= key.as_ref().is_some_and(|key| !key.is_native());
        self.order = LiveOrder { key, succession: order.succession };
        Ok(())
    }

    fn set_permissions(&mut self, permissions: Permissions) {
        self.caller =
            Caller::new(self.caller.owner().clone(), permissions.http.clone(), ResponseLimit::Fixed);
        self.permissions = permissions;
    }

    /// Its triggers as text, for lists.
    pub fn triggers(&self) -> Vec<String> {
        let Some(schedule) = &self.program.schedule else { return Vec::new() };
        let mut triggers = Vec::new();
        triggers.extend(schedule.cron.as_ref().map(|cron| format!("cron {cron}")));
        triggers.extend(schedule.every_ms.map(|ms| format!("every {}", duration_text(ms))));
        triggers.extend(schedule.after_ms.map(|ms| format!("after {}", duration_text(ms))));
        for filter in schedule.on.iter().flat_map(|on| &on.filters) {
            let text = |name: &str| {
                let (_, value) = filter.attributes.iter().find(|(attribute, _)| attribute == name)?;
                Some(value.literal()?.as_str()?.to_owned())
            };
            let named = [text("type"), text("subject")].into_iter().flatten();
            triggers.push(format!("on {}", named.collect::<Vec<_>>().join(" ")));
        }
        triggers
    }

    /// Checks the operations of its tasks in the documents of the app.
    ///
    /// # Errors
    /// A document or an operation is missing, or the operation cannot be used.
    pub(super) fn check_documents(&self) -> Result<(), WorkflowError> {
        for node in &self.program.nodes {
            let (resource, operation) = match &node.kind {
                Kind::OpenApi(call) => (&call.document, None),
                Kind::Publish(Publish { channel: Channel::Operation(resource, operation), .. })
                | Kind::Listen(Listen { operation: Some((resource, operation)), .. }) => {
                    (resource, Some(operation))
                }
                _ => continue,
            };
            let Resource { place: ResourcePlace::File(file), .. } = resource else { continue };
            let (name, task) = (self.program.name.clone(), node.path.clone());
            let Some(document) = self.documents.get(file) else {
                return Err(WorkflowError::MissingDocument { name, file: file.clone(), task });
            };
            let mut address = None;
            let checked = match (&node.kind, operation) {
                (Kind::OpenApi(call), _) => document.operation(&call.operation).map(drop),
                (_, Some(operation)) => document.address(operation).map(|found| address = Some(found)),
                (_, None) => Ok(()),
            };
            let (name, task) = match checked {
                Ok(()) => (name, task),
                Err(error) => {
                    return Err(WorkflowError::Operation { name, file: file.clone(), task, error });
                }
            };
            // Of most tasks only an instance knows the input.
            let input = node.data.from.as_ref().and_then(Template::literal);
            if let (Some(address), Some(input)) = (&address, input)
                && let Err(error) = address.filled(|name| input.get(name).cloned().unwrap_or_default())
            {
                return Err(WorkflowError::Parameter { name, task, error });
            }
        }
        Ok(())
    }

    /// True if it may call function or workflow `name` of `app`.
    pub fn may_call(&self, name: &str, app: &str) -> bool {
        *self.app == *app || self.permissions.allows_call(name)
    }
}

/// Compiles the workflows of an app; `texts` by file. The result is sorted by name.
pub(super) fn compile_all(
    manifest: &Manifest,
    texts: &BTreeMap<String, String>,
) -> Result<Vec<Arc<LiveWorkflow>>, WorkflowError> {
    let app: Arc<str> = manifest.app.as_str().into();
    let mut found: BTreeMap<String, Vec<(String, LiveWorkflow)>> = BTreeMap::new();
    let (described, texts): (Vec<_>, Vec<_>) =
        texts.iter().partition(|(_, text)| ApiDocument::is_one(text));
    let mut documents = Documents::new();
    for (file, text) in described {
        let document = ApiDocument::read(text)
            .map_err(|error| WorkflowError::Document { file: file.clone(), error })?;
        documents.insert(file.clone(), document);
    }
    let documents = Arc::new(documents);
    for (file, text) in texts {
        let mut workflow = LiveWorkflow::compile(&app, file, text, Permissions::default())?;
        let (name, file) = (workflow.name.to_string(), file.clone());
        if !is_name(&name) || name == "files" {
            return Err(WorkflowError::Name { file, name });
        }
        if manifest.functions.contains_key(&name) {
            return Err(WorkflowError::IsFunction { file, name });
        }
        workflow.documents = documents.clone();
        workflow.set_permissions(manifest.workflows.permissions.get(&name).cloned().unwrap_or_default());
        found.entry(name).or_default().push((file, workflow));
    }
    if let Some(name) = manifest.workflows.permissions.keys().find(|name| !found.contains_key(*name)) {
        return Err(WorkflowError::Unknown { name: name.clone() });
    }
    let mut all = Vec::new();
    for (name, versions) in found {
        let (mut latest, older) = by_version(&name, versions)?;
        if let Some(order) = manifest.workflows.order.get(&name) {
            latest.set_order(order)?;
        }
        all.push(Arc::new(latest));
        all.extend(older.into_iter().map(Arc::new));
    }
    Ok(all)
}

/// The name of a workflow in a version that is not the latest.
pub(super) fn versioned_name(name: &str, version: &str) -> String {
    format!("{name}:{version}")
}

/// The latest version of a workflow, and the others. Only the latest is started by its schedule, and called by its name alone.
fn by_version(
    name: &str,
    versions: Vec<(String, LiveWorkflow)>,
) -> Result<(LiveWorkflow, Vec<LiveWorkflow>), WorkflowError> {
    let has_several = versions.len() > 1;
    let mut sorted: BTreeMap<semver::Version, (String, LiveWorkflow)> = BTreeMap::new();
    for (file, workflow) in versions {
        let version = match semver::Version::parse(&workflow.program.version) {
            Ok(version) => version,
            Err(_) if !has_several => return Ok((workflow, Vec::new())),
            Err(error) => {
                let (name, version) = (name.to_owned(), workflow.program.version.clone());
                return Err(WorkflowError::Version { file, name, version, reason: error.to_string() });
            }
        };
        if let Some((other, _)) = sorted.get(&version) {
            return Err(WorkflowError::Twice { file, name: name.to_owned(), other: other.clone() });
        }
        sorted.insert(version, (file, workflow));
    }
    let mut older: Vec<LiveWorkflow> = sorted.into_values().map(|(_, workflow)| workflow).collect();
    let Some(latest) = older.pop() else { return Err(WorkflowError::Unknown { name: name.to_owned() }) };
    for workflow in &mut older {
        workflow.name = versioned_name(name, &workflow.program.version).into();
        if let Some(program) = Arc::get_mut(&mut workflow.program) {
            program.schedule = None;
        }
        workflow.needs_lane = false;
    }
    Ok((latest, older))
}

/// True if a workflow starts when several events together match a rule.
pub fn has_rule(program: &Program) -> bool {
    let Some(schedule) = &program.schedule else { return false };
    let several = schedule.on.as_ref().is_some_and(|on| on.mode == Mode::All && on.filters.len() > 1);
    schedule.rule.is_some() || several
}

/// True if the start events of a workflow are evaluated in a lane: expressions that need jaq may take long, and rules have
/// state.
fn needs_lane(program: &Program) -> bool {
    let filters =
        program.schedule.iter().filter_map(|schedule| schedule.on.as_ref()).flat_map(|on| &on.filters);
    has_rule(program) || filters.into_iter().any(|filter| !filter.is_native())
}

fn duration_text(ms: u64) -> String {
    humantime::format_duration(std::time::Duration::from_millis(ms)).to_string()
}
