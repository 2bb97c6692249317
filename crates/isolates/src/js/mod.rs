//! JavaScript and TypeScript functions on one shared engine.
//!
//! At deploy, [`JsEngine::prepare`] evaluates a function's modules in an instance of the engine and makes a snapshot of its
//! memory: a [`JsProgram`]. Every [`JsEngine::run`] starts from a copy-on-write copy of the snapshot, in a new instance or in
//! one that was [reset](clean) to it: no invocation sees the memory of another one, and nothing is parsed or evaluated
//! again. The engine itself is one precompiled module
//! (`js-engine/engine.wasm`).

mod blocking;
mod calls;
mod clean;
mod engine;
mod engine_wasm;
mod error;
mod evaluate;
mod fetched;
mod graph;
mod guest_clock;
mod instance;
mod libraries;
mod loaded_snapshots;
mod messages;
mod program;
mod runtime;
mod script_task;
mod snapshot;
mod stack;
mod state;
mod tickets;
mod transpile;
mod zones;

pub use clean::Audit;
pub use engine::{JsEngine, JsEngineError, engine_code_wasm};
pub use engine_wasm::{SplitError, SplitFault};
pub use error::{DeployMemory, PrepareError, PrepareFault};
pub(crate) use graph::gather_all;
pub use graph::{
    CollectError, SourceFileError, TEST_MODULE, TEST_MODULE_PATH, collect, collect_all_in_child,
};
pub(crate) use program::PreparedScript;
pub use program::{JsProgram, Script};
pub(crate) use runtime::WarmJs;
pub(crate) use script_task::{TaskError, batches, parallel_children, run_task};
pub use transpile::{SyntaxError, check};
