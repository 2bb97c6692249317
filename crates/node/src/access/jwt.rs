//! JSON Web Tokens (RFC 7519) in compact form: `sub` names the user.
//!
//! `ring` verifies the signature. The key determines the algorithm, never the token: HS256 for a secret, RS256 for an
//! RSA key, EdDSA for an Ed25519 key (RFC 7518, RFC 8037). ADR 22 explains why no library parses tokens.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use ring::{hmac, signature};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// Minimum length of a secret, in bytes: the length of the hash (RFC 7518, section 3.2).
const MIN_SECRET_BYTES: usize = 32;
/// Maximum length of a token; a longer one is refused unread.
const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Allowed difference of clocks.
const LEEWAY_S: u64 = 30;

/// `[access.jwt]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct JwtSection {
    /// File with the secret that signs HS256 tokens.
    pub secret: Option<PathBuf>,
    /// PEM file with the public keys that verify RS256 and EdDSA tokens.
    pub public_key: Option<PathBuf>,
    /// Required value of `iss`.
    pub issuer: Option<String>,
    /// Required value of `aud`, or of one of its entries.
    pub audience: Option<String>,
}

/// Verifies tokens.
pub struct Jwt {
    keys: Vec<Key>,
    issuer: Option<String>,
    audience: Option<String>,
}

enum Key {
    Hs256(hmac::Key),
    Rs256(Box<[u8]>),
    EdDsa(Box<[u8]>),
}

/// Claims of a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// The user.
    pub subject: String,
    /// Expiry in seconds since the Unix epoch, including the leeway for clocks.
    pub expires_unix_s: u64,
}

