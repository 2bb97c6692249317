//! A gRPC client of objects, and a load of additions to a counter: every worker sends its next one when the last one is answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use edgefaas_api::objects::objects_client::ObjectsClient;
use edgefaas_api::objects::update_request::Operation;
use edgefaas_api::objects::{GetRequest, UpdateAllRequest, UpdateRequest};
use edgefaas_benches::samples::{Load, Samples, Window};
use serde_json::Value;
use tokio::runtime::Runtime;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::apps::{APP, FIELD};

/// How long replicas may take to become equal.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(2);
/// Updates that are sent as one.
const GROUP: usize = 1000;

/// Where objects are reached.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The control port.
    pub address: SocketAddr,
    /// What it asks for.
    pub token: String,
}

/// A connection.
pub type Client = ObjectsClient<InterceptedService<Channel, Bearer>>;

/// Adds the token to every request.
#[derive(Debug, Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// What a load of additions did.
pub struct Adds {
    /// In the window.
    pub load: Load,
    /// In all, inside of the window and outside.
    pub acknowledged: u64,
}

impl Endpoint {
    /// Connects.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        let channel = tonic::transport::Endpoint::new(format!("http://{}", self.address))?
            .tcp_nodelay(true)
            .connect()
            .await
            .with_context(|| format!("no connection to {}", self.address))?;
        let bearer = Bearer(format!("Bearer {}", self.token).parse()?);
        Ok(ObjectsClient::with_interceptor(channel, bearer))
    }
}

/// A runtime of one thread.
pub fn runtime() -> anyhow::Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Adds 1 to an object's counter, with as many additions under way as `workers`, spread over `connections` to each of the
/// endpoints. All of it runs on this thread.
pub fn add(
    endpoints: &[Endpoint],
    object: &str,
    workers: usize,
    connections: usize,
    length: Duration,
) -> anyhow::Result<Adds> {
    runtime()?.block_on(async {
        let mut clients = Vec::new();
        for _ in 0..connections {
            for endpoint in endpoints {
                clients.push(endpoint.connect().await?);
            }
        }
        let window = Window::after_warm_up(length);
        // No endpoint is left out.
        let workers = workers.max(endpoints.len());
        let running: Vec<_> = (0..workers)
            .map(|worker| {
                let client = clients[worker % clients.len()].clone();
                tokio::spawn(add_until_end(client, object.to_owned(), window))
            })
            .collect();
        let mut samples = Samples::default();
        for worker in running {
            samples.extend(worker.await??);
        }
        let acknowledged = samples.completed() as u64;
        Ok(Adds { load: Load::new(samples, window), acknowledged })
    })
}

async fn add_until_end(mut client: Client, object: String, window: Window) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    loop {
        let sent = Instant::now();
        if sent >= window.to {
            return Ok(samples);
        }
        client.update(update(&object, FIELD, Operation::CounterAdd(1))).await?;
        samples.add(sent, Instant::now(), window);
    }
}

/// An update of a field.
pub fn update(object: &str, field: &str, operation: Operation) -> UpdateRequest {
    UpdateRequest {
        app: APP.into(),
        object: object.into(),
        field: field.into(),
        path: Vec::new(),
        operation: Some(operation),
    }
}

/// Carries out updates, many of them as one.
pub async fn update_all(
    client: &mut Client,
    updates: impl IntoIterator<Item = UpdateRequest>,
) -> anyhow::Result<()> {
    let mut updates = updates.into_iter().peekable();
    while updates.peek().is_some() {
        let updates = updates.by_ref().take(GROUP).collect();
        client.update_all(UpdateAllRequest { updates }).await?;
    }
    Ok(())
}

/// The value of an object's counter; none if nobody has written to it.
pub async fn value(client: &mut Client, object: &str) -> anyhow::Result<Option<i64>> {
    let request =
        GetRequest { app: APP.into(), object: object.into(), field: FIELD.into(), path: Vec::new() };
    let fields = client.get(request).await?.into_inner().fields;
    let value = fields.first().map(|field| serde_json::from_str::<Value>(&field.json)).transpose()?;
    Ok(value.and_then(|value| value.as_i64()))
}

/// Waits until the counter has the value at every endpoint, and says for how long.
///
/// # Errors
/// One of them has another value after a minute: something was lost, or counted twice.
pub fn wait_until_equal(endpoints: &[Endpoint], object: &str, wanted: u64) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    runtime()?.block_on(async {
        for (number, endpoint) in endpoints.iter().enumerate() {
            let mut client = endpoint.connect().await?;
            loop {
                let value = value(&mut client, object).await?.unwrap_or(0);
                if u64::try_from(value) == Ok(wanted) {
                    break;
                }
                if begun.elapsed() > PATIENCE {
                    bail!(
                        "the nodes did not become equal: n{number} has {value} in `{object}`, and {wanted} additions were \
                         acknowledged {PATIENCE:?} ago"
                    );
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        Ok(begun.elapsed())
    })
}
