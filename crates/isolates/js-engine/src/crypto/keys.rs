//! Keys of RSA, of the curves P-256 and P-384, and of Ed25519.
//!
//! Between calls a key is bytes: of RSA its PKCS #1 structure, of a curve the uncompressed point or the private number, of
//! Ed25519 the 32 bytes of RFC 8032. `kind` is `RSA`, `P-256`, `P-384` or `Ed25519`; `part` is `public` or `private`.

use ed25519_dalek as ed25519;
use rquickjs::{Ctx, TypedArray};
use rsa::pkcs1::{DecodeRsaPrivateKey, DecodeRsaPublicKey, EncodeRsaPrivateKey, EncodeRsaPublicKey};
use rsa::pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey, ObjectIdentifier, PrivateKeyInfo,
    SubjectPublicKeyInfoRef,
};
use rsa::traits::{PrivateKeyParts, PublicKeyParts};
use rsa::{BigUint, RsaPrivateKey, RsaPublicKey};

use crate::boundary::copy_view;

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// What comes before the bytes of an Ed25519 key in SPKI and PKCS #8 (RFC 8410).
const ED25519_SPKI: &[u8] = &[0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const ED25519_PKCS8: &[u8] =
    &[0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

type Bytes<'js> = TypedArray<'js, u8>;
type MaybeBytes<'js> = rquickjs::Result<Option<Bytes<'js>>>;

fn give<'js>(ctx: Ctx<'js>, bytes: Option<Vec<u8>>) -> MaybeBytes<'js> {
    bytes.map(|bytes| TypedArray::new(ctx, bytes)).transpose()
}

/// `(kind, format, bytes)`: the key in SPKI (a public one), PKCS #8 (a private one) or `raw`. Undefined if it is none.
pub fn decode<'js>(ctx: Ctx<'js>, kind: String, format: String, bytes: Bytes<'js>) -> MaybeBytes<'js> {
    let bytes = copy_view(&bytes);
    let key = match (kind.as_str(), format.as_str()) {
        ("RSA", "spki") => SubjectPublicKeyInfoRef::try_from(bytes.as_slice())
            .ok()
            .filter(|info| info.algorithm.oid == RSA)
            .and_then(|info| rsa_public(info.subject_public_key.raw_bytes())),
        ("RSA", "pkcs8") => PrivateKeyInfo::try_from(bytes.as_slice())
            .ok()
            .filter(|info| info.algorithm.oid == RSA)
            .and_then(|info| RsaPrivateKey::from_pkcs1_der(info.private_key).ok())
            .and_then(|key| rsa_private(&key)),
        ("P-256", "spki") => p256::PublicKey::from_public_key_der(&bytes).ok().map(|key| point256(&key)),
        ("P-256", "raw") => p256::PublicKey::from_sec1_bytes(&bytes).ok().map(|key| point256(&key)),
        ("P-256", "pkcs8") => {
            p256::SecretKey::from_pkcs8_der(&bytes).ok().map(|key| key.to_bytes().to_vec())
        }
        ("P-384", "spki") => p384::PublicKey::from_public_key_der(&bytes).ok().map(|key| point384(&key)),
        ("P-384", "raw") => p384::PublicKey::from_sec1_bytes(&bytes).ok().map(|key| point384(&key)),
        ("P-384", "pkcs8") => {
            p384::SecretKey::from_pkcs8_der(&bytes).ok().map(|key| key.to_bytes().to_vec())
        }
        ("Ed25519", "spki") => SubjectPublicKeyInfoRef::try_from(bytes.as_slice())
            .ok()
            .filter(|info| info.algorithm.oid == ED25519)
            .and_then(|info| ed25519_public(info.subject_public_key.raw_bytes())),
        ("Ed25519", "raw") => ed25519_public(&bytes),
        ("Ed25519", "pkcs8") => PrivateKeyInfo::try_from(bytes.as_slice())
            .ok()
            .filter(|info| info.algorithm.oid == ED25519)
            .and_then(|info| info.private_key.strip_prefix(&[0x04, 0x20]))
            .filter(|seed| seed.len() == 32)
            .map(<[u8]>::to_vec),
        _ => None,
    };
    give(ctx, key)
}

