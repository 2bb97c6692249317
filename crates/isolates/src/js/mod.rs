//! shim
use crate::engine::PoolConfig;
use crate::*;
#[derive(Debug, thiserror::Error)]
#[error("shim")]
pub struct PrepareError;
#[derive(Debug, thiserror::Error)]
#[error("shim")]
pub struct JsEngineError;
#[derive(Debug, thiserror::Error)]
#[error("shim")]
pub struct CollectError;
pub struct JsEngine;
#[derive(Clone)]
pub struct JsProgram;
pub fn engine_code_wasm() -> Result<Vec<u8>, JsEngineError> {
    Err(JsEngineError)
}
pub fn collect(_: &std::path::Path, _: &std::path::Path) -> Result<ModuleGraph, CollectError> {
    Err(CollectError)
}
impl JsEngine {
    pub fn new(_: &wasmtime::Engine, _: wasmtime::Module, _: PoolConfig) -> Result<Self, JsEngineError> {
        Err(JsEngineError)
    }
    pub async fn prepare(&self, _: &ModuleGraph) -> Result<JsProgram, PrepareError> {
        Err(PrepareError)
    }
    pub async fn run(
        &self,
        _: &JsProgram,
        _: &InvocationMeta,
        _: Event,
        _: Limits,
        _: Box<dyn Host>,
    ) -> Completion {
        unreachable!()
    }
}
