//! Who may send requests to the gateway: `auth` of an http trigger.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue};

use crate::access::{Access, Action, Who, is_loopback};
use crate::control::{TokenError, bearer, token_in};
use crate::manifest::{HttpAuth, Trigger};
use crate::problem::Problem;
use crate::registry::LiveFunction;

/// The file in the data directory with the token that only calls functions.
const HTTP_TOKEN_FILE: &str = "http-token";

const NODE_TOKEN: &str = "the node's token (the file `http-token` in its data directory)";

/// Decides about requests.
pub struct GatewayAuth {
    /// The operator's, and the one that only calls functions. Hashes are compared, which takes the same time
    /// wherever a guess goes wrong.
    tokens: [blake3::Hash; 2],
    access: Arc<Access>,
    /// Where nothing else is said.
    default: HttpAuth,
}

/// Who sends a request, as far as it has been proven.
#[derive(Debug, PartialEq, Eq)]
pub enum Caller {
    /// Nothing was asked for.
    Unknown,
    /// Who has a token of the node.
    Operator,
    /// The user of a JSON Web Token.
    User(String),
}

/// A request that is not let through.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// What the client is told.
    pub problem: Box<Problem>,
    /// `WWW-Authenticate`, of a 401 (RFC 6750, section 3).
    pub challenge: Option<HeaderValue>,
}

impl GatewayAuth {
    /// For a gateway that listens there. Reads the token for requests, or draws it at the first start.
    ///
    /// # Errors
    /// The token can't be had.
    pub fn new(
        admin_token: &str,
        data_dir: &Path,
        access: Arc<Access>,
        listens: SocketAddr,
    ) -> Result<Self, TokenError> {
        let http_token = token_in(&data_dir.join(HTTP_TOKEN_FILE))?;
        let tokens = [admin_token, &http_token].map(|token| blake3::hash(token.as_bytes()));
        let default = if is_loopback(listens.ip()) { HttpAuth::None } else { HttpAuth::Token };
        Ok(Self { tokens, access, default })
    }

    /// What a trigger needs.
    pub fn of_trigger(&self, auth: Option<HttpAuth>) -> HttpAuth {
        auth.unwrap_or(self.default)
    }

    /// What `/fn/NAME` needs: never less than any of the function's triggers, or it would be the way around.
    pub fn of_function(&self, function: &LiveFunction) -> HttpAuth {
        let triggers = function.spec.triggers.iter().filter_map(|trigger| match trigger {
            Trigger::Http { auth, .. } => *auth,
            _ => None,
        });
        triggers.max().map_or(self.default, |strictest| strictest.max(self.default))
    }

    /// Lets a request through, or says what it lacks. A token of the node is taken out of the headers, wherever it is in
    /// them: it is no function's business.
    ///
    /// # Errors
    /// 401 with the challenge, 403, or 400 for more than one `authorization`.
    pub fn check(
        &self,
        wanted: HttpAuth,
        function: &str,
        headers: &mut HeaderMap,
    ) -> Result<Caller, Refused> {
        let token = bearer(headers).map(str::to_owned);
        let values = headers.get_all(AUTHORIZATION);
        if values.iter().nth(1).is_some() {
            let problem = Problem::new(400, "Bad request", "there is more than one `authorization` header");
            return Err(Refused { problem: Box::new(problem), challenge: None });
        }
        let is_own = token.as_deref().is_some_and(|token| self.is_own(token));
        if is_own || values.iter().any(|value| self.has_own(value)) {
            headers.remove(AUTHORIZATION);
        }
        match (wanted, token) {
            _ if is_own => Ok(Caller::Operator),
            (HttpAuth::None, _) => Ok(Caller::Unknown),
            (HttpAuth::Token, None) => Err(missing(NODE_TOKEN)),
            (HttpAuth::Token, Some(_)) => Err(invalid("this is not the node's token")),
            (HttpAuth::Jwt, None) => Err(missing("a JSON Web Token")),
            (HttpAuth::Jwt, Some(token)) => self.check_jwt(&token, function).map(Caller::User),
        }
    }

    /// Lets a request through that is for no function: it needs what is needed where nothing is said.
    ///
    /// # Errors
    /// 401 with the challenge.
    pub fn check_default(&self, headers: &HeaderMap) -> Result<(), Refused> {
        match (self.default, bearer(headers)) {
            (HttpAuth::None, _) => Ok(()),
            (_, Some(token)) if self.is_own(token) => Ok(()),
            (_, Some(token)) => match self.access.check_token(token.as_bytes()) {
                Ok(_) => Ok(()),
                Err(_) => Err(invalid("this is not the node's token")),
            },
            (_, None) => Err(missing(NODE_TOKEN)),
        }
    }

    fn is_own(&self, token: &str) -> bool {
        let given = blake3::hash(token.as_bytes());
        self.tokens.iter().fold(false, |found, own| (*own == given) | found)
    }

    /// Whether a header has a token of the node somewhere in it, in whatever form.
    fn has_own(&self, value: &HeaderValue) -> bool {
        let mut words = value.as_bytes().split(|byte| b" \t,;=\"".contains(byte));
        words.any(|word| std::str::from_utf8(word).is_ok_and(|word| self.is_own(word)))
    }

    /// Whoever may publish a call may make it here; gives the user.
    fn check_jwt(&self, token: &str, function: &str) -> Result<String, Refused> {
        let claims = self.access.check_token(token.as_bytes()).map_err(|error| match error {
            Some(error) => invalid(&error.to_string()),
            None => invalid("this node takes no JSON Web Tokens: [access.jwt] is not configured"),
        })?;
        let who = Who { user: Some(&claims.subject), client_id: None };
        let topic = format!("$faas/fn/{function}/invoke");
        if self.access.policy().rules().allows(who, Action::Publish, &topic) {
            return Ok(claims.subject);
        }
        let detail =
            format!("the user of the token may not publish to {topic}, and so may not call `{function}`");
        Err(Refused { problem: Box::new(Problem::new(403, "Not allowed", detail)), challenge: None })
    }
}

fn missing(what: &str) -> Refused {
    let detail = format!("the request needs `authorization: Bearer TOKEN` with {what}");
    refused(detail, HeaderValue::from_static("Bearer realm=\"edgefaas\""))
}

fn invalid(reason: &str) -> Refused {
    refused(
        reason.to_owned(),
        HeaderValue::from_static("Bearer realm=\"edgefaas\", error=\"invalid_token\""),
    )
}

fn refused(detail: String, challenge: HeaderValue) -> Refused {
    Refused { problem: Box::new(Problem::new(401, "Not authorized", detail)), challenge: Some(challenge) }
}
