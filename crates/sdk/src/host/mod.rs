//! The border to the node: the imports of the function world in an isolate, memory in native tests.

#[cfg(not(target_arch = "wasm32"))]
mod native;
#[cfg(target_arch = "wasm32")]
pub(crate) mod wasm;

#[cfg(not(target_arch = "wasm32"))]
pub(crate) use native::{Call, Fetch, Host, wait_any};
#[cfg(not(target_arch = "wasm32"))]
pub use native::{Published, TestNode};
#[cfg(target_arch = "wasm32")]
pub(crate) use wasm::{Call, Fetch, Host, wait_any};
