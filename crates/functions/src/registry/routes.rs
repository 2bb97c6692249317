//! Routes of events to functions and workflows: an immutable table, replaced as a whole by every deploy.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use croner::Cron;
use edgefaas_broker::topic::TopicFilter;
use edgefaas_broker::{FilterTrie, QoS};
use edgefaas_manifest::{Classes, CorsOrigin, HttpAuth, Origin, Trigger, parse_cron};
use edgefaas_state::objects::WatchScope;
use edgefaas_workflow::instance::start_filter;
use edgefaas_workflow::program::RunWorkflow;

use super::app_records::Code;
use super::definition::versioned_name;
use super::interests::{Interest, Interests, Waiter};
use super::{LiveApp, LiveFunction, LiveWorkflow, near};

/// Conflicts between triggers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteConflict {
    /// Two functions have the same path and method.
    #[error("http trigger {method} {path} of function `{function}` is taken by function `{other}`")]
    Method {
        /// The method, or `*` for any.
        method: String,
        /// The path.
        path: String,
        /// The function with the trigger.
        function: String,
        /// The other function with the same trigger.
        other: String,
    },
    /// A path is ambiguous together with another one.
    #[error("http trigger {path} of function `{function}` cannot be mounted: {reason}")]
    Path {
        /// The path.
        path: String,
        /// The function with the trigger.
        function: String,
        /// The error of the router.
        reason: String,
    },
    /// A trigger is invalid although the manifest was accepted.
    #[error("trigger `{trigger}` of function `{function}` is not valid: {reason}")]
    Trigger {
        /// The trigger.
        trigger: String,
        /// The function with the trigger.
        function: String,
        /// The cause.
        reason: String,
    },
}

/// A task runs a workflow that is not deployed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWorkflow {
    /// No workflow has the name.
    #[error("there is no workflow `{name}`")]
    Name {
        /// The name.
        name: String,
    },
    /// The workflow does not have this version.
    #[error("workflow `{name}` is not deployed in version {version}; the latest is {latest}")]
    Version {
        /// The name.
        name: String,
        /// The version.
        version: String,
        /// The latest version that is deployed.
        latest: String,
    },
    /// The workflow is in another namespace.
    #[error("workflow `{name}` is in the namespace `{found}`, not in `{namespace}`")]
    Namespace {
        /// The name.
        name: String,
        /// The namespace.
        namespace: String,
        /// The namespace of the workflow.
        found: String,
    },
}

/// A mounted path with the functions that serve its methods.
#[derive(Clone, Default)]
pub struct HttpRoute {
    targets: Vec<HttpTarget>,
}

/// A function that serves methods of a path.
#[derive(Clone)]
pub struct HttpTarget {
    /// Empty for any method.
    methods: Vec<String>,
    /// The function.
    pub function: Arc<LiveFunction>,
    /// The authentication that a request needs.
    pub auth: Option<HttpAuth>,
    /// Origins whose pages may send requests.
    pub cors: Vec<CorsOrigin>,
}

impl HttpRoute {
    /// The target for a method.
    pub fn target(&self, method: &str) -> Option<&HttpTarget> {
        let named = self.targets.iter().find(|target| target.methods.iter().any(|name| name == method));
        named.or_else(|| self.targets.iter().find(|target| target.methods.is_empty()))
    }

