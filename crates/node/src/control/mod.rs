//! The control port: gRPC for the CLI, and metrics and health over plain HTTP.

mod auth;
mod connections;
mod convert;
mod dependencies;
mod deploy_warnings;
mod events;
mod http;
mod members;
mod objects;
mod rollouts;
mod service;
mod status_message;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::AUTHORIZATION;
use ::http::{Method, Request, Response, StatusCode};
use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use edgefaas_api::objects::objects_server::ObjectsServer;
use edgefaas_api::{Nonce, PROOF_HEADER};
use edgefaas_functions::problem::Problem;
use http_body_util::Either;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use self::auth::Guard;
use self::connections::ClientConnection;
use self::objects::ObjectsService;
use self::status_message::cut_message;
pub use auth::{TOKEN_FILE, admin_token};
pub use connections::MAX_CONNECTIONS;
pub use dependencies::{ControlParts, NodeFacts};
pub use rollouts::{ClusterCommands, PolicyChangeError};

use crate::access::FailedLogins;
use crate::tls::Tls;

/// Path prefix of the object calls.
const OBJECTS_PATH: &str = "/edgefaas.objects.v1.Objects/";
/// Path of the call that carries an app.
const DEPLOY_PATH: &str = "/edgefaas.control.v1.Control/Deploy";

/// Serves the control port, by TLS if configured, until `cancel` fires. Streams that are open then are cut off after
/// `grace`; changes that continue without their client, such as a deploy, get the same time again.
pub async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    parts: Arc<ControlParts>,
    cancel: CancellationToken,
    grace: Duration,
) {
    let tasks = TaskTracker::new();
    let routes = service::routes(parts.clone(), cancel.clone(), tasks.clone())
        .await
        .merge(http::routes(parts.clone()));
    let guard = Guard::new(&parts.token);
    let failed = FailedLogins::default();
    let token = parts.token.clone();
    let objects = objects::service(parts, cancel.clone(), tasks.clone());
    let deploying = Arc::new(tokio::sync::Semaphore::new(1));
    let services = Services { guard, token, failed, objects, routes, deploying };
    connections::serve(listener, tls, Arc::new(services), cancel, grace).await;
    tasks.close();
    if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
        tracing::warn!(left = tasks.len(), "changes over the control port were cut off");
    }
}

/// All services of the port, for authenticated clients.
struct Services {
    guard: Guard,
    /// The token, to prove its possession to a client that holds it too.
    token: String,
    failed: FailedLogins,
    /// Separate from the routes, whose routing costs as much as a small change of an object.
    objects: ObjectsServer<ObjectsService>,
    routes: Router,
    /// Has one permit, since only one deploy at a time is received and carried out.
    deploying: Arc<tokio::sync::Semaphore>,
}

impl Services {
    fn call(
        &self,
        request: Result<Request<Incoming>, Problem>,
        connection: &ClientConnection,
    ) -> impl Future<Output = Result<Response<Either<tonic::body::Body, Body>>, Infallible>> + Send + use<>
    {
        // Only the answer to an invalid token is delayed.
        let mut delay = None;
        let checked = match request {
            Ok(request) => match self.guard.check(&request, connection) {
                Ok(()) => Ok(request),
                Err(refusal) => match self.prove(&request, connection) {
                    Some(proof) => Err(Box::new(proof)),
                    None => {
                        let has_token = request.headers().contains_key(AUTHORIZATION);
                        delay = has_token.then(|| self.failed.failed(connection.address, ""));
                        Err(refusal)
                    }
                },
            },
            Err(problem) => Err(Box::new(auth::bad_request(&problem))),
        };
        let answer = match checked {
            Err(answer) => Answer::Ready(answer),
            Ok(request) if request.uri().path().starts_with(OBJECTS_PATH) => {
                Answer::Objects(self.objects.clone().call(request))
            }
            Ok(request) if request.uri().path() == DEPLOY_PATH => {
                let (mut routes, deploying) = (self.routes.clone(), self.deploying.clone());
                Answer::Routes(Box::pin(async move {
                    // The body is not read before the permit is taken.
                    let _permit = deploying.acquire_owned().await;
                    routes.call(request).await
                }))
            }
            Ok(request) => Answer::Routes(Box::pin(self.routes.clone().call(request))),
        };
        async move {
            match answer {
                Answer::Ready(answer) => {
                    if let Some(delay) = delay {
                        tokio::time::sleep(delay).await;
                    }
                    Ok(answer.map(Either::Right))
                }
                Answer::Objects(answer) => Ok(cut_message(answer.await?).map(Either::Left)),
                Answer::Routes(answer) => Ok(cut_message(answer.await?).map(Either::Right)),
            }
        }
    }

    /// The response to a proof request of an unauthenticated client.
    fn prove<B>(&self, request: &Request<B>, connection: &ClientConnection) -> Option<Response<Body>> {
        let is_proof_request =
            request.method() == Method::GET && !request.headers().contains_key(AUTHORIZATION);
        let at = connection.plain_at.filter(|_| is_proof_request)?;
        let nonce = Nonce::from_path(request.uri().path())?;
        let proof = edgefaas_api::proof_of_token(&self.token, nonce, at);
        Some((StatusCode::NO_CONTENT, [(PROOF_HEADER, proof)]).into_response())
    }
}

/// Source of the response to a request.
enum Answer {
    /// A refusal or a proof.
    Ready(Box<Response<Body>>),
    Objects(<ObjectsServer<ObjectsService> as Service<Request<Incoming>>>::Future),
    Routes(Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>),
}
