//! Compiles the text of a definition to a [`Program`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::reader::Reader;
use super::{
    Authentication, DEFAULT_STEPS, DataFlow, DurationSpec, Node, Program, Retry, Schedule, Scheme,
};
use crate::data::Data;
use crate::document::{DefinitionError, Located, Problems, read};
use crate::expression::{Mode, expression_text};
use crate::instance::{unsupported_client, unsupported_grant};

/// The kinds of authentication, as a definition names them.
const SCHEMES: [&str; 4] = ["basic", "bearer", "oauth2", "oidc"];
/// The keys of the policies of OAuth 2.
const OAUTH2_KEYS: [&str; 9] =
    ["authority", "endpoints", "grant", "client", "request", "scopes", "audiences", "username", "password"];

/// The minimum interval of `schedule.every` and `after`. A shorter interval would not let other instances run.
const LEAST_EVERY_MS: u64 = 10;

/// A definition that can be run, and its warnings.
#[derive(Debug)]
pub struct Compiled {
    /// The definition.
    pub program: Program,
    /// Warnings about parts that are valid but probably unintended.
    pub warnings: Option<DefinitionError>,
    /// Problems for which a deploy refuses the definition. One that an earlier version has stored may have them, and still runs.
    pub refusal: Option<DefinitionError>,
}

/// Compiles a definition that is about to be deployed: like [`compile`], and [`Compiled::refusal`] is an error.
///
/// # Errors
/// All problems of the definition, each with its line and column.
pub fn compile_for_deploy(text: &str, file: &str) -> Result<Compiled, DefinitionError> {
    let compiled = compile(text, file)?;
    match compiled.refusal {
        Some(refusal) => Err(refusal),
        None => Ok(compiled),
    }
}

/// Compiles a definition, YAML or JSON; `file` is what its errors call it.
///
/// # Errors
/// All problems of the definition, each with its line and column.
pub fn compile(text: &str, file: &str) -> Result<Compiled, DefinitionError> {
    let mut compiler = Compiler::default();
    let program = match read(text) {
        Ok(root) => compiler.document(&root),
        Err(error) => {
            compiler.reader.problems.add(error.place, error.fault.to_string());
            None
        }
    };
    let Compiler { reader, warnings, .. } = compiler;
    match (reader.problems.into_error(file, text), program) {
        (Some(error), _) => Err(error),
        (None, Some(program)) => Ok(Compiled {
            program,
            warnings: warnings.into_error(file, text),
            refusal: reader.deploy_problems.into_error(file, text),
        }),
        (None, None) => {
            let mut problems = Problems::default();
            problems.add(crate::document::Place { line: 1, column: 1 }, "this is not a workflow");
            Err(problems
                .into_error(file, text)
                .unwrap_or(DefinitionError { file: file.into(), problems: vec![] }))
        }
    }
}

/// The state of a compilation.
#[derive(Default)]
pub(super) struct Compiler {
    pub reader: Reader,
    pub warnings: Problems,
    pub nodes: Vec<Node>,
    pub uses: Uses,
    /// Functions of `use.functions` that are being compiled, each within the one before.
    pub open_functions: Vec<String>,
}

/// The named definitions in `use`.
#[derive(Default)]
pub(super) struct Uses {
    pub errors: BTreeMap<String, Located>,
    pub functions: BTreeMap<String, Located>,
    pub retries: BTreeMap<String, Named<Arc<Retry>>>,
    pub timeouts: BTreeMap<String, Named<DurationSpec>>,
    pub authentications: BTreeMap<String, Located>,
    pub secrets: Vec<String>,
}

/// A policy in `use`; `None` if it has problems, which are reported.
pub(super) struct Named<T> {
    pub policy: Option<T>,
    /// The secrets that its expressions name: each task that uses it reads them.
    pub secrets: BTreeSet<String>,
}