    /// The served methods, for an `Allow` header.
    pub fn allowed(&self) -> String {
        self.targets
            .iter()
            .flat_map(|target| &target.methods)
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// An MQTT trigger.
pub struct MqttRoute {
    /// The function.
    pub function: Arc<LiveFunction>,
    /// True if subscribers do not get the message.
    pub consume: bool,
    /// Maximum QoS of the trigger.
    pub qos: QoS,
    /// True if messages of one topic are handled one after another.
    pub ordered: bool,
}

/// A cron trigger.
pub struct ScheduleRoute {
    /// The function.
    pub function: Arc<LiveFunction>,
    /// The schedule as text.
    pub schedule: String,
    /// The parsed schedule.
    pub cron: Cron,
}

/// An object trigger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRoute {
    /// The function.
    pub function: Arc<str>,
    /// The watched objects and fields.
    pub scope: WatchScope,
    /// Limits the trigger to changes of this node, or of other nodes.
    pub origin: Option<Origin>,
}

/// The routes of all deployed apps.
#[derive(Default)]
pub struct Routes {
    apps: BTreeMap<String, Arc<LiveApp>>,
    functions: HashMap<Arc<str>, Arc<LiveFunction>>,
    workflows: HashMap<Arc<str>, Arc<LiveWorkflow>>,
    starts: Interests,
    http: matchit::Router<HttpRoute>,
    mqtt: FilterTrie<MqttRoute>,
    schedules: Vec<ScheduleRoute>,
    object_changes: Vec<ObjectRoute>,
}

impl Routes {
    /// The routes of these apps.
    pub fn build(apps: BTreeMap<String, Arc<LiveApp>>) -> Result<Self, RouteConflict> {
        let mut routes = Self::default();
        let mut http: BTreeMap<String, HttpRoute> = BTreeMap::new();
        for function in apps.values().flat_map(|app| &app.functions) {
            routes.functions.insert(function.name.clone(), function.clone());
            for trigger in &function.spec.triggers {
                let invalid = |reason: String| RouteConflict::Trigger {
                    trigger: trigger.to_string(),
                    function: function.name.to_string(),
                    reason,
                };
                match trigger {
                    Trigger::Http { path, methods, auth, cors } => {
                        let route = http.entry(path.clone()).or_default();
                        let target = HttpTarget {
                            methods: methods.clone(),
                            function: function.clone(),
                            auth: *auth,
                            cors: cors.clone(),
                        };
                        add_target(route, path, target)?;
                    }
                    Trigger::Mqtt { filter, consume, qos, ordered, .. } => {
                        let filter = TopicFilter::new(filter.as_str())
                            .map_err(|error| invalid(error.to_string()))?;
                        let route = MqttRoute {
                            function: function.clone(),
                            consume: *consume,
                            qos: match qos {
                                0 => QoS::AtMostOnce,
                                1 => QoS::AtLeastOnce,
                                _ => QoS::ExactlyOnce,
                            },
                            ordered: *ordered,
                        };
                        routes.mqtt.insert(&filter, route);
                    }
                    // Nodes with the code run these.
                    Trigger::Cron { .. } | Trigger::Object { .. } if function.code == Code::Elsewhere => {}
                    Trigger::Cron { schedule } => {
                        let cron = parse_cron(schedule).map_err(|error| invalid(error.to_string()))?;
                        let (function, schedule) = (function.clone(), schedule.clone());
                        routes.schedules.push(ScheduleRoute { function, schedule, cron });
                    }
                    Trigger::Object { object, field, origin } => {
                        let (app, object, field) =
                            (function.app.to_string(), object.clone(), field.clone());
                        routes.object_changes.push(ObjectRoute {
                            function: function.name.clone(),
                            scope: WatchScope { app, object, field },
                            origin: *origin,
                        });
                    }
                }
            }
        }
        for (app, workflow) in
            apps.values().flat_map(|app| app.workflows.iter().map(move |workflow| (app, workflow)))
        {
            routes.workflows.insert(workflow.name.clone(), workflow.clone());
            if app.code == Code::Elsewhere {
                continue;
            }
            let on = workflow.program.schedule.as_ref().and_then(|schedule| schedule.on.as_ref());
            for (source, filter) in on.iter().flat_map(|on| &on.filters).enumerate() {
                if let Some(filter) = start_filter(filter) {
                    let waiter = Waiter::Start(workflow.name.clone());
                    routes.starts.add(Interest { waiter, source: source as u32, filter: Arc::new(filter) });
                }
            }
        }
        for (path, route) in http {
            let function =
                route.targets.first().map(|target| target.function.name.to_string()).unwrap_or_default();
            routes.http.insert(path.clone(), route).map_err(|error| RouteConflict::Path {
                path,
                function,
                reason: error.to_string(),
            })?;
        }
        routes.apps = apps;
        Ok(routes)
    }

    /// These routes with `app`, which replaces an app of the same name.
    pub fn with_app(&self, app: Arc<LiveApp>) -> Result<Self, RouteConflict> {
        let mut apps = self.apps.clone();
        apps.insert(app.name.to_string(), app);
        Self::build(apps)
    }

    /// These routes without an app.
    pub fn without_app(&self, name: &str) -> Self {
        let mut apps = self.apps.clone();
        apps.remove(name);
        // Removing routes cannot cause a conflict.
        Self::build(apps).unwrap_or_default()
    }

    /// An app by name.
    pub fn app(&self, name: &str) -> Option<&Arc<LiveApp>> {
        self.apps.get(name)
    }

    /// The object triggers.
    pub fn object_changes(&self) -> &[ObjectRoute] {
        &self.object_changes
    }

