use std::fmt::Display;
use std::time::{Duration, SystemTime};

use log::Level;
use serde::de::DeserializeOwned;

use crate::host::Host;
use crate::{HostError, IntoPayload, Object, PendingCall, PendingFetch, Request};

/// The invocation for an event, with the host calls of the function.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) host: Host,
    pub(crate) invocation: Invocation,
}

#[derive(Debug, Clone)]
pub(crate) struct Invocation {
    pub id: String,
    pub function: String,
    pub deadline: SystemTime,
}

/// How a message is published; the default is QoS 0, not retained, without MQTT 5 properties.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishOptions {
    /// Quality of service, 0 to 2.
    pub qos: u8,
    /// Whether the broker keeps it for later subscribers.
    pub retain: bool,
    /// MQTT 5: the payload's media type.
    pub content_type: Option<String>,
    /// MQTT 5: the topic for the answer.
    pub response_topic: Option<String>,
    /// MQTT 5: identifies the answer.
    pub correlation_data: Option<Vec<u8>>,
    /// MQTT 5: names and values, in order.
    pub user_properties: Vec<(String, String)>,
}

/// A node of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Node {
    /// Its name, which the header `Invocation-Node` has too.
    pub name: String,
    /// Its zone, if it is known.
    pub zone: Option<String>,
    /// Its labels.
    pub labels: Vec<String>,
}

/// A `config` value of the manifest has another type than the requested one.
#[derive(Debug, thiserror::Error)]
#[error("config `{key}` is {value}, which is not a {wanted}: {source}; change it in the manifest")]
pub struct ConfigError {
    /// The key.
    pub key: String,
    /// Its value as JSON.
    pub value: String,
    /// The requested Rust type.
    pub wanted: &'static str,
    /// The reason.
    pub source: serde_json::Error,
}

/// Writes to the function's log. So do `println!`, and the macros of the `log` crate:
/// `log::info!("{count} readings")`.
#[derive(Debug, Clone)]
pub struct Log {
    host: Host,
}

impl Context {
    /// The id of this invocation; it is in the log, in traces and in the HTTP header `Invocation-Id`.
    pub fn invocation_id(&self) -> &str {
        &self.invocation.id
    }

    /// The function's name in the manifest.
    pub fn function(&self) -> &str {
        &self.invocation.function
    }

    /// When the node ends the invocation.
    pub fn deadline(&self) -> SystemTime {
        self.invocation.deadline
    }

    /// The time until the deadline; zero after it.
    pub fn time_left(&self) -> Duration {
        self.invocation.deadline.duration_since(SystemTime::now()).unwrap_or_default()
    }

    /// The function's log.
    pub fn log(&self) -> Log {
        Log { host: self.host.clone() }
    }