impl Compiler {
    fn document(&mut self, root: &Located) -> Option<Program> {
        let whole = root;
        let root = self.reader.object(root, "a workflow")?;
        self.reader.check_keys(
            root,
            "a workflow",
            &["document", "input", "output", "use", "timeout", "schedule", "evaluate", "do", "metadata"],
        );
        let document = self.reader.required(root, "document", "a workflow");
        let document = document.and_then(|document| self.reader.object(document, "`document`"))?;
        self.reader.check_keys(
            document,
            "`document`",
            &["dsl", "namespace", "name", "version", "title", "summary", "tags", "metadata"],
        );
        if let Some(dsl) = self.reader.required(document, "dsl", "`document`") {
            let version = dsl.to_json();
            let version = version.as_str().map_or_else(|| version.to_string(), str::to_owned);
            if version != "1.0" && !version.starts_with("1.0.") {
                let help = "this node runs version 1.0 of the DSL: dsl: '1.0.0'";
                self.reader.problems.add_with_help(dsl.place, format!("DSL {version} is not known"), help);
            }
        }
        let name = self.name(document, "name");
        let namespace = self.name(document, "namespace");
        let version = self.reader.required(document, "version", "`document`");
        let version = version.map(|version| version.to_json());
        let version = version.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        let title = document.get("title").or(document.get("summary")).and_then(|title| title.text());

        self.evaluate(root);
        if let Some(uses) = root.get("use") {
            self.uses(uses);
        }
        let (data, secrets_at_end) = self.workflow_data(root);
        let timeout = root.get("timeout").and_then(|timeout| self.timeout(timeout));
        let secrets_at_start = std::mem::take(&mut self.reader.secrets).into_iter().collect();
        let metadata = document.get("metadata");
        let schedule = root.get("schedule").and_then(|schedule| self.schedule(schedule, metadata));
        let settings = metadata.map(|metadata| self.settings(metadata, schedule.is_some()));
        let (durable, max_steps, max_instances) = settings.unwrap_or((false, DEFAULT_STEPS, None));

        let tasks = self.reader.required(root, "do", "a workflow")?;
        let root = self.block(tasks, "/do", 0);
        Some(Program {
            definition: Data::from_json(&whole.to_json()).unwrap_or_default(),
            namespace: namespace?,
            name: name?,
            version: version?,
            title: title.map(str::to_owned),
            durable,
            max_steps,
            max_instances,
            data,
            timeout,
            schedule,
            secrets_at_start,
            secrets_at_end,
            secrets: std::mem::take(&mut self.uses.secrets),
            nodes: std::mem::take(&mut self.nodes),
            root: root?,
        })
    }

    fn name(&mut self, document: &Located, key: &str) -> Option<String> {
        let value = self.reader.required(document, key, "`document`")?;
        let name = self.reader.text(value, &format!("`{key}`"))?;
        let valid = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
        if name.is_empty() || name.len() > 63 || !name.chars().all(valid) {
            let help = "names have up to 63 letters, digits, `-`, `_` and `.`";
            self.reader.problems.add_with_help(value.place, format!("`{name}` is not a valid {key}"), help);
            return None;
        }
        Some(name)
    }

    fn evaluate(&mut self, root: &Located) {
        let Some(evaluate) = root.get("evaluate") else { return };
        self.reader.check_keys(evaluate, "`evaluate`", &["language", "mode"]);
        if let Some(language) = evaluate.get("language")
            && language.text() != Some("jq")
        {
            self.reader
                .problems
                .add(language.place, "expressions are in jq; other languages are not supported");
        }
        match evaluate.get("mode").map(|mode| (mode, mode.text())) {
            None | Some((_, Some("strict"))) => {}
            Some((_, Some("loose"))) => self.reader.mode = Mode::Loose,
            Some((mode, _)) => self.reader.problems.add(mode.place, "`mode` is strict or loose"),
        }
    }

    /// The settings in `document.metadata`: durable, steps, instances. All other keys belong to the user.
    fn settings(&mut self, metadata: &Located, scheduled: bool) -> (bool, u64, Option<u64>) {
        let durable = self.reader.boolean(metadata.get("durable"), "`metadata.durable`", false);
        let steps = metadata.get("steps");
        let steps = steps.and_then(|steps| self.reader.number(steps, "`metadata.steps`", 1, 1_000_000_000));
        let instances = metadata.get("instances");
        let instances = instances
            .and_then(|instances| self.reader.number(instances, "`metadata.instances`", 1, 10_000_000));
        if let Some(events) = metadata.get("events")
            && !scheduled
        {
            let help = "`document.metadata.events` is a condition over the events of `schedule.on`";
            self.reader.problems.add_with_help(
                events.place,
                "there is no `schedule.on` it could be for",
                help,
            );
        }
        (durable, steps.unwrap_or(DEFAULT_STEPS), instances)
    }