    /// The classes of objects of all apps.
    pub fn object_classes(&self) -> Classes {
        let mut classes = Classes::default();
        for app in self.apps.values() {
            classes.add(app.name.clone(), app.objects.clone());
        }
        classes
    }

    /// All apps, by name.
    pub fn apps(&self) -> impl Iterator<Item = &Arc<LiveApp>> {
        self.apps.values()
    }

    /// Whether this node runs an app.
    pub fn runs_here(&self, app: &str) -> bool {
        self.apps.get(app).is_some_and(|app| app.code == Code::Here)
    }

    /// A function by name.
    pub fn function(&self, name: &str) -> Option<&Arc<LiveFunction>> {
        self.functions.get(name)
    }

    /// The index of workflows that events start.
    pub fn starts(&self) -> &Interests {
        &self.starts
    }

    /// A workflow by name.
    pub fn workflow(&self, name: &str) -> Option<&Arc<LiveWorkflow>> {
        self.workflows.get(name)
    }

    /// A workflow by name, namespace and version.
    ///
    /// # Errors
    /// There is no such workflow.
    pub fn workflow_version(&self, run: &RunWorkflow) -> Result<&Arc<LiveWorkflow>, NoWorkflow> {
        let name = &run.name;
        let unknown = || NoWorkflow::Name { name: name.clone() };
        let latest = self.workflow(name).ok_or_else(unknown)?;
        let workflow = match &run.version {
            None => latest,
            Some(version) if *version == latest.program.version => latest,
            Some(version) => self.workflow(&versioned_name(name, version)).ok_or_else(|| {
                let latest = latest.program.version.clone();
                NoWorkflow::Version { name: name.clone(), version: version.clone(), latest }
            })?,
        };
        match run.namespace.as_ref().filter(|namespace| **namespace != workflow.program.namespace) {
            None => Ok(workflow),
            Some(namespace) => Err(NoWorkflow::Namespace {
                name: name.clone(),
                namespace: namespace.clone(),
                found: workflow.program.namespace.clone(),
            }),
        }
    }

    /// All workflows, in no defined order.
    pub fn workflows(&self) -> impl Iterator<Item = &Arc<LiveWorkflow>> {
        self.workflows.values()
    }

    /// Names of workflows that are similar to `name`.
    pub fn near_workflows(&self, name: &str) -> Vec<String> {
        near(name, self.workflows.keys().map(|name| &**name))
    }

    /// All functions, in no defined order.
    pub fn functions(&self) -> impl Iterator<Item = &Arc<LiveFunction>> {
        self.functions.values()
    }

    /// Names of functions that are similar to `name`.
    pub fn near_functions(&self, name: &str) -> Vec<String> {
        near(name, self.functions.keys().map(|name| &**name))
    }

    /// The HTTP route for a path.
    pub fn http(&self, path: &str) -> Option<&HttpRoute> {
        self.http.at(path).ok().map(|found| found.value)
    }

    /// Calls `visit` with the MQTT triggers that a topic matches.
    pub fn for_each_mqtt(&self, topic: &str, visit: impl FnMut(&MqttRoute)) {
        self.mqtt.for_each_match(topic, visit);
    }

    /// The cron triggers.
    pub fn schedules(&self) -> &[ScheduleRoute] {
        &self.schedules
    }

    /// The schedules, each as its app and its identification within that: those of cron triggers, and the names of workflows
    /// that have a schedule.
    pub fn schedule_ids(&self) -> impl Iterator<Item = (&str, String)> {
        let of_functions = self.schedules.iter().map(|route| {
            let function = &route.function;
            (&*function.app, function.schedule_id(&route.schedule))
        });
        let scheduled = self.workflows().filter(|workflow| workflow.program.schedule.is_some());
        of_functions.chain(scheduled.map(|workflow| (&*workflow.app, workflow.name.to_string())))
    }
}

fn add_target(route: &mut HttpRoute, path: &str, target: HttpTarget) -> Result<(), RouteConflict> {
    let taken = |method: &str, other: &LiveFunction| RouteConflict::Method {
        method: method.to_owned(),
        path: path.to_owned(),
        function: target.function.name.to_string(),
        other: other.name.to_string(),
    };
    for other in &route.targets {
        if target.methods.is_empty() && other.methods.is_empty() {
            return Err(taken("*", &other.function));
        }
        if let Some(method) = target.methods.iter().find(|method| other.methods.contains(method)) {
            return Err(taken(method, &other.function));
        }
    }
    route.targets.push(target);
    Ok(())
}
