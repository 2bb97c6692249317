//! The work behind `crypto.subtle`. It is done in the isolate: its processor time and memory are those of the invocation,
//! and a key that is made to break a parser breaks nothing else.

mod keys;
mod secret;
mod signatures;

use rand_core::{CryptoRng, RngCore};
use rquickjs::{Ctx, Function, Object};

use crate::boundary;

/// Adds the functions to the natives.
pub fn define<'js>(ctx: &Ctx<'js>, natives: &Object<'js>) -> rquickjs::Result<()> {
    macro_rules! define {
        ($($name:literal => $function:expr),* $(,)?) => {
            $( natives.set($name, Function::new(ctx.clone(), $function)?)?; )*
        };
    }
    define! {
        "digest" => secret::digest,
        "hmac" => secret::hmac,
        "hmacIs" => secret::hmac_is,
        "aes" => secret::aes,
        "hkdf" => secret::hkdf,
        "pbkdf2" => secret::pbkdf2,
        "keyOf" => keys::decode,
        "keyAs" => keys::encode,
        "keyOfParts" => keys::from_parts,
        "keyParts" => keys::parts,
        "keyOfSeed" => keys::from_seed,
        "publicKey" => keys::public,
        "keySign" => signatures::sign,
        "keyVerify" => signatures::verify,
    }
    Ok(())
}

/// Random numbers of the node.
struct NodeRng;

impl CryptoRng for NodeRng {}

impl RngCore for NodeRng {
    fn next_u32(&mut self) -> u32 {
        rand_core::impls::next_u32_via_fill(self)
    }

    fn next_u64(&mut self) -> u64 {
        rand_core::impls::next_u64_via_fill(self)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&boundary::random(bytes.len()));
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand_core::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}