fn rsa_public(pkcs1: &[u8]) -> Option<Vec<u8>> {
    let key = RsaPublicKey::from_pkcs1_der(pkcs1).ok()?;
    Some(key.to_pkcs1_der().ok()?.as_bytes().to_vec())
}

fn rsa_private(key: &RsaPrivateKey) -> Option<Vec<u8>> {
    Some(key.to_pkcs1_der().ok()?.as_bytes().to_vec())
}

fn point256(key: &p256::PublicKey) -> Vec<u8> {
    p256::EncodedPoint::from(key).as_bytes().to_vec()
}

fn point384(key: &p384::PublicKey) -> Vec<u8> {
    p384::EncodedPoint::from(key).as_bytes().to_vec()
}

fn ed25519_public(bytes: &[u8]) -> Option<Vec<u8>> {
    let key = ed25519::VerifyingKey::from_bytes(bytes.try_into().ok()?).ok()?;
    Some(key.to_bytes().to_vec())
}

/// `(kind, format, key)`: a public key as SPKI, a private one as PKCS #8.
pub fn encode<'js>(ctx: Ctx<'js>, kind: String, format: String, key: Bytes<'js>) -> MaybeBytes<'js> {
    let key = copy_view(&key);
    let bytes = match (kind.as_str(), format.as_str()) {
        ("RSA", "spki") => RsaPublicKey::from_pkcs1_der(&key)
            .ok()
            .and_then(|key| key.to_public_key_der().ok())
            .map(|der| der.as_bytes().to_vec()),
        ("RSA", "pkcs8") => RsaPrivateKey::from_pkcs1_der(&key)
            .ok()
            .and_then(|key| key.to_pkcs8_der().ok())
            .map(|der| der.as_bytes().to_vec()),
        ("P-256", "spki") => p256::PublicKey::from_sec1_bytes(&key)
            .ok()
            .and_then(|key| key.to_public_key_der().ok())
            .map(|der| der.as_bytes().to_vec()),
        ("P-256", "pkcs8") => p256::SecretKey::from_slice(&key)
            .ok()
            .and_then(|key| key.to_pkcs8_der().ok())
            .map(|der| der.as_bytes().to_vec()),
        ("P-384", "spki") => p384::PublicKey::from_sec1_bytes(&key)
            .ok()
            .and_then(|key| key.to_public_key_der().ok())
            .map(|der| der.as_bytes().to_vec()),
        ("P-384", "pkcs8") => p384::SecretKey::from_slice(&key)
            .ok()
            .and_then(|key| key.to_pkcs8_der().ok())
            .map(|der| der.as_bytes().to_vec()),
        ("Ed25519", "spki") => Some([ED25519_SPKI, &key].concat()),
        ("Ed25519", "pkcs8") => Some([ED25519_PKCS8, &key].concat()),
        _ => None,
    };
    give(ctx, bytes)
}

/// `(kind, part, parts)`: the key of the numbers of a JWK, in the order of [`parts`]. Undefined if they are none.
pub fn from_parts<'js>(
    ctx: Ctx<'js>,
    kind: String,
    part: String,
    parts: Vec<Bytes<'js>>,
) -> MaybeBytes<'js> {
    let parts: Vec<Vec<u8>> = parts.iter().map(copy_view).collect();
    give(ctx, key_of_parts(&kind, &part, &parts))
}