/// The keys cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum JwtKeyError {
    /// No key is configured.
    #[error("[access.jwt] has no key; name a file with `secret` or `public_key`")]
    None,
    /// A file cannot be read.
    #[error("access.jwt.{key} {path} cannot be read: {reason}")]
    Read {
        /// The setting.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: std::io::Error,
    },
    /// A secret is too short.
    #[error("access.jwt.secret {path} has {bytes} bytes; HS256 needs at least {MIN_SECRET_BYTES}")]
    ShortSecret {
        /// The file.
        path: PathBuf,
        /// Its length, without a trailing newline.
        bytes: usize,
    },
    /// The file contains no usable public key.
    #[error("access.jwt.public_key {path}: {reason}")]
    PublicKey {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Reason for which a token is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// The text is not a token in compact form.
    #[error("this is not a valid JSON Web Token: {0}")]
    Malformed(&'static str),
    /// No key matches the algorithm.
    #[error("no key is configured for the token's algorithm `{0}`")]
    Algorithm(String),
    /// The signature is invalid.
    #[error("the token's signature is invalid")]
    Signature,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    NotYet,
    /// Issuer or audience does not match.
    #[error("the token's `{0}` is not the configured one")]
    Claim(&'static str),
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Critical extensions; none is supported.
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Payload {
    sub: String,
    exp: f64,
    nbf: Option<f64>,
    iss: Option<String>,
    aud: Option<Audience>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Jwt {
    /// Reads the keys.
    ///
    /// # Errors
    /// A file cannot be read or contains no key.
    pub fn load(section: &JwtSection) -> Result<Self, JwtKeyError> {
        let mut keys = Vec::new();
        if let Some(path) = &section.secret {
            keys.push(secret_key(path)?);
        }
        if let Some(path) = &section.public_key {
            keys.extend(public_keys(path)?);
        }
        if keys.is_empty() {
            return Err(JwtKeyError::None);
        }
        Ok(Self { keys, issuer: section.issuer.clone(), audience: section.audience.clone() })
    }

    /// True if the text looks like a token and not like a password: three parts, the first of them JSON.
    pub fn looks_like_one(text: &[u8]) -> bool {
        text.starts_with(b"eyJ") && text.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Verifies a token: its signature, the mandatory `exp`, `nbf`, and `iss` and `aud` if configured.
    ///
    /// # Errors
    /// The first failed check.
    pub fn check(&self, token: &[u8], now_unix_s: u64) -> Result<Claims, JwtError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(JwtError::Malformed("it is too long"));
        }
        let token = std::str::from_utf8(token).map_err(|_| JwtError::Malformed("it is not text"))?;
        let (signed, signature) =
            token.rsplit_once('.').ok_or(JwtError::Malformed("it does not have three parts"))?;
        let (header, payload) =
            signed.split_once('.').ok_or(JwtError::Malformed("it does not have three parts"))?;
        let decode =
            |part: &str| BASE64URL.decode(part).map_err(|_| JwtError::Malformed("it is not base64url"));
        let header: Header = serde_json::from_slice(&decode(header)?)
            .map_err(|_| JwtError::Malformed("its header is not valid"))?;
        if header.crit.is_some() {
            return Err(JwtError::Malformed("it has critical extensions, and none is supported"));
        }
        let signature = decode(signature)?;
        self.check_signature(&header.alg, signed.as_bytes(), &signature)?;
        // The payload is parsed only after the signature is verified.
        let payload: Payload = serde_json::from_slice(&decode(payload)?)
            .map_err(|_| JwtError::Malformed("its claims need `sub` (a text) and `exp` (a number)"))?;
        self.check_claims(payload, now_unix_s)
    }

    fn check_signature(&self, algorithm: &str, signed: &[u8], signature: &[u8]) -> Result<(), JwtError> {
        let mut matching = self.keys.iter().filter(|key| key.algorithm() == algorithm).peekable();
        if matching.peek().is_none() {
            return Err(JwtError::Algorithm(algorithm.to_owned()));
        }
        match matching.any(|key| key.verifies(signed, signature)) {
            true => Ok(()),
            false => Err(JwtError::Signature),
        }
    }

    fn check_claims(&self, payload: Payload, now_unix_s: u64) -> Result<Claims, JwtError> {
        let Payload { sub, exp, nbf, iss, aud } = payload;
        // Fractions are allowed (RFC 7519, section 2); negative or huge values are clamped.
        let expires_unix_s = (exp as u64).saturating_add(LEEWAY_S);
        if now_unix_s >= expires_unix_s {
            return Err(JwtError::Expired);
        }
        if nbf.is_some_and(|nbf| now_unix_s.saturating_add(LEEWAY_S) < nbf as u64) {
            return Err(JwtError::NotYet);
        }
        if self.issuer.is_some() && iss != self.issuer {
            return Err(JwtError::Claim("iss"));
        }
        if let Some(expected) = &self.audience {
            let matches = match &aud {
                None => false,
                Some(Audience::One(one)) => one == expected,
                Some(Audience::Several(several)) => several.contains(expected),
            };
            if !matches {
                return Err(JwtError::Claim("aud"));
            }
        }
        if sub.is_empty() {
            return Err(JwtError::Malformed("its `sub` is empty"));
        }
        Ok(Claims { subject: sub, expires_unix_s })
    }
}

impl Key {
    fn algorithm(&self) -> &'static str {
        match self {
            Self::Hs256(_) => "HS256",
            Self::Rs256(_) => "RS256",
            Self::EdDsa(_) => "EdDSA",
        }
    }

    fn verifies(&self, signed: &[u8], signature: &[u8]) -> bool {
        let (algorithm, key): (&dyn signature::VerificationAlgorithm, _) = match self {
            Self::Hs256(key) => return hmac::verify(key, signed, signature).is_ok(),
            Self::Rs256(key) => (&signature::RSA_PKCS1_2048_8192_SHA256, key),
            Self::EdDsa(key) => (&signature::ED25519, key),
        };
        signature::UnparsedPublicKey::new(algorithm, key).verify(signed, signature).is_ok()
    }
}

fn secret_key(path: &Path) -> Result<Key, JwtKeyError> {
    let read = |reason| JwtKeyError::Read { key: "secret", path: path.to_owned(), reason };
    let contents = std::fs::read(path).map_err(read)?;
    // Editors and `echo` append a newline.
    let secret = contents.strip_suffix(b"\n").unwrap_or(&contents);
    let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
    if secret.len() < MIN_SECRET_BYTES {
        return Err(JwtKeyError::ShortSecret { path: path.to_owned(), bytes: secret.len() });
    }
    Ok(Key::Hs256(hmac::Key::new(hmac::HMAC_SHA256, secret)))
}

fn public_keys(path: &Path) -> Result<Vec<Key>, JwtKeyError> {
    let read = |reason| JwtKeyError::Read { key: "public_key", path: path.to_owned(), reason };
    let wrong = |reason: &str| JwtKeyError::PublicKey { path: path.to_owned(), reason: reason.to_owned() };
    let contents = std::fs::read(path).map_err(read)?;
    let mut keys = Vec::new();
    for found in SubjectPublicKeyInfoDer::pem_slice_iter(&contents) {
        let found = found.map_err(|error| wrong(&error.to_string()))?;
        let (_, info) = SubjectPublicKeyInfo::from_der(&found)
            .map_err(|_| wrong("a `PUBLIC KEY` in it cannot be parsed"))?;
        let key: Box<[u8]> = info.subject_public_key.data.as_ref().into();
        keys.push(match info.algorithm.algorithm.to_id_string().as_str() {
            "1.2.840.113549.1.1.1" => Key::Rs256(key),
            "1.3.101.112" => Key::EdDsa(key),
            _ => return Err(wrong("a key in it is neither RSA (RS256) nor Ed25519 (EdDSA)")),
        });
    }
    match keys.is_empty() {
        true => Err(wrong("it has no `-----BEGIN PUBLIC KEY-----`")),
        false => Ok(keys),
    }
}

#[cfg(test)]
mod tests;
