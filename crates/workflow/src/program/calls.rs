//! Compiles `call` and `run` tasks.

use std::sync::Arc;

use super::compile::Compiler;
use super::tasks::{escape, settled};
use super::{Block, Call, FunctionCall, Http, HttpOutput, Kind, RunScript, RunWorkflow};
use crate::document::{Key, Located};

/// The version of `run: workflow` that is not a number.
const LATEST: &str = "latest";
/// The remedy for functions of catalogs.
const NO_CATALOG: &str = "nothing is fetched from a catalog: write the function into `use.functions`, or deploy a function and \
                          call it by its name";
/// Maximum length of a script, in bytes. Longer code must be a function.
const MAX_SCRIPT_BYTES: usize = 256 << 10;

impl Compiler {
    pub(super) fn call(
        &mut self,
        value: &Located,
        task: &Located,
        path: &str,
        depth: usize,
    ) -> Option<Kind> {
        let name = self.reader.text(value, "`call`")?;
        let with = task.get("with");
        let unsupported =
            |what: &str, instead: &str| (format!("`call: {what}` is not supported"), instead.to_owned());
        let (message, help) = match name.as_str() {
            "http" => return self.http(value, with).map(Kind::Http),
            "asyncapi" => return self.asyncapi(value, with, path, depth),
            "openapi" => return self.openapi(value, with).map(Kind::OpenApi),
            "grpc" => unsupported("grpc", "call a function that speaks gRPC, or `call: http`"),
            "a2a" | "mcp" => unsupported(&name, "call a function that speaks it"),
            _ => match self.uses.functions.get(&name).cloned() {
                Some(function) => {
                    return self.used_function(&name, value, &function, with, depth).map(Kind::Function);
                }
                None if name.contains('@') => unsupported(&name, NO_CATALOG),
                None => {
                    if name.contains(['/', ':']) {
                        let message = format!("`call: {name}` is not supported");
                        self.reader.deploy_problems.add_with_help(value.place, message, NO_CATALOG);
                    }
                    let with = with.map(|with| self.reader.template(with, "`with`"));
                    return Some(Kind::Call(Call { function: name, with: settled(with)? }));
                }
            },
        };
        self.reader.problems.add_with_help(value.place, message, help);
        None
    }

    /// A call of a function in `use.functions`: a task of its own, which sees its arguments and none of the variables around the
    /// call.
    fn used_function(
        &mut self,
        name: &str,
        value: &Located,
        function: &Located,
        with: Option<&Located>,
        depth: usize,
    ) -> Option<FunctionCall> {
        let with = with.map(|with| self.reader.template(with, "`with`"));
        if self.open_functions.iter().any(|open| open == name) {
            let message = format!("function `{name}` of `use.functions` calls itself");
            self.reader.problems.add_with_help(value.place, message, "let it call a function of the node");
            return None;
        }
        let scope = std::mem::take(&mut self.reader.scope);
        self.open_functions.push(name.to_owned());
        let key = Key { place: function.place, text: name.to_owned() };
        let path = format!("/use/functions/{}", escape(name));
        let task = self.task(&key, function, &path, &[], depth + 1);
        self.open_functions.pop();
        self.reader.scope = scope;
        let block = Block { tasks: vec![task?] };
        Some(FunctionCall { name: name.to_owned(), with: settled(with)?, block })
    }

