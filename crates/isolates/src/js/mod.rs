//! JavaScript and TypeScript functions on one shared engine.
//!
//! At deploy, [`JsEngine::prepare`] evaluates a function's modules in an instance of the engine and keeps a
//! picture of its memory: a [`JsProgram`]. Every [`JsEngine::run`] starts from a copy-on-write copy of that
//! picture, so nothing that one invocation leaves behind is seen by another, and nothing is parsed or
//! evaluated again. The engine itself is one precompiled module (`js-engine/engine.wasm`).

mod calls;
mod error;
mod evaluate;
mod graph;
mod messages;
mod program;
mod runtime;
pub(crate) mod snapshot;
mod stack;
mod transpile;

pub use error::{DeployMemory, PrepareError};
pub(crate) use evaluate::run_task;
pub(crate) use graph::gather;
pub use graph::{CollectError, collect, collect_in_child};
pub use program::{JsEngine, JsEngineError, JsProgram, Script, engine_code_wasm};
pub(crate) use runtime::WarmJs;
pub use transpile::{SyntaxError, check};
