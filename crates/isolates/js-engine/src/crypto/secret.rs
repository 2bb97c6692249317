//! Hashes, HMAC, AES and the derivation of keys.

use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyInit, KeyIvInit, block_padding::Pkcs7};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::{Aead, Payload, consts::U12};
use hkdf::Hkdf;
use hmac::digest::KeyInit as MacKeyInit;
use hmac::{Hmac, Mac};
use pbkdf2::pbkdf2_hmac;
use rquickjs::{Ctx, TypedArray};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha384, Sha512};

use crate::boundary::copy_view;

/// The digest of bytes; `hash` is one of the four names, which the caller has checked.
pub fn hash_of(hash: &str, bytes: &[u8]) -> Vec<u8> {
    match hash {
        "SHA-1" => Sha1::digest(bytes).to_vec(),
        "SHA-256" => Sha256::digest(bytes).to_vec(),
        "SHA-384" => Sha384::digest(bytes).to_vec(),
        _ => Sha512::digest(bytes).to_vec(),
    }
}

/// The digest of `bytes`; `hash` was checked before.
pub fn digest<'js>(
    ctx: Ctx<'js>,
    hash: String,
    bytes: TypedArray<'js, u8>,
) -> rquickjs::Result<TypedArray<'js, u8>> {
    TypedArray::new(ctx, hash_of(&hash, &copy_view(&bytes)))
}

/// Calls `$then` with an HMAC over `$data`.
macro_rules! with_hmac {
    ($hash:expr, $key:expr, $data:expr, $then:expr) => {{
        fn run<M: Mac + MacKeyInit, R>(key: &[u8], data: &[u8], then: impl FnOnce(M) -> R) -> R {
            let mut mac = <M as Mac>::new_from_slice(key).expect("HMAC takes keys of any length");
            mac.update(data);
            then(mac)
        }
        let (key, data) = (copy_view(&$key), copy_view(&$data));
        match $hash.as_str() {
            "SHA-1" => run::<Hmac<Sha1>, _>(&key, &data, $then),
            "SHA-256" => run::<Hmac<Sha256>, _>(&key, &data, $then),
            "SHA-384" => run::<Hmac<Sha384>, _>(&key, &data, $then),
            _ => run::<Hmac<Sha512>, _>(&key, &data, $then),
        }
    }};
}

/// The HMAC of `data`.
pub fn hmac<'js>(
    ctx: Ctx<'js>,
    hash: String,
    key: TypedArray<'js, u8>,
    data: TypedArray<'js, u8>,
) -> rquickjs::Result<TypedArray<'js, u8>> {
    let code = with_hmac!(hash, key, data, |mac| mac.finalize().into_bytes().to_vec());
    TypedArray::new(ctx, code)
}

/// Whether `code` is the HMAC of `data`; takes as long wherever they differ.
pub fn hmac_is<'js>(
    hash: String,
    key: TypedArray<'js, u8>,
    data: TypedArray<'js, u8>,
    code: TypedArray<'js, u8>,
) -> bool {
    let code = copy_view(&code);
    with_hmac!(hash, key, data, |mac| mac.verify_slice(&code).is_ok())
}

/// Runs one mode of a cipher.
macro_rules! with_aes {
    ($cipher:ty, $mode:expr, $key:expr, $iv:expr, $additional:expr, $data:expr) => {{
        let payload = Payload { msg: $data, aad: $additional };
        match $mode.as_str() {
            "gcm+" => AesGcm::<$cipher, U12>::new_from_slice($key)
                .ok()
                .and_then(|gcm| gcm.encrypt($iv.as_slice().into(), payload).ok()),
            "gcm-" => AesGcm::<$cipher, U12>::new_from_slice($key)
                .ok()
                .and_then(|gcm| gcm.decrypt($iv.as_slice().into(), payload).ok()),
            "cbc+" => cbc::Encryptor::<$cipher>::new_from_slices($key, $iv)
                .ok()
                .map(|cbc| cbc.encrypt_padded_vec_mut::<Pkcs7>($data)),
            _ => cbc::Decryptor::<$cipher>::new_from_slices($key, $iv)
                .ok()
                .and_then(|cbc| cbc.decrypt_padded_vec_mut::<Pkcs7>($data).ok()),
        }
    }};
}

/// `(mode, key, iv, additional data, data)`: encrypts or decrypts by `gcm+`, `gcm-`, `cbc+` or `cbc-`. Undefined if the data
/// was changed or has a wrong length. The caller has checked the sizes of key and iv.
pub fn aes<'js>(
    ctx: Ctx<'js>,
    mode: String,
    key: TypedArray<'js, u8>,
    iv: TypedArray<'js, u8>,
    additional: TypedArray<'js, u8>,
    data: TypedArray<'js, u8>,
) -> rquickjs::Result<Option<TypedArray<'js, u8>>> {
    let (key, iv, additional, data) =
        (copy_view(&key), copy_view(&iv), copy_view(&additional), copy_view(&data));
    let bytes = match key.len() {
        16 => with_aes!(Aes128, &mode, &key, &iv, &additional, &data),
        24 => with_aes!(Aes192, &mode, &key, &iv, &additional, &data),
        _ => with_aes!(Aes256, &mode, &key, &iv, &additional, &data),
    };
    bytes.map(|bytes| TypedArray::new(ctx, bytes)).transpose()
}

/// `(hash, key, salt, info, length)`; undefined if more bytes are asked for than the hash gives.
pub fn hkdf<'js>(
    ctx: Ctx<'js>,
    hash: String,
    key: TypedArray<'js, u8>,
    salt: TypedArray<'js, u8>,
    info: TypedArray<'js, u8>,
    length: u32,
) -> rquickjs::Result<Option<TypedArray<'js, u8>>> {
    let (key, salt, info) = (copy_view(&key), copy_view(&salt), copy_view(&info));
    let mut bytes = vec![0; length as usize];
    let expanded = match hash.as_str() {
        "SHA-1" => Hkdf::<Sha1>::new(Some(&salt), &key).expand(&info, &mut bytes),
        "SHA-256" => Hkdf::<Sha256>::new(Some(&salt), &key).expand(&info, &mut bytes),
        "SHA-384" => Hkdf::<Sha384>::new(Some(&salt), &key).expand(&info, &mut bytes),
        _ => Hkdf::<Sha512>::new(Some(&salt), &key).expand(&info, &mut bytes),
    };
    expanded.ok().map(|()| TypedArray::new(ctx, bytes)).transpose()
}

/// `(hash, password, salt, iterations, length)`.
pub fn pbkdf2<'js>(
    ctx: Ctx<'js>,
    hash: String,
    password: TypedArray<'js, u8>,
    salt: TypedArray<'js, u8>,
    iterations: u32,
    length: u32,
) -> rquickjs::Result<TypedArray<'js, u8>> {
    let (password, salt) = (copy_view(&password), copy_view(&salt));
    let mut bytes = vec![0; length as usize];
    match hash.as_str() {
        "SHA-1" => pbkdf2_hmac::<Sha1>(&password, &salt, iterations, &mut bytes),
        "SHA-256" => pbkdf2_hmac::<Sha256>(&password, &salt, iterations, &mut bytes),
        "SHA-384" => pbkdf2_hmac::<Sha384>(&password, &salt, iterations, &mut bytes),
        _ => pbkdf2_hmac::<Sha512>(&password, &salt, iterations, &mut bytes),
    }
    TypedArray::new(ctx, bytes)
}
