//! Credentials of outgoing requests, from the authentication policy of a task.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;

use super::request::fill;
use super::scope::{Scope, text};
use crate::data::Data;
use crate::error::{ErrorKind, WorkflowError};
use crate::program::{Authentication, Scheme};

/// The path of an authority's token endpoint (specification, section "OAUTH2 Authentication").
const TOKEN_PATH: &str = "/oauth2/token";
/// The path of an authority's metadata (OpenID Connect Discovery 1.0, section 4).
const DISCOVERY_PATH: &str = "/.well-known/openid-configuration";

/// The authorization of a request. Its debug form has no secrets.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The value of the `Authorization` header.
    Known {
        /// The scheme, such as `Bearer`.
        scheme: &'static str,
        /// The parameter, such as the token.
        parameter: String,
    },
    /// A bearer token that the host gets from an authorization server.
    Token(Box<TokenRequest>),
}

/// A request for a token (RFC 6749, sections 4.3 and 4.4). Its debug form has no secrets.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The server.
    pub endpoint: TokenEndpoint,
    /// User name and password of the `Authorization` header, for a client that authenticates by it.
    pub basic: Option<(String, String)>,
    /// The parameters of the request.
    pub parameters: Vec<(&'static str, String)>,
    /// The form of the body.
    pub encoding: TokenEncoding,
}

/// The place of an authorization server's token endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenEndpoint {
    /// Its URL.
    Url(String),
    /// The URL of a JSON document that has the URL as `token_endpoint`.
    Discovered(String),
}

/// The forms of the body of a token request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenEncoding {
    /// `application/x-www-form-urlencoded`
    Form,
    /// `application/json`
    Json,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known { scheme, .. } => write!(out, "Known({scheme})"),
            Self::Token(request) => request.fmt(out),
        }
    }
}

impl fmt::Debug for TokenRequest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "TokenRequest({:?})", self.endpoint)
    }
}

impl Credentials {
    /// The credentials of a user or client (RFC 7617).
    pub fn basic(name: &str, password: &str) -> Self {
        Self::Known { scheme: "Basic", parameter: STANDARD.encode(format!("{name}:{password}")) }
    }

    /// `$authorization` (specification, section "Authorization Descriptor"). A token that the host gets never enters the instance.
    pub(super) fn descriptor(&self) -> Data {
        match self {
            Self::Known { scheme, parameter } => {
                Data::of([("scheme", (*scheme).into()), ("parameter", parameter.as_str().into())])
            }
            Self::Token(_) => Data::of([("scheme", "Bearer".into())]),
        }
    }

    /// Size of its texts in bytes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Known { parameter, .. } => parameter.len(),
            Self::Token(request) => request.parameters.iter().map(|(_, value)| value.len()).sum(),
        }
    }
}

/// The properties of an `oauth2` or `oidc` policy.
#[derive(Deserialize)]
struct OAuth2 {
    authority: String,
    #[serde(default)]
    endpoints: Endpoints,
    grant: String,
    #[serde(default)]
    client: Client,
    #[serde(default)]
    request: Encoding,
    #[serde(default)]
    scopes: Vec<String>,
    #[serde(default)]
    audiences: Vec<String>,
    username: Option<String>,
    password: Option<String>,
}

#[derive(Default, Deserialize)]
struct Endpoints {
    token: Option<String>,
}

#[derive(Default, Deserialize)]
struct Client {
    id: Option<String>,
    secret: Option<String>,
    authentication: Option<String>,
}

#[derive(Default, Deserialize)]
struct Encoding {
    encoding: Option<String>,
}

/// Evaluates an authentication policy.
///
/// # Errors
/// An expression fails; a `configuration` error if a property is missing or not supported.
pub(super) fn credentials(
    authentication: &Authentication,
    scope: &Scope<'_>,
    input: &Data,
) -> Result<Credentials, WorkflowError> {
    let policy = scope.json(&authentication.policy, input)?;
    let field = |name: &str| match policy.get(name) {
        None | Some(Value::Null) => Err(bad(format!("the authentication policy has no `{name}`"))),
        Some(value) => Ok(text(value.clone())),
    };
    match authentication.scheme {
        Scheme::Basic => Ok(Credentials::basic(&field("username")?, &field("password")?)),
        Scheme::Bearer => Ok(Credentials::Known { scheme: "Bearer", parameter: field("token")? }),
        Scheme::OAuth2 | Scheme::OpenIdConnect => {
            // The message of the parser may quote a value, which may be a secret.
            let policy: OAuth2 = serde_json::from_value(policy).map_err(|_| {
                bad("the authentication policy needs `authority` and `grant`, and its values are texts"
                    .into())
            })?;
            token_request(authentication.scheme, policy, input)
                .map(|request| Credentials::Token(Box::new(request)))
        }
    }
}

