//! Operations of AsyncAPI documents: the topic of a channel, and whether this node's broker is its server.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ApiDocument, ApiDocumentError, ApiKind, suggestion};
use crate::data::kind_of;
use crate::instance::expand;

/// The protocols of this node's broker.
const PROTOCOLS: [&str; 4] = ["mqtt", "mqtt5", "mqtts", "secure-mqtt"];

/// An operation that a call names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AsyncOperation {
    /// Its name.
    pub name: String,
    /// The name of the server; the first that fits if it is not given.
    pub server: Option<String>,
    /// Values of the server's variables.
    pub variables: Map<String, Value>,
    /// The protocol of the server, if its name is not given.
    pub protocol: Option<String>,
}

/// The address of a channel: a topic, with `{name}` for parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The topic.
    pub address: String,
}

/// A parameter of an address whose value cannot be a part of a topic: the message would go to another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParameterError {
    /// There is no value, or an empty one.
    #[error("the address `{address}` needs `{name}`, which the task's input does not have")]
    Missing {
        /// The address.
        address: String,
        /// The parameter.
        name: String,
    },
    /// The value is a list or an object.
    #[error("the address `{address}` needs a text, a number or a boolean as `{name}`, not {found}")]
    NotScalar {
        /// The address.
        address: String,
        /// The parameter.
        name: String,
        /// The kind of the value.
        found: &'static str,
    },
}

impl Address {
    /// The topic, with the values of its parameters, percent-encoded.
    ///
    /// # Errors
    /// The first parameter whose value cannot be a part of a topic.
    pub fn filled(&self, value: impl Fn(&str) -> Value) -> Result<String, ParameterError> {
        let mut problem = None;
        let topic = expand(&self.address, |name| {
            let (address, name) = (|| self.address.clone(), name.to_owned());
            let (text, found) = match value(&name) {
                Value::Null => (String::new(), Some(ParameterError::Missing { address: address(), name })),
                Value::String(text) if text.is_empty() => {
                    (text, Some(ParameterError::Missing { address: address(), name }))
                }
                Value::String(text) => (text, None),
                value @ (Value::Array(_) | Value::Object(_)) => {
                    let found = kind_of(&value);
                    (String::new(), Some(ParameterError::NotScalar { address: address(), name, found }))
                }
                value => (value.to_string(), None),
            };
            problem = problem.take().or(found);
            text
        });
        problem.map_or(Ok(topic), Err)
    }
}

impl ApiDocument {
    /// The address of the channel of an operation.
    ///
    /// # Errors
    /// The document is not AsyncAPI, has no such operation, or its server is not the broker of this node.
    pub fn address(&self, operation: &AsyncOperation) -> Result<Address, ApiDocumentError> {
        let (name, servers) = match self.kind {
            ApiKind::AsyncApi2 => self.channel_of_2(&operation.name)?,
            ApiKind::AsyncApi3 => self.channel_of_3(&operation.name)?,
            _ => return Err(ApiDocumentError::OtherKind { wanted: "AsyncAPI" }),
        };
        self.check_server(operation, servers.as_deref())?;
        Ok(Address { address: name })
    }

    /// The channel of an operation, whose name is its address, and the servers that have it.
    fn channel_of_2(&self, id: &str) -> Result<(String, Option<Vec<String>>), ApiDocumentError> {
        let mut known = Vec::new();
        for (name, channel) in self.root.get("channels").and_then(Value::as_object).into_iter().flatten() {
            let channel = self.resolved(channel)?;
            for action in ["publish", "subscribe"] {
                let found = channel.get(action).and_then(|action| action.get("operationId")?.as_str());
                if found == Some(id) {
                    let servers = channel.get("servers").and_then(Value::as_array);
                    let text = |name: &Value| Some(name.as_str()?.to_owned());
                    return Ok((
                        name.clone(),
                        servers.map(|names| names.iter().filter_map(text).collect()),
                    ));
                }
                known.extend(found);
            }
        }
        let near = suggestion(id, known.into_iter());
        Err(ApiDocumentError::UnknownOperation { id: id.to_owned(), near })
    }

