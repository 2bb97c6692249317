//! The control port: gRPC for the CLI, gRPC-Web and pages for browsers, and metrics and health over plain HTTP.

mod auth;
mod caller;
mod connections;
mod convert;
mod dependencies;
mod deploy_warnings;
mod events;
mod history;
mod http;
mod invocations;
mod members;
mod messages;
mod objects;
mod revisions;
mod rollouts;
mod rpcs;
mod service;
mod status_codes;
mod status_message;
mod upload;
#[cfg(feature = "dashboard")]
mod web;
mod workflow_graph;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "dashboard")]
use ::http::header::CACHE_CONTROL;
use ::http::header::{AUTHORIZATION, SET_COOKIE, X_CONTENT_TYPE_OPTIONS};
use ::http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use edgefaas_api::objects::objects_server::ObjectsServer;
use edgefaas_api::{Nonce, PROOF_HEADER};
use edgefaas_functions::problem::Problem;
use http_body_util::{BodyExt, Either, Limited};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use self::auth::Guard;
#[cfg(feature = "dashboard")]
use self::caller::StreamLife;
use self::connections::ClientConnection;
use self::objects::ObjectsService;
use self::status_message::cut_message;
use self::upload::Upload;
#[cfg(feature = "dashboard")]
use self::web::BrowserRequest;
pub use auth::{TOKEN_FILE, admin_token};
pub use connections::MAX_CONNECTIONS;
pub use dependencies::{ControlParts, NodeFacts};
pub(crate) use deploy_warnings::unset_secrets;
pub use rollouts::{ClusterCommands, PolicyChangeError};

use crate::access::FailedLogins;
use crate::tls::Tls;

/// Path prefix of the object calls.
const OBJECTS_PATH: &str = "/edgefaas.objects.v1.Objects/";
/// Longest life of a stream of a request with a session.
#[cfg(feature = "dashboard")]
const STREAM_LIFE: Duration = Duration::from_secs(60);
/// Maximum body of a refused request that is read before the answer, and the time for it.
const REFUSED_BODY_BYTES: usize = 16 << 20;
const REFUSED_BODY_TIMEOUT: Duration = Duration::from_secs(1);
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
    #[cfg_attr(not(feature = "dashboard"), expect(unused_mut))]
    let mut routes = service::routes(parts.clone(), cancel.clone(), tasks.clone())
        .await
        .merge(http::routes(parts.clone()));
    #[cfg(feature = "dashboard")]
    let web = parts.dashboard.is_enabled.then(|| Arc::new(web::Web::new(&parts, tls.is_some())));
    #[cfg(feature = "dashboard")]
    if let Some(web) = &web {
        routes = routes.merge(web.routes());
    }
    let services = Services {
        guard: Guard::new(&parts.token),
        token: parts.token.clone(),
        failed: FailedLogins::default(),
        objects: objects::service(parts, cancel.clone(), tasks.clone()),
        routes,
        deploying: Arc::new(tokio::sync::Semaphore::new(1)),
        #[cfg(feature = "dashboard")]
        web,
    };
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
    /// Browsers; `None` if the configuration disables the dashboard.
    #[cfg(feature = "dashboard")]
    web: Option<Arc<web::Web>>,
}

/// A request that is answered without a service: a refusal or a proof.
struct Refused {
    response: Response<Body>,
    /// Only the answer to an invalid token is delayed.
    delay: Duration,
}

impl Services {
    fn call(
        &self,
        request: Result<Request<Incoming>, Problem>,
        connection: &ClientConnection,
    ) -> impl Future<Output = Result<Response<Either<tonic::body::Body, Body>>, Infallible>> + Send + use<>
    {
        let mut renewed = None;
        let answer = match request {
            Err(problem) => Answer::Refused(Refused::now(auth::bad_request(&problem)), None),
            Ok(mut request) => match self.admit(&mut request, connection) {
                Err(refused) => Answer::Refused(refused, unread(request)),
                Ok(cookie) => {
                    renewed = cookie;
                    self.answer(request)
                }
            },
        };
        // gRPC itself is nothing that a browser can ask for.
        let is_for_browsers = !matches!(answer, Answer::Objects(_));
        async move {
            let mut response = match answer {
                Answer::Refused(refused, body) => {
                    let Refused { response, delay } = *refused;
                    if let Some(body) = body {
                        drain(body).await;
                    }
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    response.map(Either::Right)
                }
                Answer::Objects(answer) => cut_message(answer.await?).map(Either::Left),
                Answer::Routes(answer) => cut_message(answer.await?).map(Either::Right),
                #[cfg(feature = "dashboard")]
                Answer::Web(answer) => {
                    let mut response = cut_message(answer.await?).map(Either::Left);
                    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                    response
                }
            };
            if let Some(cookie) = renewed {
                response.headers_mut().insert(SET_COOKIE, cookie);
            }
            if is_for_browsers {
                response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            }
            Ok(response)
        }
    }