fn key_of_parts(kind: &str, part: &str, parts: &[Vec<u8>]) -> Option<Vec<u8>> {
    let number = |index: usize| parts.get(index).map(|bytes| BigUint::from_bytes_be(bytes));
    match (kind, part) {
        ("RSA", "public") => {
            let key = RsaPublicKey::new(number(0)?, number(1)?).ok()?;
            Some(key.to_pkcs1_der().ok()?.as_bytes().to_vec())
        }
        ("RSA", "private") => {
            RsaPublicKey::new(number(0)?, number(1)?).ok()?;
            let primes = vec![number(3)?, number(4)?];
            rsa_private(&RsaPrivateKey::from_components(number(0)?, number(1)?, number(2)?, primes).ok()?)
        }
        ("Ed25519", "public") => ed25519_public(parts.first()?),
        ("Ed25519", "private") => {
            let seed: &[u8; 32] = parts.get(1)?.as_slice().try_into().ok()?;
            let key = ed25519::SigningKey::from_bytes(seed);
            (key.verifying_key().to_bytes().as_slice() == parts[0]).then(|| seed.to_vec())
        }
        (curve, part) => {
            let point = [&[4], parts.first()?.as_slice(), parts.get(1)?.as_slice()].concat();
            let public = match curve {
                "P-256" => point256(&p256::PublicKey::from_sec1_bytes(&point).ok()?),
                _ => point384(&p384::PublicKey::from_sec1_bytes(&point).ok()?),
            };
            if part == "public" {
                return Some(public);
            }
            let private = parts.get(2)?;
            (public_of(curve, private)? == public).then(|| private.clone())
        }
    }
}

/// `(kind, part, key)`: its numbers as bytes, as a JWK has them: of RSA n, e, and d, p, q, dp, dq, qi; of a curve x, y, and d; of
/// Ed25519 x, and d.
pub fn parts<'js>(
    ctx: Ctx<'js>,
    kind: String,
    part: String,
    key: Bytes<'js>,
) -> rquickjs::Result<Option<Vec<Bytes<'js>>>> {
    let key = copy_view(&key);
    let Some(parts) = parts_of(&kind, &part, &key) else { return Ok(None) };
    let parts = parts.into_iter().map(|bytes| TypedArray::new(ctx.clone(), bytes));
    parts.collect::<rquickjs::Result<Vec<_>>>().map(Some)
}

fn parts_of(kind: &str, part: &str, key: &[u8]) -> Option<Vec<Vec<u8>>> {
    let private = part == "private";
    match kind {
        "RSA" if private => {
            let key = RsaPrivateKey::from_pkcs1_der(key).ok()?;
            let [p, q] = key.primes() else { return None };
            let coefficient = key.crt_coefficient()?;
            let numbers = [key.n(), key.e(), key.d(), p, q, key.dp()?, key.dq()?, &coefficient];
            Some(numbers.iter().map(|number| number.to_bytes_be()).collect())
        }
        "RSA" => {
            let key = RsaPublicKey::from_pkcs1_der(key).ok()?;
            Some(vec![key.n().to_bytes_be(), key.e().to_bytes_be()])
        }
        "Ed25519" if private => Some(vec![public_of(kind, key)?, key.to_vec()]),
        "Ed25519" => Some(vec![key.to_vec()]),
        _ => {
            let point = if private { public_of(kind, key)? } else { key.to_vec() };
            let (x, y) = point.get(1..)?.split_at((point.len() - 1) / 2);
            let mut parts = vec![x.to_vec(), y.to_vec()];
            if private {
                parts.push(key.to_vec());
            }
            Some(parts)
        }
    }
}

/// `(kind, random bytes)`: a new private key. Undefined for the few bytes that are none.
pub fn from_seed<'js>(ctx: Ctx<'js>, kind: String, seed: Bytes<'js>) -> MaybeBytes<'js> {
    let seed = copy_view(&seed);
    let is_key = public_of(&kind, &seed).is_some();
    give(ctx, is_key.then_some(seed))
}

/// `(kind, private key)`: the public one.
pub fn public<'js>(ctx: Ctx<'js>, kind: String, key: Bytes<'js>) -> MaybeBytes<'js> {
    give(ctx, public_of(&kind, &copy_view(&key)))
}

fn public_of(kind: &str, private: &[u8]) -> Option<Vec<u8>> {
    match kind {
        "P-256" => Some(point256(&p256::SecretKey::from_slice(private).ok()?.public_key())),
        "P-384" => Some(point384(&p384::SecretKey::from_slice(private).ok()?.public_key())),
        "Ed25519" => {
            let key = ed25519::SigningKey::from_bytes(private.try_into().ok()?);
            Some(key.verifying_key().to_bytes().to_vec())
        }
        _ => {
            let key = RsaPrivateKey::from_pkcs1_der(private).ok()?.to_public_key();
            Some(key.to_pkcs1_der().ok()?.as_bytes().to_vec())
        }
    }
}
