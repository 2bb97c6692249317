//! Authorisation of requests to the gateway: `auth` of an http trigger, and the default.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use edgefaas_functions::problem::{Audience, Problem};
use edgefaas_functions::registry::LiveFunction;
use edgefaas_functions::topics::call_topic;
use edgefaas_manifest::{HttpAuth, Trigger};
use edgefaas_platform::is_loopback;
use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};

use super::response::{HttpReply, problem_reply};
use super::websocket::WebSocketUpgrade;
use crate::access::{Access, Action, ClientNames};
use crate::access::{TokenError, bearer, token_in};
use crate::own_origin::remove_session_cookies;

/// File of the gateway token in the data directory. This token permits calls only.
pub(crate) const HTTP_TOKEN_FILE: &str = "http-token";

const NODE_TOKEN: &str = "the node's token (the file `http-token` in its data directory)";

/// Accepts base64 without padding and with non-zero trailing bits.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
);

/// Authorises requests.
pub struct GatewayAuth {
    /// Hashes of the admin token and the gateway token. Hashes are compared in constant time.
    token_hashes: [blake3::Hash; 2],
    /// The same tokens as text, to find them inside longer header values.
    plain_tokens: [String; 2],
    access: Arc<Access>,
    /// Credential that is required if the trigger has no `auth`.
    default: HttpAuth,
}

/// Verified sender of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Caller {
    /// The request needed no credential.
    Unknown,
    /// Sent the admin token or the gateway token.
    Operator,
    /// Subject of a valid JSON Web Token.
    User(String),
}

/// Authorisation of an accepted request. It is decided once, from the head of the request: revoking a permission later does
/// not affect the request.
#[derive(Debug, PartialEq, Eq)]
pub struct Authorised {
    /// Verified sender.
    pub caller: Caller,
    /// Credential that the request needed.
    pub required: HttpAuth,
    /// Determines how much detail the reply contains.
    pub audience: Audience,
}

impl Authorised {
    /// If the request needed no credential, checks that no web page of another site sent it. Without this check, any page in
    /// a browser on this machine could call functions.
    ///
    /// # Errors
    /// Status 403.
    pub fn check_page(&self, upgrade: &WebSocketUpgrade, headers: &HeaderMap) -> Result<(), Problem> {
        match self.caller {
            Caller::Unknown => upgrade.check_page(headers),
            Caller::Operator | Caller::User(_) => Ok(()),
        }
    }
}

/// Refusal of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// Reply to the client.
    pub problem: Box<Problem>,
    /// Value of `WWW-Authenticate` for status 401 (RFC 6750, section 3).
    pub challenge: Option<HeaderValue>,
    /// True if the request has an invalid token.
    pub has_invalid_token: bool,
}

impl GatewayAuth {
    /// For a gateway that listens on the address `listens`: requests need a token by default unless the address is a
    /// loopback address. Reads the gateway token; creates it at the first start.
    ///
    /// # Errors
    /// The gateway token cannot be read or created.
    pub fn new(
        admin_token: &str,
        data_dir: &Path,
        access: Arc<Access>,
        listens: SocketAddr,
    ) -> Result<Self, TokenError> {
        let http_token = token_in(&data_dir.join(HTTP_TOKEN_FILE))?;
        let plain_tokens = [admin_token.to_owned(), http_token];
        let token_hashes = [0, 1].map(|index: usize| blake3::hash(plain_tokens[index].as_bytes()));
        let default = if is_loopback(listens.ip()) { HttpAuth::None } else { HttpAuth::Token };
        Ok(Self { token_hashes, plain_tokens, access, default })
    }

