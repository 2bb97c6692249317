//! Signatures by RSA, ECDSA and Ed25519. Those of ECDSA are `r` and `s` one after the other.

use ed25519_dalek::{Signer, Verifier};
use p256::ecdsa::signature::hazmat::{PrehashSigner, PrehashVerifier};
use rquickjs::{Ctx, TypedArray};
use rsa::pkcs1::{DecodeRsaPrivateKey, DecodeRsaPublicKey};
use rsa::{Pkcs1v15Sign, Pss, RsaPrivateKey, RsaPublicKey};
use sha1::Sha1;
use sha2::{Sha256, Sha384, Sha512};

use super::NodeRng;
use super::secret::hash_of;
use crate::boundary::copy_view;

/// `(scheme, hash, length of the salt, private key, data)`: a signature. The scheme is `PKCS1`, `PSS`, or the kind of another key.
/// Undefined if the key cannot sign a hash of that size.
pub fn sign<'js>(
    ctx: Ctx<'js>,
    scheme: String,
    hash: String,
    salt_bytes: u32,
    key: TypedArray<'js, u8>,
    data: TypedArray<'js, u8>,
) -> rquickjs::Result<Option<TypedArray<'js, u8>>> {
    let signature = signature(&scheme, &hash, salt_bytes as usize, &copy_view(&key), &copy_view(&data));
    signature.map(|bytes| TypedArray::new(ctx, bytes)).transpose()
}

fn signature(scheme: &str, hash: &str, salt_bytes: usize, key: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    match scheme {
        "PKCS1" => {
            let key = RsaPrivateKey::from_pkcs1_der(key).ok()?;
            key.sign_with_rng(&mut NodeRng, pkcs1(hash), &hash_of(hash, data)).ok()
        }
        "PSS" => {
            let key = RsaPrivateKey::from_pkcs1_der(key).ok()?;
            key.sign_with_rng(&mut NodeRng, pss(hash, salt_bytes), &hash_of(hash, data)).ok()
        }
        "P-256" => {
            let key = p256::ecdsa::SigningKey::from_slice(key).ok()?;
            let signature: p256::ecdsa::Signature = key.sign_prehash(&hash_of(hash, data)).ok()?;
            Some(signature.to_bytes().to_vec())
        }
        "P-384" => {
            let key = p384::ecdsa::SigningKey::from_slice(key).ok()?;
            let signature: p384::ecdsa::Signature = key.sign_prehash(&hash_of(hash, data)).ok()?;
            Some(signature.to_bytes().to_vec())
        }
        _ => {
            let key = ed25519_dalek::SigningKey::from_bytes(key.try_into().ok()?);
            Some(key.sign(data).to_bytes().to_vec())
        }
    }
}

/// `(scheme, hash, length of the salt, public key, signature, data)`: true if it is a signature of the data.
pub fn verify<'js>(
    scheme: String,
    hash: String,
    salt_bytes: u32,
    key: TypedArray<'js, u8>,
    signature: TypedArray<'js, u8>,
    data: TypedArray<'js, u8>,
) -> bool {
    let (key, signature, data) = (copy_view(&key), copy_view(&signature), copy_view(&data));
    is_signature(&scheme, &hash, salt_bytes as usize, &key, &signature, &data).is_some()
}

fn is_signature(
    scheme: &str,
    hash: &str,
    salt_bytes: usize,
    key: &[u8],
    signature: &[u8],
    data: &[u8],
) -> Option<()> {
    match scheme {
        "PKCS1" => {
            let key = RsaPublicKey::from_pkcs1_der(key).ok()?;
            key.verify(pkcs1(hash), &hash_of(hash, data), signature).ok()
        }
        "PSS" => {
            let key = RsaPublicKey::from_pkcs1_der(key).ok()?;
            key.verify(pss(hash, salt_bytes), &hash_of(hash, data), signature).ok()
        }
        "P-256" => {
            let key = p256::ecdsa::VerifyingKey::from_sec1_bytes(key).ok()?;
            let signature = p256::ecdsa::Signature::from_slice(signature).ok()?;
            key.verify_prehash(&hash_of(hash, data), &signature).ok()
        }
        "P-384" => {
            let key = p384::ecdsa::VerifyingKey::from_sec1_bytes(key).ok()?;
            let signature = p384::ecdsa::Signature::from_slice(signature).ok()?;
            key.verify_prehash(&hash_of(hash, data), &signature).ok()
        }
        _ => {
            let key = ed25519_dalek::VerifyingKey::from_bytes(key.try_into().ok()?).ok()?;
            let signature = ed25519_dalek::Signature::from_slice(signature).ok()?;
            key.verify(data, &signature).ok()
        }
    }
}

fn pkcs1(hash: &str) -> Pkcs1v15Sign {
    match hash {
        "SHA-1" => Pkcs1v15Sign::new::<Sha1>(),
        "SHA-256" => Pkcs1v15Sign::new::<Sha256>(),
        "SHA-384" => Pkcs1v15Sign::new::<Sha384>(),
        _ => Pkcs1v15Sign::new::<Sha512>(),
    }
}

fn pss(hash: &str, salt_bytes: usize) -> Pss {
    match hash {
        "SHA-1" => Pss::new_blinded_with_salt::<Sha1>(salt_bytes),
        "SHA-256" => Pss::new_blinded_with_salt::<Sha256>(salt_bytes),
        "SHA-384" => Pss::new_blinded_with_salt::<Sha384>(salt_bytes),
        _ => Pss::new_blinded_with_salt::<Sha512>(salt_bytes),
    }
}
