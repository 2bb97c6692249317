mod fields;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, SystemTime};

use log::Level;
use serde::Serialize;

use crate::context::{Context, Invocation, PublishOptions};
use crate::object::{Change, FieldType, FieldValue, Read};
use crate::{Fetched, HostError, Reply, Request};

use self::fields::Field;

/// A node in memory, for unit tests of functions with plain `cargo test`.
///
/// It permits everything, has no limits, writes the log to standard error and keeps what functions do
/// even if they fail. Its clones are the same node.
///
/// ```
/// use edgefaas::prelude::*;
/// use edgefaas::{DirectCall, TestNode, Trigger};
///
/// fn greet(event: Event, context: Context) -> Result<String, Error> {
///     context.object("guests").counter("seen").add(1)?;
///     let greeting: String = context.config("greeting")?.unwrap_or("Hello".into());
///     Ok(format!("{greeting}, {}", event.text()?))
/// }
///
/// let node = TestNode::new().config("greeting", "Moin");
/// let event = Event::new(Trigger::Call(DirectCall::default()), "Ada");
/// assert_eq!(greet(event, node.context())?, "Moin, Ada");
/// assert_eq!(node.context().object("guests").counter("seen").value()?, 1);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Default)]
pub struct TestNode {
    state: Rc<RefCell<State>>,
}

/// A message that a function published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The topic.
    pub topic: String,
    /// The payload.
    pub payload: Vec<u8>,
    /// Everything else.
    pub options: PublishOptions,
}

type Callee = Rc<dyn Fn(&[u8]) -> Result<Reply, HostError>>;
type Server = Rc<dyn Fn(&Request) -> Result<Fetched, HostError>>;

#[derive(Default)]
struct State {
    config: BTreeMap<String, String>,
    secrets: BTreeMap<String, String>,
    assets: BTreeMap<String, &'static [u8]>,
    functions: BTreeMap<String, Callee>,
    servers: BTreeMap<String, Server>,
    fields: BTreeMap<(String, String), Field>,
    published: Vec<Published>,
}

impl TestNode {
    /// A node without configuration, functions and state.
    pub fn new() -> Self {
        Self::default()
    }

    /// The node with a `config` value. Panics if it can't be made JSON.
    pub fn config(self, key: &str, value: impl Serialize) -> Self {
        let json = serde_json::to_string(&value).expect("a config value can be made JSON");
        self.state.borrow_mut().config.insert(key.to_owned(), json);
        self
    }

    /// The node with a secret.
    pub fn secret(self, name: &str, value: &str) -> Self {
        self.state.borrow_mut().secrets.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The node with a file of the app. It stays in memory until the tests end.
    pub fn asset(self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        let content: &'static [u8] = content.into().leak();
        self.state.borrow_mut().assets.insert(name.to_owned(), content);
        self
    }

    /// The node with another function, to be called.
    pub fn function(
        self,
        name: &str,
        function: impl Fn(&[u8]) -> Result<Reply, HostError> + 'static,
    ) -> Self {
        self.state.borrow_mut().functions.insert(name.to_owned(), Rc::new(function));
        self
    }

    /// The node with another server: `origin` is its scheme, host and, where it needs one, port.
    ///
    /// ```
    /// use edgefaas::{Fetched, Request, TestNode};
    ///
    /// let node = TestNode::new().server("https://api.example.com", |request| {
    ///     assert_eq!(request.url, "https://api.example.com/north");
    ///     Ok(Fetched { status: 200, body: b"24.0".into(), ..Fetched::default() })
    /// });
    /// let answer = node.context().fetch(Request::get("https://api.example.com/north")).wait()?;
    /// assert_eq!(answer.json::<f64>()?, 24.0);
    /// # Ok::<(), edgefaas::Error>(())
    /// ```
    pub fn server(
        self,
        origin: &str,
        server: impl Fn(&Request) -> Result<Fetched, HostError> + 'static,
    ) -> Self {
        self.state.borrow_mut().servers.insert(origin.to_owned(), Rc::new(server));
        self
    }

    /// The context of a new invocation of the function `test`, with 30 s to its deadline.
    pub fn context(&self) -> Context {
        let invocation = Invocation {
            id: "test".to_owned(),
            function: "test".to_owned(),
            deadline: SystemTime::now() + Duration::from_secs(30),
        };
        Context { host: Host { node: self.clone() }, invocation }
    }

    /// What was published, in order.
    pub fn published(&self) -> Vec<Published> {
        self.state.borrow().published.clone()
    }

    /// Runs the future of an async function to its end. Panics if it waits for nothing.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        crate::executor::block_on(future).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl fmt::Debug for TestNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestNode").finish_non_exhaustive()
    }
}

