//! Who may send requests to the gateway: `auth` of an http trigger.

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
use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue};

use super::reply::{HttpReply, problem_reply};
use super::websocket::Upgrading;
use crate::access::{Access, Action, ClientNames};
use crate::access::{TokenError, bearer, token_in};

/// The file in the data directory with the token that only calls functions.
pub(crate) const HTTP_TOKEN_FILE: &str = "http-token";

const NODE_TOKEN: &str = "the node's token (the file `http-token` in its data directory)";

/// Takes what others may have written: without padding, with bits left over.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
);

/// Decides about requests.
pub struct GatewayAuth {
    /// The operator's, and the one that only calls functions. Hashes are compared, which takes the same time
    /// wherever a guess goes wrong.
    tokens: [blake3::Hash; 2],
    /// The same as they are: to be found in what is no token alone.
    plain: [String; 2],
    access: Arc<Access>,
    /// Where nothing else is said.
    default: HttpAuth,
}

/// Sender of a request, as far as it is proven.
#[derive(Debug, PartialEq, Eq)]
pub enum Caller {
    /// No proof was needed.
    Unknown,
    /// Holder of a token of the node.
    Operator,
    /// User of a JSON Web Token.
    User(String),
}

/// The decision about a request that is allowed. It is made once, when the head has come, and travels with the request: a
/// permission that is revoked later does not count for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Authorised {
    /// Sender.
    pub caller: Caller,
    /// Credential that the request needed.
    pub needed: HttpAuth,
    /// Readers of its answer.
    pub audience: Audience,
}

impl Authorised {
    /// Checks the page that sends the request, if the sender had to prove nothing: only this machine can send such a request,
    /// but pages from anywhere are read on this machine.
    ///
    /// # Errors
    /// 403.
    pub fn check_page(&self, upgrading: &Upgrading, headers: &HeaderMap) -> Result<(), Problem> {
        match self.caller {
            Caller::Unknown => upgrading.check_page(headers),
            Caller::Operator | Caller::User(_) => Ok(()),
        }
    }
}