    fn uses(&mut self, uses: &Located) {
        const KNOWN: [&str; 8] = [
            "authentications",
            "catalogs",
            "errors",
            "extensions",
            "functions",
            "retries",
            "secrets",
            "timeouts",
        ];
        self.reader.check_keys(uses, "`use`", &KNOWN);
        for (key, why) in [
            (
                "catalogs",
                "nothing is fetched from a catalog; write the functions into `use.functions`, or deploy them and call them by name",
            ),
            ("extensions", "tasks run as they are written"),
        ] {
            if let Some(found) = uses.get(key)
                && (!found.entries().is_empty() || found.items().is_some_and(|items| !items.is_empty()))
            {
                self.reader.problems.add_with_help(
                    found.place,
                    format!("`use.{key}` is not supported"),
                    why,
                );
            }
        }
        let named = |key: &str| -> BTreeMap<String, Located> {
            let entries = uses.get(key).map(Located::entries).unwrap_or_default();
            entries.iter().map(|(key, value)| (key.text.clone(), value.clone())).collect()
        };
        self.uses.errors = named("errors");
        self.uses.functions = named("functions");
        self.uses.authentications = named("authentications");
        for (name, value) in named("timeouts") {
            let policy = self.timeout(&value);
            let secrets = std::mem::take(&mut self.reader.secrets);
            self.uses.timeouts.insert(name, Named { policy, secrets });
        }
        for (name, value) in named("retries") {
            let policy = self.retry_policy(&value).map(Arc::new);
            let secrets = std::mem::take(&mut self.reader.secrets);
            self.uses.retries.insert(name, Named { policy, secrets });
        }
        if let Some(secrets) = uses.get("secrets") {
            match secrets.items() {
                Some(items) => {
                    let names = items.iter().filter_map(|item| self.reader.text(item, "a secret's name"));
                    self.uses.secrets = names.collect();
                }
                None => self.reader.problems.add(secrets.place, "`use.secrets` is a list of names"),
            }
        }
    }

    /// `input` and `output` of the workflow, and the secrets that `output` names.
    fn workflow_data(&mut self, root: &Located) -> (DataFlow, Vec<String>) {
        let mut data = DataFlow::default();
        let mut secrets_at_end = Vec::new();
        if let Some(input) = root.get("input") {
            self.reader.check_keys(input, "`input`", &["schema", "from"]);
            data.input_schema = input.get("schema").and_then(|schema| self.reader.schema(schema));
            data.from =
                input.get("from").and_then(|from| self.reader.expression_or_template(from, "`input.from`"));
        }
        if let Some(output) = root.get("output") {
            let of_input = std::mem::take(&mut self.reader.secrets);
            self.reader.check_keys(output, "`output`", &["schema", "as"]);
            data.output_schema = output.get("schema").and_then(|schema| self.reader.schema(schema));
            data.output =
                output.get("as").and_then(|of| self.reader.expression_or_template(of, "`output.as`"));
            secrets_at_end = std::mem::replace(&mut self.reader.secrets, of_input).into_iter().collect();
        }
        (data, secrets_at_end)
    }

    /// `timeout`: the name of one in `use.timeouts`, or `{after: duration}`.
    pub fn timeout(&mut self, value: &Located) -> Option<DurationSpec> {
        if let Some(name) = value.text() {
            return match self.uses.timeouts.get(name) {
                Some(Named { policy, secrets }) => {
                    self.reader.secrets.extend(secrets.iter().cloned());
                    policy.clone()
                }
                None => {
                    self.reader
                        .problems
                        .add(value.place, format!("there is no timeout `{name}` in `use.timeouts`"));
                    None
                }
            };
        }
        self.reader.check_keys(value, "`timeout`", &["after"]);
        let after = self.reader.required(value, "after", "`timeout`")?;
        self.reader.duration(after, "`timeout.after`")
    }

    fn schedule(&mut self, value: &Located, metadata: Option<&Located>) -> Option<Schedule> {
        let value = self.reader.object(value, "`schedule`")?;
        self.reader.check_keys(value, "`schedule`", &["every", "cron", "after", "on"]);
        let every_ms = value.get("every").and_then(|every| {
            let ms = self.reader.fixed_duration(every, "`schedule.every`")?;
            if ms < LEAST_EVERY_MS {
                let message = format!("`schedule.every` is at least {LEAST_EVERY_MS} ms");
                self.reader.problems.add(every.place, message);
            }
            Some(ms)
        });
        let after = value.get("after");
        let after_ms = after.and_then(|after| {
            let ms = self.reader.fixed_duration(after, "`schedule.after`")?;
            if ms < LEAST_EVERY_MS {
                let message = format!("`schedule.after` is at least {LEAST_EVERY_MS} ms");
                self.reader.problems.add(after.place, message);
            }
            Some(ms)
        });
        let cron = value.get("cron").and_then(|cron| {
            let text = self.reader.text(cron, "`schedule.cron`")?;
            let parser =
                croner::parser::CronParser::builder().seconds(croner::parser::Seconds::Optional).build();
            if let Err(error) = parser.parse(&text) {
                self.reader.problems.add(cron.place, format!("`{text}` is not a schedule: {error}"));
            }
            Some(text)
        });
        let on = value.get("on").and_then(|on| self.strategy(on, true));
        let rule = metadata.and_then(|metadata| metadata.get("events"));
        let rule = match (rule, &on) {
            (Some(rule), Some(on)) => self.rule(rule, on),
            _ => None,
        };
        if every_ms.is_none() && after_ms.is_none() && cron.is_none() && on.is_none() {
            self.reader.problems.add(value.place, "`schedule` has none of every, cron, after, on");
        }
        Some(Schedule { cron, every_ms, after_ms, on, rule })
    }

