//! Sessions of signed-in browsers, as cookies that the node has signed.
//!
//! The node keeps no list of sessions: a cookie has all facts, and a keyed hash over them (BLAKE3) shows that this node made it. The
//! key derives from the admin token, so a new token ends all sessions, and a cookie is worth nothing at another node. User, role and
//! password are looked up at each request; only sessions that were [signed out](super::signed_out) are remembered.

use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64URL_NOPAD;
use edgefaas_platform::Clock;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};
use serde::{Deserialize, Serialize};

use super::signed_out::SignedOut;
use crate::access::{Access, SignedIn};
use crate::control::caller::Caller;
use crate::own_origin::SESSION_COOKIE;

/// Maximum time from the sign-in to the end of a session, however often it is renewed.
const MAX_AGE: Duration = Duration::from_secs(12 * 3600);
/// A session is renewed when it has run for this time, or for a tenth of its life.
const RENEWAL: Duration = Duration::from_secs(60);
/// Maximum length of a cookie that is verified, in bytes.
const MAX_COOKIE_BYTES: usize = 1024;
/// Hexadecimal digits of the tag of a session.
const TAG_CHARACTERS: usize = 16;
/// Bytes of the keyed hash.
const MAC_BYTES: usize = 32;

/// Makes and verifies the cookies of sessions.
pub(in crate::control) struct Sessions {
    key: [u8; 32],
    cookie_name: String,
    /// The cookie is for TLS only.
    secure: bool,
    life: Duration,
    clock: Clock,
    signed_out: Arc<SignedOut>,
}

/// The contents of a cookie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claims {
    id: u64,
    /// `None`: the holder of the admin token.
    user: Option<String>,
    /// Digest of the user's password hash.
    password: [u8; 16],
    signed_in_unix_s: u64,
    expires_unix_s: u64,
}

/// A valid session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::control) struct Session {
    /// Who has signed in, with the current role.
    pub caller: Caller,
    /// What its cookie says.
    pub(super) claims: Claims,
    /// End of the session unless it is renewed.
    pub expires_unix_s: u64,
    /// A renewed cookie for the response, at most once a minute.
    pub renewed: Option<HeaderValue>,
}

impl Session {
    /// Names user and role, without a secret: a page sends it with each request, so that it does not act as somebody who has signed in
    /// in another tab.
    pub fn tag(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.caller.role().to_string().as_bytes());
        // The holder of the admin token is no user with the empty name.
        hasher.update(self.caller.user().map_or(&[0], |user| user.as_bytes()));
        hasher.finalize().to_hex()[..TAG_CHARACTERS].to_owned()
    }
}

/// Who signs in.
pub(in crate::control) enum SigningIn {
    /// The holder of the admin token.
    Token,
    /// A user whose password is right.
    User(String, SignedIn),
}

impl Sessions {
    /// Sessions of `life` each at the node with this id and admin token.
    pub fn new(
        (node_id, token): (&str, &str),
        secure: bool,
        life: Duration,
        clock: Clock,
        signed_out: SignedOut,
    ) -> Self {
        // Browsers send the cookies of a host to all its ports, and each may be another node.
        let short_id: String = node_id.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        Self {
            key: blake3::derive_key("edgefaas 2026-11 session of the control API", token.as_bytes()),
            // Browsers accept the prefix over TLS only, and then from no other path.
            cookie_name: format!("{}{SESSION_COOKIE}{short_id}", if secure { "__Host-" } else { "" }),
            secure,
            life,
            clock,
            signed_out: Arc::new(signed_out),
        }
    }

    /// Begins a session: its cookie and its end.
    pub fn begin(&self, who: SigningIn) -> (HeaderValue, Session) {
        let now = self.now_unix_s();
        let (user, password, caller) = match who {
            SigningIn::Token => (None, [0; 16], Caller::Token),
            SigningIn::User(name, SignedIn { role, password_hash }) => {
                let caller = Caller::User { name: name.as_str().into(), role };
                (Some(name), digest(&password_hash), caller)
            }
        };
        let expires_unix_s = now + self.life.min(MAX_AGE).as_secs();
        let claims = Claims { id: rand::random(), user, password, signed_in_unix_s: now, expires_unix_s };
        (self.cookie(&claims, now), Session { caller, claims, expires_unix_s, renewed: None })
    }

    /// The session of a request; `None` if it has no cookie, or one that is invalid or has expired.
    pub fn find(&self, headers: &HeaderMap, access: &Access) -> Option<Session> {
        let claims = self.claims(headers)?;
        let now = self.now_unix_s();
        let caller = self.caller_at(&claims, access, now)?;
        let last = claims.signed_in_unix_s + MAX_AGE.as_secs();
        let renewed = (now + self.life.as_secs()).min(last);
        // Not with each answer.
        let is_old = claims.expires_unix_s - now + RENEWAL.as_secs().min(self.life.as_secs() / 10)
            < self.life.as_secs();
        if is_old && renewed > claims.expires_unix_s {
            let claims = Claims { expires_unix_s: renewed, ..claims };
            let cookie = self.cookie(&claims, now);
            return Some(Session { caller, claims, expires_unix_s: renewed, renewed: Some(cookie) });
        }
        Some(Session { caller, expires_unix_s: claims.expires_unix_s, claims, renewed: None })
    }