/// A request that is not let through.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// What the client is told.
    pub problem: Box<Problem>,
    /// `WWW-Authenticate`, of a 401 (RFC 6750, section 3).
    pub challenge: Option<HeaderValue>,
    /// It has a token that is not right.
    pub is_wrong_token: bool,
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
        let plain = [admin_token.to_owned(), http_token];
        let tokens = [0, 1].map(|index: usize| blake3::hash(plain[index].as_bytes()));
        let default = if is_loopback(listens.ip()) { HttpAuth::None } else { HttpAuth::Token };
        Ok(Self { tokens, plain, access, default })
    }

    /// The answer to a request that is not let through. One with a wrong token is held back, the longer the more of them come
    /// from the address.
    pub(super) async fn refuse(&self, refused: Refused, address: IpAddr) -> HttpReply {
        if refused.is_wrong_token {
            self.access.hold_back(address).await;
        }
        let mut reply = problem_reply(&refused.problem);
        if let Some(challenge) = refused.challenge {
            reply.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        }
        reply
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
    ) -> Result<Authorised, Refused> {
        let token = bearer(headers).map(str::to_owned);
        let values = headers.get_all(AUTHORIZATION);
        if values.iter().nth(1).is_some() {
            let problem = Problem::new(400, "Bad request", "there is more than one `authorization` header");
            return Err(Refused { problem: Box::new(problem), challenge: None, is_wrong_token: false });
        }
        let is_own = token.as_deref().is_some_and(|token| self.is_own(token));
        if is_own || values.iter().any(|value| self.has_own(value)) {
            headers.remove(AUTHORIZATION);
        }
        let caller = match (wanted, token) {
            _ if is_own => Caller::Operator,
            (HttpAuth::None, _) => Caller::Unknown,
            (HttpAuth::Token, None) => return Err(missing(NODE_TOKEN)),
            (HttpAuth::Token, Some(_)) => return Err(invalid("this is not the node's token")),
            (HttpAuth::Jwt, None) => return Err(missing("a JSON Web Token")),
            (HttpAuth::Jwt, Some(token)) => Caller::User(self.check_jwt(&token, function)?),
        };
        Ok(self.authorised(caller, wanted))
    }

    /// Lets a request through that is for no function: it needs what is needed where nothing is said.
    ///
    /// # Errors
    /// 401 with the challenge.
    pub fn check_default(&self, headers: &HeaderMap) -> Result<Authorised, Refused> {
        let caller = match (self.default, bearer(headers)) {
            (HttpAuth::None, _) => Caller::Unknown,
            (_, Some(token)) if self.is_own(token) => Caller::Operator,
            (_, Some(token)) => match self.access.check_token(token.as_bytes()) {
                Ok(claims) => Caller::User(claims.subject),
                Err(_) => return Err(invalid("this is not the node's token")),
            },
            (_, None) => return Err(missing(NODE_TOKEN)),
        };
        Ok(self.authorised(caller, self.default))
    }

    fn authorised(&self, caller: Caller, needed: HttpAuth) -> Authorised {
        let audience = match (&caller, self.default) {
            // Where nothing is needed by default, the gateway listens for this machine alone.
            (Caller::Operator | Caller::User(_), _) | (Caller::Unknown, HttpAuth::None) => {
                Audience::Trusted
            }
            (Caller::Unknown, _) => Audience::Public,
        };
        Authorised { caller, needed, audience }
    }

    fn is_own(&self, token: &str) -> bool {
        let given = blake3::hash(token.as_bytes());
        self.tokens.iter().fold(false, |found, own| (*own == given) | found)
    }

    /// Whether a header has a token of the node somewhere in it: as it is, or in base64, as `Basic` has it.
    fn has_own(&self, value: &HeaderValue) -> bool {
        let is_in = |text: &[u8]| self.plain.iter().any(|token| contains(text, token.as_bytes()));
        let value = value.as_bytes();
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(byte);
        is_in(value) || value.split(|byte| !is_base64(byte)).any(|word| is_in(&from_base64(word)))
    }

    /// A user who may publish a call may make it here; gives the user.
    fn check_jwt(&self, token: &str, function: &str) -> Result<String, Refused> {
        let claims = self.access.check_token(token.as_bytes()).map_err(|error| match error {
            Some(error) => invalid(&error.to_string()),
            None => invalid("this node takes no JSON Web Tokens: [access.jwt] is not configured"),
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
            is_wrong_token: false,
        })
    }
}

/// Whether `token` is in `text`; takes the same time however much of it is.
fn contains(text: &[u8], token: &[u8]) -> bool {
    let differ = |part: &[u8]| part.iter().zip(token).fold(0, |differ, (a, b)| differ | (a ^ b));
    text.windows(token.len().max(1)).fold(false, |found, part| found | (differ(part) == 0))
}

/// What a word of either alphabet stands for; nothing if it is no base64.
fn from_base64(word: &[u8]) -> Vec<u8> {
    let plain = word.iter().map(|byte| match byte {
        b'-' => b'+',
        b'_' => b'/',
        byte => *byte,
    });
    LENIENT_BASE64.decode(plain.collect::<Vec<_>>()).unwrap_or_default()
}

fn missing(what: &str) -> Refused {
    let detail = format!("the request needs `authorization: Bearer TOKEN` with {what}");
    refused(detail, HeaderValue::from_static("Bearer realm=\"edgefaas\""), false)
}

fn invalid(reason: &str) -> Refused {
    refused(
        reason.to_owned(),
        HeaderValue::from_static("Bearer realm=\"edgefaas\", error=\"invalid_token\""),
        true,
    )
}

fn refused(detail: String, challenge: HeaderValue, is_wrong_token: bool) -> Refused {
    let problem = Box::new(Problem::new(401, "Not authorized", detail));
    Refused { problem, challenge: Some(challenge), is_wrong_token }
}