    /// Authenticates a request, and notes its caller in it. Gives the cookie of a session that was renewed.
    fn admit(
        &self,
        request: &mut Request<Incoming>,
        connection: &ClientConnection,
    ) -> Result<Option<HeaderValue>, Box<Refused>> {
        let refusal = match self.guard.check(request, connection) {
            Ok(caller) => {
                if let Some(caller) = caller {
                    request.extensions_mut().insert(caller);
                }
                return Ok(None);
            }
            Err(refusal) => *refusal,
        };
        if let Some(proof) = self.prove(request, connection) {
            return Err(Refused::now(proof));
        }
        if request.headers().contains_key(AUTHORIZATION) {
            let delay = self.failed.failed(connection.address, "");
            return Err(Box::new(Refused { response: refusal, delay }));
        }
        #[cfg(feature = "dashboard")]
        if let Some(web) = &self.web {
            match web.check(request, connection) {
                Ok(BrowserRequest::Open) => {
                    request.extensions_mut().insert(web::ClientAddress(connection.address));
                    return Ok(None);
                }
                Ok(BrowserRequest::Authenticated(session)) => {
                    connection.mark_authenticated();
                    request.extensions_mut().insert(session.caller.clone());
                    let renewed = session.renewed.clone();
                    let web = web.clone();
                    let session_holds = Arc::new(move || web.still_holds(&session));
                    request.extensions_mut().insert(StreamLife { longest: STREAM_LIFE, session_holds });
                    return Ok(renewed);
                }
                Ok(BrowserRequest::Other) => {}
                Err(problem) => return Err(Refused::now(auth::forbidden(request.headers(), &problem))),
            }
        }
        Err(Refused::now(refusal))
    }

    /// Begins the answer to an authenticated request.
    fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        #[cfg(feature = "dashboard")]
        if self.web.is_some() && web::is_grpc_web(request.headers()) {
            if path == DEPLOY_PATH {
                let detail =
                    "Deploy carries an app, and takes gRPC over HTTP/2 only; deploy with `edgefaas deploy`";
                let refusal = auth::problem_response(&Problem::new(415, "gRPC only", detail));
                return Answer::Refused(Refused::now(refusal), unread(request));
            }
            return Answer::Web(match path.starts_with(OBJECTS_PATH) {
                true => Box::pin(web::translated(self.objects.clone(), request)),
                false => Box::pin(web::translated(self.routes.clone(), request)),
            });
        }
        if path.starts_with(OBJECTS_PATH) {
            return Answer::Objects(self.objects.clone().call(request));
        }
        let mut routes = self.routes.clone();
        if path == DEPLOY_PATH {
            let deploying = self.deploying.clone();
            return Answer::Routes(Box::pin(async move {
                // The body is not read before the permit is taken.
                let _permit = deploying.acquire_owned().await;
                routes.call(request.map(Upload::new)).await
            }));
        }
        Answer::Routes(Box::pin(routes.call(request)))
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

impl Refused {
    fn now(response: Response<Body>) -> Box<Self> {
        Box::new(Self { response, delay: Duration::ZERO })
    }
}

/// Source of the response to a request.
enum Answer {
    /// With the body to read first.
    Refused(Box<Refused>, Option<Incoming>),
    Objects(<ObjectsServer<ObjectsService> as Service<Request<Incoming>>>::Future),
    Routes(Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>),
    #[cfg(feature = "dashboard")]
    Web(Pin<Box<dyn Future<Output = Result<Response<tonic::body::Body>, Infallible>> + Send>>),
}

/// The body of a refused request that is read before the answer: over HTTP/2 the answer to an unread body ends with a reset of the
/// stream, which some clients report in place of the answer (RFC 9113, section 8.1). HTTP/1 reads it by itself.
fn unread(request: Request<Incoming>) -> Option<Incoming> {
    (request.version() == Version::HTTP_2).then(|| request.into_body())
}

/// Reads a body of at most [`REFUSED_BODY_BYTES`] to its end, and keeps nothing of it.
async fn drain(body: Incoming) {
    let mut body = Limited::new(body, REFUSED_BODY_BYTES);
    let reading = async { while let Some(Ok(_)) = body.frame().await {} };
    // What is larger, slower or broken gets the answer with its body unread.
    let _ = tokio::time::timeout(REFUSED_BODY_TIMEOUT, reading).await;
}