    /// The reply to a refused request. After an invalid token the reply is delayed; the delay grows with the number of invalid
    /// tokens from the address.
    pub(super) async fn refuse(&self, refused: Refused, address: IpAddr) -> HttpReply {
        if refused.has_invalid_token {
            self.access.hold_back(address).await;
        }
        let mut reply = problem_reply(&refused.problem);
        if let Some(challenge) = refused.challenge {
            reply.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        reply
    }

    /// Credential that a trigger requires.
    pub fn required_by_trigger(&self, auth: Option<HttpAuth>) -> HttpAuth {
        auth.unwrap_or(self.default)
    }

    /// Credential that `/fn/NAME` requires: the strictest of the default and the function's http triggers. Otherwise
    /// `/fn/NAME` would bypass the `auth` of a trigger.
    pub fn required_by_function(&self, function: &LiveFunction) -> HttpAuth {
        let triggers = function.spec.triggers.iter().filter_map(|trigger| match trigger {
            Trigger::Http { auth, .. } => *auth,
            _ => None,
        });
        triggers.max().map_or(self.default, |strictest| strictest.max(self.default))
    }

    /// Authorises a request for a function. If `authorization` contains a token of the node, removes that header. Removes cookies of
    /// sessions of the control port, and `proxy-authorization`, which is for the proxies before the node (RFC 9110, section 11.7.2):
    /// functions must not see them.
    ///
    /// # Errors
    /// Status 401 with a challenge, 403, or 400 for more than one `authorization` header.
    pub fn check(
        &self,
        required: HttpAuth,
        function: &str,
        headers: &mut HeaderMap,
    ) -> Result<Authorised, Refused> {
        remove_session_cookies(headers);
        headers.remove(PROXY_AUTHORIZATION);
        let token = bearer(headers).map(str::to_owned);
        let values = headers.get_all(AUTHORIZATION);
        if values.iter().nth(1).is_some() {
            let problem = Problem::new(400, "Bad request", "there is more than one `authorization` header");
            return Err(Refused { problem: Box::new(problem), challenge: None, has_invalid_token: false });
        }
        let is_node_token = token.as_deref().is_some_and(|token| self.is_node_token(token));
        if is_node_token || values.iter().any(|value| self.contains_node_token(value.as_bytes())) {
            headers.remove(AUTHORIZATION);
        }
        let caller = match (required, token) {
            _ if is_node_token => Caller::Operator,
            (HttpAuth::None, _) => Caller::Unknown,
            (HttpAuth::Token, None) => return Err(missing(NODE_TOKEN)),
            (HttpAuth::Token, Some(_)) => return Err(invalid("this is not the node's token")),
            (HttpAuth::Jwt, None) => return Err(missing("a JSON Web Token")),
            (HttpAuth::Jwt, Some(token)) => Caller::User(self.check_jwt(&token, function)?),
        };
        Ok(self.authorised(caller, required))
    }

    /// Removes `authorization` headers that contain a token of this node from a request that another node has accepted:
    /// functions must not see these tokens.
    pub fn remove_credentials(&self, headers: &mut Vec<(String, String)>) {
        headers.retain(|(name, value)| {
            !name.eq_ignore_ascii_case(AUTHORIZATION.as_str())
                || !self.contains_node_token(value.as_bytes())
        });
    }

    /// Authorises a request that is not for a function. It requires the default credential; a valid JSON Web Token is
    /// accepted as well.
    ///
    /// # Errors
    /// Status 401 with a challenge.
    pub fn check_default(&self, headers: &HeaderMap) -> Result<Authorised, Refused> {
        let caller = match (self.default, bearer(headers)) {
            (HttpAuth::None, _) => Caller::Unknown,
            (_, Some(token)) if self.is_node_token(token) => Caller::Operator,
            (_, Some(token)) => match self.access.check_token(token.as_bytes()) {
                Ok(claims) => Caller::User(claims.subject),
                Err(_) => return Err(invalid("this is not the node's token")),
            },
            (_, None) => return Err(missing(NODE_TOKEN)),
        };
        Ok(self.authorised(caller, self.default))
    }

    fn authorised(&self, caller: Caller, required: HttpAuth) -> Authorised {
        let audience = match (&caller, self.default) {
            // If no credential is needed by default, the gateway listens on a loopback address only.
            (Caller::Operator | Caller::User(_), _) | (Caller::Unknown, HttpAuth::None) => {
                Audience::Trusted
            }
            (Caller::Unknown, _) => Audience::Public,
        };
        Authorised { caller, required, audience }
    }

    fn is_node_token(&self, token: &str) -> bool {
        let given = blake3::hash(token.as_bytes());
        self.token_hashes.iter().fold(false, |found, hash| (*hash == given) | found)
    }

    /// True if a header value contains a token of the node, as plain text or inside base64 as in `Basic`.
    fn contains_node_token(&self, value: &[u8]) -> bool {
        let is_in = |text: &[u8]| self.plain_tokens.iter().any(|token| contains(text, token.as_bytes()));
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
        is_in(value) || value.split(|byte| !is_base64(byte)).any(|word| is_in(&from_base64(word)))
    }

    /// Returns the user of a JSON Web Token who may call the function: users need the permission to publish to its call
    /// topic.
    fn check_jwt(&self, token: &str, function: &str) -> Result<String, Refused> {
        let claims = self.access.check_token(token.as_bytes()).map_err(|error| match error {
            Some(error) => invalid(&error.to_string()),
            None => invalid("this node accepts no JSON Web Tokens: [access.jwt] is not configured"),
        })?;
        let who = ClientNames { user: Some(&claims.subject), client_id: None };
        let topic = call_topic(function);
        if self.access.policy().rules().allows(who, Action::Publish, &topic) {
            return Ok(claims.subject);
        }
        let detail =
            format!("the user of the token may not publish to {topic}, and so may not call `{function}`");
        Err(Refused {
            problem: Box::new(Problem::new(403, "Not allowed", detail)),
            challenge: None,
            has_invalid_token: false,
        })
    }
}

/// True if `text` contains `token`. The time does not depend on how much of the token matches.
fn contains(text: &[u8], token: &[u8]) -> bool {
    let differ = |part: &[u8]| part.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b));
    text.windows(token.len().max(1)).fold(false, |found, part| found | (differ(part) == 0))
}

/// Decodes base64 of the standard or the URL-safe alphabet; empty if it is invalid.
fn from_base64(word: &[u8]) -> Vec<u8> {
    let plain = word.iter().map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => *byte,
    });
    LENIENT_BASE64.decode(plain.collect::<Vec<_>>()).unwrap_or_default()
}

fn missing(credential: &str) -> Refused {
    let detail = format!("the request needs `authorization: Bearer TOKEN` with {credential}");
    refused(detail, HeaderValue::from_static("Bearer realm=\"edgefaas\""), false)
}

fn invalid(reason: &str) -> Refused {
    refused(
        reason.to_owned(),
        HeaderValue::from_static("Bearer realm=\"edgefaas\", error=\"invalid_token\""),
        true,
    )
}

fn refused(detail: String, challenge: HeaderValue, has_invalid_token: bool) -> Refused {
    let problem = Box::new(Problem::new(401, "Not authorized", detail));
    Refused { problem, challenge: Some(challenge), has_invalid_token }
}
