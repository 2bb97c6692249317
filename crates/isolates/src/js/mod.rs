//! JavaScript and TypeScript functions on one shared engine.
//!
//! At deploy, [`JsEngine::prepare`] evaluates a function's modules in an instance of the engine and keeps a
//! picture of its memory: a [`JsProgram`]. Every [`JsEngine::run`] starts from a copy-on-write copy of that
//! picture, so nothing that one invocation leaves behind is seen by another, and nothing is parsed or
//! evaluated again. The engine itself is one precompiled module (`js-engine/engine.wasm`).

mod calls;
mod graph;
mod messages;
mod nesting;
mod program;
mod runtime;
pub(crate) mod snapshot;
mod stack;
mod transpile;

pub use graph::{CollectError, collect};
pub use program::{JsEngine, JsEngineError, JsProgram, PrepareError, Script, engine_code_wasm};
pub(crate) use runtime::WarmJs;
pub use transpile::SyntaxError;