    /// Who a session belongs to, with the current role; `None` once it is over: it has expired or was signed out, its user was removed
    /// or has no role any more, or the password has changed.
    pub(super) fn caller(&self, claims: &Claims, access: &Access) -> Option<Caller> {
        self.caller_at(claims, access, self.now_unix_s())
    }

    fn caller_at(&self, claims: &Claims, access: &Access, now_unix_s: u64) -> Option<Caller> {
        let is_current =
            claims.signed_in_unix_s <= now_unix_s.saturating_add(60) && now_unix_s < claims.expires_unix_s;
        if !is_current || self.signed_out.contains(claims.id) {
            return None;
        }
        let Some(name) = &claims.user else { return Some(Caller::Token) };
        let SignedIn { role, password_hash } = access.role_of(name)?;
        let is_same = digest(&password_hash) == claims.password;
        is_same.then(|| Caller::User { name: name.as_str().into(), role })
    }

    /// Ends the session of a request, if it has one, also over a restart: a cookie that removes it.
    pub async fn end(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(claims) = self.claims(headers) {
            let last = claims.signed_in_unix_s + MAX_AGE.as_secs();
            if self.signed_out.add(claims.id, last, self.now_unix_s()) {
                self.signed_out.clone().write().await;
            }
        }
        self.header("", 0)
    }

    fn claims(&self, headers: &HeaderMap) -> Option<Claims> {
        let values = headers.get_all(COOKIE).into_iter().filter_map(|value| value.to_str().ok());
        let cookies = values.flat_map(|value| value.split(';')).map(str::trim);
        let mut own = cookies.filter_map(|cookie| {
            let (name, value) = cookie.split_once('=')?;
            (name == self.cookie_name).then_some(value)
        });
        // A page of another port of this host may have set further cookies of this name.
        own.find_map(|value| self.verified(value))
    }

    fn verified(&self, value: &str) -> Option<Claims> {
        if value.len() > MAX_COOKIE_BYTES {
            return None;
        }
        let signed = BASE64URL_NOPAD.decode(value.as_bytes()).ok()?;
        let (claims, mac) = signed.split_at_checked(signed.len().checked_sub(MAC_BYTES)?)?;
        let mac: [u8; MAC_BYTES] = mac.try_into().ok()?;
        // Compared in constant time.
        if blake3::keyed_hash(&self.key, claims) != blake3::Hash::from(mac) {
            return None;
        }
        postcard::from_bytes(claims).ok()
    }

    fn cookie(&self, claims: &Claims, now_unix_s: u64) -> HeaderValue {
        // This cannot fail: the claims are numbers and a short text.
        let mut signed = postcard::to_allocvec(claims).unwrap_or_default();
        let mac = blake3::keyed_hash(&self.key, &signed);
        signed.extend_from_slice(mac.as_bytes());
        self.header(&BASE64URL_NOPAD.encode(&signed), claims.expires_unix_s.saturating_sub(now_unix_s))
    }

    fn header(&self, value: &str, max_age_s: u64) -> HeaderValue {
        let secure = if self.secure { "; Secure" } else { "" };
        let name = &self.cookie_name;
        let text =
            format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={max_age_s}{secure}");
        HeaderValue::try_from(text).expect("name and value are alphanumeric")
    }

    fn now_unix_s(&self) -> u64 {
        self.clock.now_unix_ms() / 1000
    }
}

