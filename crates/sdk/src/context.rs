use std::fmt::Display;
use std::time::{Duration, SystemTime};

use log::Level;
use serde::de::DeserializeOwned;

use crate::host::Host;
use crate::{HostError, IntoPayload, Object, PendingCall, PendingFetch, Request};

/// The run that an event is handled in, and what the function may do in it.
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
    /// MQTT 5: where an answer is expected.
    pub response_topic: Option<String>,
    /// MQTT 5: what to know the answer by.
    pub correlation_data: Option<Vec<u8>>,
    /// MQTT 5: names and values, in order.
    pub user_properties: Vec<(String, String)>,
}

/// A `config` value of the manifest is not what it was read as.
#[derive(Debug, thiserror::Error)]
#[error("config `{key}` is {value}, which is no {wanted}: {source}; change it in the manifest")]
pub struct ConfigError {
    /// The key.
    pub key: String,
    /// Its value as JSON.
    pub value: String,
    /// The Rust type that was wanted.
    pub wanted: &'static str,
    /// Why it does not fit.
    pub source: serde_json::Error,
}

/// Writes to the function's log. So do `println!`, and the macros of the `log` crate:
/// `log::info!("{count} readings")`.
#[derive(Debug, Clone)]
pub struct Log {
    host: Host,
}

impl Context {
    /// The id of this run; it is in the log, in traces and in the HTTP header `Invocation-Id`.
    pub fn invocation_id(&self) -> &str {
        &self.invocation.id
    }

    /// The function's name in the manifest.
    pub fn function(&self) -> &str {
        &self.invocation.function
    }

    /// When the node ends the run.
    pub fn deadline(&self) -> SystemTime {
        self.invocation.deadline
    }

    /// How long the run may still take; zero once the deadline has passed.
    pub fn time_left(&self) -> Duration {
        self.invocation.deadline.duration_since(SystemTime::now()).unwrap_or_default()
    }

    /// The function's log.
    pub fn log(&self) -> Log {
        Log { host: self.host.clone() }
    }

    /// A `config` value of the manifest; none if there is no such key.
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

    /// The value of a secret; none if the manifest does not name it or nobody has set it.
    pub fn secret(&self, name: &str) -> Option<String> {
        self.host.secret(name)
    }

    /// A file of the app that `assets` of the manifest names, such as a model or a table; none if there is no such file.
    ///
    /// It lies in the function's memory from the start, shared by all runs: nothing is read or copied, however large it
    /// is. `name` is its path in the app folder, with `/`. It begins at a multiple of 64 bytes.
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

    /// Publishes a message with QoS 0 when the run succeeds; if it fails, the message is not sent.
    ///
    /// Errors: `NotPermitted` if no `publish` permission covers the topic, `Invalid` for a topic with
    /// wildcards or a payload over the broker's limit, `Overloaded` if the run holds back too much.
    pub fn publish(&self, topic: &str, payload: impl IntoPayload) -> Result<(), HostError> {
        self.publish_with(topic, payload, &PublishOptions::default())
    }

    /// The same with options.
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
    /// Calls that are started before the first is waited for run side by side. Errors come with the
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
    /// Requests that are started before the first is waited for run side by side. Errors come with the answer:
    /// `NotPermitted` if no `http` permission names the server, `Invalid` for a URL that is none, `Overloaded` over the
    /// run's limit of calls, `Failed` without a connection or an answer.
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

    /// The function's own stateful object, for which it needs no permission. Others reach it as `@NAME`.
    pub fn own_object(&self) -> Object {
        self.object("")
    }

    /// A stateful object; it exists as soon as something is written to it. An empty name stands for the function's own.
    pub fn object(&self, name: impl Into<String>) -> Object {
        Object { host: self.host.clone(), name: name.into() }
    }
}

impl Log {
    /// A line that helps to follow the code.
    pub fn trace(&self, message: impl Display) {
        self.host.log(Level::Trace, &message.to_string());
    }

    /// A line for whoever works on the function.
    pub fn debug(&self, message: impl Display) {
        self.host.log(Level::Debug, &message.to_string());
    }

    /// A line for whoever runs it.
    pub fn info(&self, message: impl Display) {
        self.host.log(Level::Info, &message.to_string());
    }

    /// Something is odd.
    pub fn warn(&self, message: impl Display) {
        self.host.log(Level::Warn, &message.to_string());
    }

    /// Something went wrong.
    pub fn error(&self, message: impl Display) {
        self.host.log(Level::Error, &message.to_string());
    }
}