    fn channel_of_3(&self, id: &str) -> Result<(String, Option<Vec<String>>), ApiDocumentError> {
        let operations = self.root.get("operations").and_then(Value::as_object);
        let Some(operation) = operations.and_then(|operations| operations.get(id)) else {
            let known = operations.into_iter().flat_map(Map::keys).map(String::as_str);
            return Err(ApiDocumentError::UnknownOperation {
                id: id.to_owned(),
                near: suggestion(id, known),
            });
        };
        let reference = self.resolved(operation)?.get("channel").unwrap_or(&Value::Null);
        let channel = self.resolved(reference)?;
        let key = reference.get("$ref").and_then(Value::as_str).and_then(last_part);
        let address = channel.get("address").and_then(Value::as_str).map(str::to_owned).or(key);
        let address = address.ok_or_else(|| ApiDocumentError::Part {
            what: format!("operation `{id}`"),
            reason: "its channel has no address".to_owned(),
        })?;
        let servers = channel.get("servers").and_then(Value::as_array);
        let name = |server: &Value| server.get("$ref")?.as_str().and_then(last_part);
        Ok((address, servers.map(|servers| servers.iter().filter_map(name).collect())))
    }

    /// Checks that the server of an operation is the broker of this node. A document without servers does not name another one.
    fn check_server(
        &self,
        operation: &AsyncOperation,
        of_channel: Option<&[String]>,
    ) -> Result<(), ApiDocumentError> {
        let Some(servers) =
            self.root.get("servers").and_then(Value::as_object).filter(|all| !all.is_empty())
        else {
            return Ok(());
        };
        let protocol =
            |server: &Value| server.get("protocol").and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_wanted = |(name, server): &(&String, &Value)| match (&operation.server, &operation.protocol)
        {
            (Some(wanted), _) => *name == wanted,
            (None, Some(wanted)) => protocol(server) == *wanted,
            (None, None) => of_channel.is_none_or(|names| names.contains(name)),
        };
        let Some((name, server)) = servers.iter().find(is_wanted) else {
            let wanted = match (&operation.server, &operation.protocol) {
                (Some(name), _) => format!("`{name}`"),
                (None, Some(protocol)) => format!("with the protocol `{protocol}`"),
                (None, None) => "for the channel".to_owned(),
            };
            return Err(ApiDocumentError::UnknownServer {
                wanted,
                known: servers.keys().cloned().collect(),
            });
        };
        let server = self.resolved(server)?;
        let protocol = protocol(server);
        if !PROTOCOLS.contains(&protocol.as_str()) {
            return Err(ApiDocumentError::Protocol { server: name.clone(), protocol });
        }
        let text = |key: &str| server.get(key).and_then(Value::as_str);
        let mut host = text("host").or(text("url")).unwrap_or_default().to_owned();
        let variables = server.get("variables").and_then(Value::as_object).into_iter().flatten();
        for (variable, shape) in variables {
            let value = operation.variables.get(variable).or(shape.get("default"));
            let value = value.and_then(Value::as_str).unwrap_or_default();
            host = host.replace(&format!("{{{variable}}}"), value);
        }
        match is_this_machine(&host) {
            true => Ok(()),
            false => Err(ApiDocumentError::OtherBroker { server: name.clone(), host }),
        }
    }
}

/// True if a host, with or without scheme, port and path, is this machine.
fn is_this_machine(host: &str) -> bool {
    let with_scheme = if host.contains("://") { host.to_owned() } else { format!("mqtt://{host}") };
    let Ok(url) = url::Url::parse(&with_scheme) else { return false };
    let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn last_part(reference: &str) -> Option<String> {
    Some(reference.rsplit('/').next()?.replace("~1", "/").replace("~0", "~"))
}