/// A [`TestNode`] seen from inside a function.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    node: TestNode,
}

impl Host {
    pub fn log(&self, level: Level, message: &str) {
        eprintln!("{level} {message}");
    }

    pub fn config(&self, key: &str) -> Option<String> {
        self.node.state.borrow().config.get(key).cloned()
    }

    pub fn asset(&self, name: &str) -> Option<&'static [u8]> {
        self.node.state.borrow().assets.get(name).copied()
    }

    pub fn secret(&self, name: &str) -> Option<String> {
        self.node.state.borrow().secrets.get(name).cloned()
    }

    pub fn publish(&self, topic: &str, payload: &[u8], options: &PublishOptions) -> Result<(), HostError> {
        if topic.is_empty() || topic.contains(['+', '#', '\0']) {
            return Err(HostError::Invalid(format!("topic `{topic}` can't be published to")));
        }
        self.node.state.borrow_mut().published.push(Published {
            topic: topic.to_owned(),
            payload: payload.to_owned(),
            options: options.clone(),
        });
        Ok(())
    }

    pub fn call(&self, function: &str, data: &[u8]) -> Result<Call, HostError> {
        let callee = self.node.state.borrow().functions.get(function).cloned();
        let callee = callee.ok_or_else(|| HostError::NotFound(format!("function `{function}`")))?;
        Ok(Call { answer: Some(callee(data)), polled: false })
    }

    pub fn fetch(&self, request: Request) -> Result<Fetch, HostError> {
        let (scheme, rest) = request.url.split_once("://").unwrap_or_default();
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let server = self.node.state.borrow().servers.get(&format!("{scheme}://{authority}")).cloned();
        let server = server.ok_or_else(|| HostError::Failed(format!("nobody answers {}", request.url)))?;
        Ok(Fetch { answer: Some(server(&request)), polled: false })
    }

    pub fn counter_add(&self, object: &str, field: &str, amount: i64) -> Result<(), HostError> {
        self.object_change(object, field, &[], Change::CounterAdd(amount))
    }

    pub fn counter_value(&self, object: &str, field: &str) -> Result<i64, HostError> {
        match self.object_read(object, field, &[], Read::Value(FieldType::Counter))? {
            FieldValue::Integer(value) => Ok(value),
            other => unreachable!("the value of a counter is no {other:?}"),
        }
    }

    pub fn register_set(&self, object: &str, field: &str, value: &[u8]) -> Result<(), HostError> {
        self.object_change(object, field, &[], Change::RegisterSet(value))
    }

    pub fn register_get(&self, object: &str, field: &str) -> Result<Option<Vec<u8>>, HostError> {
        match self.object_read(object, field, &[], Read::Value(FieldType::Register))? {
            FieldValue::Register(value) => Ok(value),
            other => unreachable!("the value of a register is no {other:?}"),
        }
    }

    pub fn object_change(
        &self,
        object: &str,
        field: &str,
        path: &[String],
        change: Change<'_>,
    ) -> Result<(), HostError> {
        let fields = &mut self.node.state.borrow_mut().fields;
        let key = (object.to_owned(), field.to_owned());
        let changed = fields::change(fields.get(&key), field, path, change)?;
        fields.insert(key, changed);
        Ok(())
    }

    pub fn object_read(
        &self,
        object: &str,
        field: &str,
        path: &[String],
        read: Read<'_>,
    ) -> Result<FieldValue, HostError> {
        let fields = &self.node.state.borrow().fields;
        fields::read(fields.get(&(object.to_owned(), field.to_owned())), field, path, read)
    }

    pub fn object_delete(&self, object: &str, field: Option<&str>) -> Result<(), HostError> {
        let fields = &mut self.node.state.borrow_mut().fields;
        fields.retain(|(owner, name), _| owner != object || field.is_some_and(|field| field != name));
        Ok(())
    }
}

/// A call under way.
pub(crate) type Call = Pending<Reply>;
/// A request under way.
pub(crate) type Fetch = Pending<Fetched>;

/// A call that takes time on a real node. Here it is answered when it is polled for the second time.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    answer: Option<Result<T, HostError>>,
    polled: bool,
}

impl<T> Pending<T> {
    pub fn poll(&mut self, waker: &Waker) -> Poll<Result<T, HostError>> {
        if !std::mem::replace(&mut self.polled, true) {
            waker.wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.answer.take().expect("it is polled after its answer"))
    }

    pub fn wait(self) -> Result<T, HostError> {
        self.answer.expect("it is waited for after its answer")
    }
}

/// Nothing outside a future wakes it here.
pub(crate) fn wait_any() -> bool {
    false
}