    /// A `config` value of the manifest; `None` if there is no such key.
    ///
    /// ```
    /// # use edgefaas::prelude::*;
    /// # fn target(context: Context) -> Result<f64, Error> {
    /// let target: f64 = context.config("target_c")?.unwrap_or(24.0);
    /// # Ok(target)
    /// # }
    /// ```
    pub fn config<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.host.config(key) else { return Ok(None) };
        match serde_json::from_str(&value) {
            Ok(typed) => Ok(Some(typed)),
            Err(source) => {
                let wanted = std::any::type_name::<T>();
                Err(ConfigError { key: key.to_owned(), value, wanted, source })
            }
        }
    }

    /// The node that runs this invocation; `None` if it is in no cluster.
    ///
    /// ```
    /// # use edgefaas::prelude::*;
    /// # fn place(context: Context) -> String {
    /// context.node().and_then(|node| node.zone).unwrap_or_else(|| "somewhere".into())
    /// # }
    /// ```
    pub fn node(&self) -> Option<Node> {
        let value: serde_json::Value = serde_json::from_str(&self.host.config("$node")?).ok()?;
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        Some(Node {
            name: text(&value["name"])?,
            zone: text(&value["zone"]),
            labels: value["labels"].as_array().into_iter().flatten().filter_map(text).collect(),
        })
    }

    /// The value of a secret; `None` if the manifest does not name it or it is not set.
    pub fn secret(&self, name: &str) -> Option<String> {
        self.host.secret(name)
    }

    /// A file of the app that `assets` of the manifest names, such as a model or a table; `None` if there is no such file.
    ///
    /// It is in the function's memory from the start, shared by all isolates: the call reads and copies nothing, for any
    /// size. `name` is its path in the app folder, with `/`. It begins at a multiple of 64 bytes.
    ///
    /// ```
    /// # use edgefaas::prelude::*;
    /// # fn describe(context: Context) -> Result<usize, Error> {
    /// let model = context.asset("models/frost.bin").ok_or_else(|| Error::new("the model is missing"))?;
    /// # Ok(model.len())
    /// # }
    /// ```
    pub fn asset(&self, name: &str) -> Option<&'static [u8]> {
        self.host.asset(name)
    }

    /// Publishes a message with QoS 0 when the invocation succeeds; if it fails, the message is not sent.
    ///
    /// Errors: `NotPermitted` if no `publish` permission covers the topic, `Invalid` for a topic with
    /// wildcards or a payload over the broker's limit, `Overloaded` if the effects of the invocation are too large.
    pub fn publish(&self, topic: &str, payload: impl IntoPayload) -> Result<(), HostError> {
        self.publish_with(topic, payload, &PublishOptions::default())
    }

    /// As [`publish`](Self::publish), with options.
    ///
    /// ```
    /// # use edgefaas::prelude::*;
    /// # fn open(context: Context) -> Result<(), Error> {
    /// let retained = PublishOptions { retain: true, ..Default::default() };
    /// context.publish_with("greenhouse/north/vent", "open", &retained)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn publish_with(
        &self,
        topic: &str,
        payload: impl IntoPayload,
        options: &PublishOptions,
    ) -> Result<(), HostError> {
        self.host.publish(topic, &payload.into_payload()?, options)
    }

    /// Starts a call of another function; `.await` it or `.wait()` for it.
    ///
    /// Calls that are started before the first await run concurrently. Errors come with the
    /// answer: `NotPermitted`, `NotFound`, `Overloaded` if its queue is full, `Failed` with its message.
    ///
    /// ```
    /// # use edgefaas::prelude::*;
    /// # async fn both(context: Context) -> Result<f64, Error> {
    /// let north = context.call("average", Json("north"));
    /// let south = context.call("average", Json("south"));
    /// let sum = north.await?.json::<f64>()? + south.await?.json::<f64>()?;
    /// # Ok(sum)
    /// # }
    /// ```
    pub fn call(&self, function: &str, data: impl IntoPayload) -> PendingCall {
        PendingCall::start(&self.host, function, data.into_payload())
    }

    /// Sends a request to another server; `.await` it or `.wait()` for it. An answer of any status is an answer.
    ///
    /// Requests that are started before the first await run concurrently. Errors come with the answer:
    /// `NotPermitted` if no `http` permission names the server, `Invalid` for an invalid URL, `Overloaded` over the
    /// invocation's limit of calls, `Failed` without a connection or an answer.
    ///
    /// ```
    /// # use edgefaas::prelude::*;
    /// use edgefaas::Request;
    ///
    /// # async fn forecast(context: Context) -> Result<(f64, f64), Error> {
    /// let today = context.fetch(Request::get("https://weather.example.com/today"));
    /// let tomorrow = context.fetch(Request::get("https://weather.example.com/tomorrow"));
    /// let (today, tomorrow) = (today.await?.json()?, tomorrow.await?.json()?);
    /// # Ok((today, tomorrow))
    /// # }
    /// ```
    pub fn fetch(&self, request: Request) -> PendingFetch {
        PendingFetch::start(&self.host, request)
    }

    /// The function's own stateful object, for which it needs no permission. Other functions use it as `@NAME`.
    pub fn own_object(&self) -> Object {
        self.object("")
    }

    /// A stateful object; the first write creates it. An empty name stands for the function's own object.
    pub fn object(&self, name: impl Into<String>) -> Object {
        Object { host: self.host.clone(), name: name.into() }
    }
}

impl Log {
    /// Level trace: a step of the code.
    pub fn trace(&self, message: impl Display) {
        self.host.log(Level::Trace, &message.to_string());
    }

    /// Level debug: for the developer of the function.
    pub fn debug(&self, message: impl Display) {
        self.host.log(Level::Debug, &message.to_string());
    }

    /// Level info: for the operator.
    pub fn info(&self, message: impl Display) {
        self.host.log(Level::Info, &message.to_string());
    }

    /// Level warn: an unexpected state.
    pub fn warn(&self, message: impl Display) {
        self.host.log(Level::Warn, &message.to_string());
    }

    /// Level error: a failure.
    pub fn error(&self, message: impl Display) {
        self.host.log(Level::Error, &message.to_string());
    }
}