    /// An authentication policy, inline or by its name in `use.authentications`.
    pub fn authentication(&mut self, value: &Located) -> Option<Authentication> {
        let named = value.text().or_else(|| value.get("use").and_then(Located::text));
        let policy = match named {
            Some(name) => match self.uses.authentications.get(name) {
                Some(policy) => policy.clone(),
                None => {
                    let message = format!("there is no authentication `{name}` in `use.authentications`");
                    self.reader.problems.add(value.place, message);
                    return None;
                }
            },
            None => value.clone(),
        };
        let [(kind, properties)] = policy.entries() else {
            self.reader
                .problems
                .add(value.place, format!("an authentication is one of {}", SCHEMES.join(", ")));
            return None;
        };
        let scheme = match kind.text.as_str() {
            "basic" => Scheme::Basic,
            "bearer" => Scheme::Bearer,
            "oauth2" => Scheme::OAuth2,
            "oidc" => Scheme::OpenIdConnect,
            other => {
                let message = format!(
                    "authentication by `{other}` is not supported; there are {}",
                    SCHEMES.join(", ")
                );
                let help = "give the values by $secrets: bearer: {token: '${ $secrets.api }'}";
                self.reader.problems.add_with_help(value.place, message, help);
                return None;
            }
        };
        if let Some(secret) = properties.get("use") {
            self.reader.check_keys(properties, &format!("`{}`", kind.text), &["use"]);
            let name = self.reader.text(secret, "`use`")?;
            let policy = self.reader.secret_object(secret, &name)?;
            return Some(Authentication { scheme, policy });
        }
        self.check_policy(scheme, &kind.text, properties)?;
        let policy = self.reader.template(properties, &format!("`{}`", kind.text))?;
        Some(Authentication { scheme, policy })
    }

    /// Checks the keys of a policy, and the values that are no expressions.
    fn check_policy(&mut self, scheme: Scheme, name: &str, properties: &Located) -> Option<()> {
        let what = format!("`{name}`");
        let (known, needed): (&[&str], &[&str]) = match scheme {
            Scheme::Basic => (&["username", "password"], &["username", "password"]),
            Scheme::Bearer => (&["token"], &["token"]),
            Scheme::OAuth2 | Scheme::OpenIdConnect => (&OAUTH2_KEYS, &["authority", "grant"]),
        };
        self.reader.check_keys(properties, &what, known);
        for key in needed {
            self.reader.required(properties, key, &what)?;
        }
        if !matches!(scheme, Scheme::OAuth2 | Scheme::OpenIdConnect) {
            return Some(());
        }
        for (key, keys) in [
            ("endpoints", &["token", "revocation", "introspection"][..]),
            ("client", &["id", "secret", "authentication"]),
            ("request", &["encoding"]),
        ] {
            if let Some(value) = properties.get(key) {
                self.reader.check_keys(value, &format!("`{key}`"), keys);
            }
        }
        let is_expression =
            |value: &Located| value.text().is_some_and(|text| expression_text(text).is_some());
        let grant = properties.get("grant");
        let client = properties.get("client").and_then(|client| client.get("authentication"));
        for (value, allowed, message) in [
            (grant, &["client_credentials", "password"][..], unsupported_grant()),
            (client, &["client_secret_post", "client_secret_basic", "none"], unsupported_client()),
        ] {
            let Some(value) = value.filter(|value| !is_expression(value)) else { continue };
            if !value.text().is_some_and(|text| allowed.contains(&text)) {
                self.reader.problems.add(value.place, message);
            }
        }
        Some(())
    }

    /// A value's JSON, for keys that hold no expressions.
    pub fn plain(value: &Located) -> Value {
        value.to_json()
    }
}