    fn http(&mut self, value: &Located, with: Option<&Located>) -> Option<Http> {
        let Some(with) = with else {
            self.reader.problems.add(value.place, "`call: http` needs `with: {method, endpoint}`");
            return None;
        };
        let known = ["method", "endpoint", "headers", "query", "body", "output", "redirect"];
        self.reader.check_keys(with, "`with`", &known);
        let method = self.reader.required(with, "method", "`with`");
        let method = method.and_then(|method| {
            let name = self.reader.text(method, "`method`")?.to_ascii_uppercase();
            let token = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            if !token {
                self.reader.problems.add(method.place, format!("`{name}` is not a method"));
            }
            Some(name)
        });
        let endpoint = self.reader.required(with, "endpoint", "`with`")?;
        let (uri, authentication) = match endpoint.is_object() {
            false => (endpoint, None),
            true => {
                self.reader.check_keys(endpoint, "`endpoint`", &["uri", "authentication"]);
                let authentication = endpoint.get("authentication");
                let authentication = authentication.map(|policy| self.authentication(policy));
                (self.reader.required(endpoint, "uri", "`endpoint`")?, authentication)
            }
        };
        let uri_template = self.reader.template(uri, "`endpoint`")?;
        if let Some(literal) = uri_template.literal() {
            let text = literal.as_str().unwrap_or_default().replace(['{', '}'], "");
            let fits = url::Url::parse(&text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
            if !fits {
                self.reader.problems.add(uri.place, "the endpoint is not an http or https URL");
            }
        }
        let output = self.http_output(with)?;
        let mut part =
            |key: &str| with.get(key).map(|value| self.reader.template(value, &format!("`{key}`")));
        let (headers, query, body) = (part("headers"), part("query"), part("body"));
        Some(Http {
            method: method?,
            endpoint: uri_template,
            headers: settled(headers)?,
            query: settled(query)?,
            body: settled(body)?,
            authentication: settled(authentication)?,
            output,
            redirect: self.reader.boolean(with.get("redirect"), "`redirect`", false),
        })
    }

    /// `output` of a call over HTTP.
    pub(super) fn http_output(&mut self, with: &Located) -> Option<HttpOutput> {
        match with.get("output").map(|output| (output, output.text())) {
            None | Some((_, Some("content"))) => Some(HttpOutput::Content),
            Some((_, Some("raw"))) => Some(HttpOutput::Raw),
            Some((_, Some("response"))) => Some(HttpOutput::Response),
            Some((output, _)) => {
                self.reader.problems.add(output.place, "`output` is raw, content or response");
                None
            }
        }
    }

    pub(super) fn run(&mut self, value: &Located) -> Option<Kind> {
        let value = self.reader.object(value, "`run`")?;
        self.reader.check_keys(
            value,
            "`run`",
            &["workflow", "script", "container", "shell", "await", "return"],
        );
        let wait = self.reader.boolean(value.get("await"), "`await`", true);
        if let Some(what) = value.get("return")
            && what.text() != Some("stdout")
        {
            let help = "a script's output is what it returns, or what it wrote if it returns nothing";
            self.reader.problems.add_with_help(
                what.place,
                "`return` other than `stdout` is not supported",
                help,
            );
        }
        for (key, instead) in [
            ("container", "run a function: the node has no container runtime"),
            ("shell", "run a function: the node gives nobody a shell"),
        ] {
            if let Some(found) = value.get(key) {
                self.reader.problems.add_with_help(
                    found.place,
                    format!("`run: {key}` is not supported"),
                    instead,
                );
                return None;
            }
        }
        match (value.get("workflow"), value.get("script")) {
            (Some(workflow), None) => self.sub_workflow(workflow, wait),
            (None, Some(script)) => self.script(script, wait),
            _ => {
                self.reader.problems.add(value.place, "`run` is one of workflow and script");
                None
            }
        }
    }

    fn sub_workflow(&mut self, value: &Located, wait: bool) -> Option<Kind> {
        self.reader.check_keys(value, "`workflow`", &["namespace", "name", "version", "input"]);
        let name = self.reader.required(value, "name", "`workflow`")?;
        let name = self.reader.text(name, "`name`")?;
        let namespace = value.get("namespace").map(|namespace| self.reader.text(namespace, "`namespace`"));
        // A version such as 1.0 may be written as a number.
        let version = value.get("version").map(Located::to_json);
        let version =
            version.map(|version| version.as_str().map_or_else(|| version.to_string(), str::to_owned));
        let version = version.filter(|version| version != LATEST);
        let input = value.get("input").map(|input| self.reader.template(input, "`input`"));
        let (namespace, input) = (settled(namespace)?, settled(input)?);
        Some(Kind::RunWorkflow(RunWorkflow { name, namespace, version, input, wait }))
    }

    fn script(&mut self, value: &Located, wait: bool) -> Option<Kind> {
        self.reader.check_keys(
            value,
            "`script`",
            &["language", "code", "source", "arguments", "environment", "stdin"],
        );
        if let Some(language) = self.reader.required(value, "language", "`script`")
            && !matches!(language.text(), Some("js" | "javascript"))
        {
            self.reader.problems.add(language.place, "scripts are in JavaScript: language: js");
        }
        for key in ["source", "stdin"] {
            if let Some(found) = value.get(key) {
                self.reader.problems.add_with_help(
                    found.place,
                    format!("`{key}` of a script is not supported"),
                    "give the text as `code` and what it needs as `arguments`",
                );
            }
        }
        let code = self.reader.required(value, "code", "`script`")?;
        let text = self.reader.text(code, "`code`")?;
        if text.len() > MAX_SCRIPT_BYTES {
            self.reader.problems.add(
                code.place,
                format!("the script has more than {MAX_SCRIPT_BYTES} bytes; make it a function"),
            );
            return None;
        }
        let arguments = value.get("arguments").map(|value| self.reader.template(value, "`arguments`"));
        let environment =
            value.get("environment").map(|value| self.reader.template(value, "`environment`"));
        let (arguments, environment) = (settled(arguments)?, settled(environment)?);
        Some(Kind::RunScript(RunScript { code: Arc::from(text), arguments, environment, wait }))
    }
}