fn digest(password_hash: &str) -> [u8; 16] {
    let mut digest = [0; 16];
    digest.copy_from_slice(&blake3::hash(password_hash.as_bytes()).as_bytes()[..16]);
    digest
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::access::{AccessSection, Policy, Role, UserChange, change_users, hash_password};

    const LIFE: Duration = Duration::from_secs(3600);

    fn access(dir: &Path, clock: Clock) -> Access {
        Access::new(Policy::load(&AccessSection::default(), dir).unwrap(), clock)
    }

    fn sessions(dir: &Path, names: (&str, &str), secure: bool, clock: &Clock) -> Sessions {
        let signed_out = SignedOut::load(dir.to_str().unwrap());
        Sessions::new(names, secure, LIFE, clock.clone(), signed_out)
    }

    fn request(cookie: &HeaderValue) -> HeaderMap {
        let (cookie, _) = cookie.to_str().unwrap().split_once(';').unwrap();
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, HeaderValue::from_static("theme=dark; other=1"));
        headers.append(COOKIE, HeaderValue::from_str(&format!("a=b; {cookie}")).unwrap());
        headers
    }

    #[test]
    fn a_session_holds_until_its_end_is_renewed_and_ends_after_twelve_hours() {
        let folder = tempfile::tempdir().unwrap();
        let now = Arc::new(AtomicU64::new(1_800_000_000_000));
        let clock = Clock::new({
            let now = now.clone();
            move || now.load(Ordering::Relaxed)
        });
        let access = access(folder.path(), clock.clone());
        let sessions = sessions(folder.path(), ("01ABC", "token"), false, &clock);
        let (mut cookie, session) = sessions.begin(SigningIn::Token);
        assert_eq!(session.expires_unix_s, 1_800_003_600);
        let text = cookie.to_str().unwrap();
        assert!(text.starts_with("edgefaas-01ABC=") && !text.contains("Secure"), "{text}");
        assert!(text.ends_with("; Path=/; HttpOnly; SameSite=Strict; Max-Age=3600"), "{text}");
        let step = |seconds: u64| now.fetch_add(seconds * 1000, Ordering::Relaxed);
        step(50);
        assert_eq!(sessions.find(&request(&cookie), &access).unwrap().renewed, None);
        let mut seconds = 50;
        loop {
            step(1000);
            seconds += 1000;
            let Some(session) = sessions.find(&request(&cookie), &access) else { break };
            assert_eq!(session.caller, Caller::Token);
            if let Some(renewed) = session.renewed {
                cookie = renewed;
            }
            assert!(seconds < 13 * 3600);
        }
        assert!((12 * 3600..12 * 3600 + 1000).contains(&seconds), "{seconds}");
    }

    #[tokio::test]
    async fn a_session_ends_with_its_password_its_role_and_its_sign_out() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let hash = hash_password(b"one").unwrap();
        change_users(dir, "ada", UserChange::Add(&hash, Some(Role::Operate))).unwrap();
        let clock = Clock::system();
        let this = ("01ABC", "token");
        let sessions = sessions(dir, this, true, &clock);
        let signed_in = access(dir, clock.clone()).role_of("ada").unwrap();
        let (cookie, _) = sessions.begin(SigningIn::User("ada".into(), signed_in.clone()));
        assert!(cookie.to_str().unwrap().ends_with("; Secure"));
        let find = |sessions: &Sessions| {
            let session = sessions.find(&request(&cookie), &access(dir, clock.clone()));
            session.map(|session| session.caller.role())
        };
        assert_eq!(find(&sessions), Some(Role::Operate));
        change_users(dir, "ada", UserChange::SetRole(Some(Role::Look))).unwrap();
        assert_eq!(find(&sessions), Some(Role::Look), "from the next request");
        change_users(dir, "ada", UserChange::SetRole(None)).unwrap();
        assert_eq!(find(&sessions), None);
        change_users(dir, "ada", UserChange::SetRole(Some(Role::Administer))).unwrap();
        assert_eq!(find(&sessions), Some(Role::Administer));
        // Another node, and this one with another token.
        assert_eq!(find(&self::sessions(dir, ("01ABD", "token"), true, &clock)), None);
        assert_eq!(find(&self::sessions(dir, ("01ABC", "other"), true, &clock)), None);
        let removal = sessions.end(&request(&cookie)).await;
        assert!(removal.to_str().unwrap().contains("edgefaas-01ABC=; ") && find(&sessions).is_none());

        let sessions = self::sessions(dir, this, true, &clock);
        assert_eq!(find(&sessions), None, "a restart remembers the sign-out");
        let (cookie, _) = sessions.begin(SigningIn::User("ada".into(), signed_in));
        let find = |sessions: &Sessions| {
            let session = sessions.find(&request(&cookie), &access(dir, clock.clone()));
            session.map(|session| session.caller.role())
        };
        assert_eq!(find(&sessions), Some(Role::Administer));
        let other = hash_password(b"two").unwrap();
        change_users(dir, "ada", UserChange::SetPassword(&other)).unwrap();
        assert_eq!(find(&sessions), None, "the password has changed");
    }

    #[test]
    fn a_changed_cookie_is_no_session() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Clock::system();
        let access = access(folder.path(), clock.clone());
        let sessions = sessions(folder.path(), ("01ABC", "token"), false, &clock);
        let (cookie, _) = sessions.begin(SigningIn::Token);
        let text = cookie.to_str().unwrap();
        let value_at = text.find('=').unwrap() + 1;
        let end = text.find(';').unwrap();
        for at in value_at..end {
            let mut changed = text.as_bytes().to_vec();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = HeaderValue::from_bytes(&changed).unwrap();
            // The last character has bits that encode nothing: other values of them are invalid base64.
            assert_eq!(sessions.find(&request(&changed), &access), None, "byte {at}");
        }
        for value in ["", "A", &"A".repeat(43), &"A".repeat(5000), "%", "ä"] {
            let header = HeaderValue::from_str(&format!("edgefaas-01ABC={value}")).unwrap();
            let headers = HeaderMap::from_iter([(COOKIE, header)]);
            assert_eq!(sessions.find(&headers, &access), None, "{value}");
        }
    }
}