fn token_request(scheme: Scheme, policy: OAuth2, input: &Data) -> Result<TokenRequest, WorkflowError> {
    let OAuth2 { authority, endpoints, grant, client, request, scopes, audiences, username, password } =
        policy;
    let authority = fill(&authority, input);
    let authority = authority.trim_end_matches('/');
    let endpoint = match (scheme, endpoints.token) {
        (Scheme::OpenIdConnect, None) if authority.ends_with(DISCOVERY_PATH) => {
            TokenEndpoint::Discovered(authority.to_owned())
        }
        (Scheme::OpenIdConnect, None) => TokenEndpoint::Discovered(format!("{authority}{DISCOVERY_PATH}")),
        (_, token) => {
            let token = token.unwrap_or_else(|| TOKEN_PATH.to_owned());
            TokenEndpoint::Url(match token.contains("://") {
                true => token,
                false => format!("{authority}/{}", token.trim_start_matches('/')),
            })
        }
    };
    let mut parameters = vec![("grant_type", grant.clone())];
    match grant.as_str() {
        "client_credentials" => {}
        "password" => {
            let missing = || bad("the grant `password` needs `username` and `password`".into());
            parameters.push(("username", username.ok_or_else(missing)?));
            parameters.push(("password", password.ok_or_else(missing)?));
        }
        _ => return Err(bad(format!("{}; it is `{grant}` here", unsupported_grant()))),
    }
    let mut basic = None;
    match (client.authentication.as_deref(), client.id) {
        (None | Some("client_secret_post"), Some(id)) => {
            parameters.push(("client_id", id));
            parameters.extend(client.secret.map(|secret| ("client_secret", secret)));
        }
        (Some("client_secret_basic"), Some(id)) => basic = Some((id, client.secret.unwrap_or_default())),
        (Some("none"), id) => parameters.extend(id.map(|id| ("client_id", id))),
        (None | Some("client_secret_post" | "client_secret_basic"), None) => {
            return Err(bad("the authentication policy has no `client.id`".into()));
        }
        (Some(other), _) => return Err(bad(format!("{}; it is `{other}` here", unsupported_client()))),
    }
    if !scopes.is_empty() {
        parameters.push(("scope", scopes.join(" ")));
    }
    parameters.extend(audiences.into_iter().map(|audience| ("audience", audience)));
    let encoding = match request.encoding.as_deref() {
        None | Some("application/x-www-form-urlencoded") => TokenEncoding::Form,
        Some("application/json") => TokenEncoding::Json,
        Some(other) => return Err(bad(format!("token requests are not encoded as `{other}`"))),
    };
    Ok(TokenRequest { endpoint, basic, parameters, encoding })
}

/// The grants that are supported, in words.
pub(crate) fn unsupported_grant() -> &'static str {
    "of the grants of OAuth 2, `client_credentials` and `password` are supported"
}

/// The ways in which a client may authenticate, in words.
pub(crate) fn unsupported_client() -> &'static str {
    "`client.authentication` is client_secret_post, client_secret_basic or none"
}

fn bad(detail: String) -> WorkflowError {
    WorkflowError::new(ErrorKind::Configuration, detail)
}

impl TokenRequest {
    /// The body of the request, with its content type.
    pub fn body(&self) -> (Vec<u8>, &'static str) {
        match self.encoding {
            TokenEncoding::Form => {
                let mut form = url::form_urlencoded::Serializer::new(String::new());
                form.extend_pairs(&self.parameters);
                (form.finish().into_bytes(), "application/x-www-form-urlencoded")
            }
            TokenEncoding::Json => {
                let mut fields = serde_json::Map::new();
                for (name, value) in &self.parameters {
                    // Several audiences become a list.
                    match fields.get_mut(*name) {
                        Some(Value::Array(values)) => values.push(Value::from(value.as_str())),
                        Some(first) => {
                            *first = Value::from(vec![first.take(), Value::from(value.as_str())])
                        }
                        None => drop(fields.insert((*name).to_owned(), Value::from(value.as_str()))),
                    }
                }
                (Value::Object(fields).to_string().into_bytes(), "application/json")
            }
        }
    }
}
