//! The component of a Rust function.

use edgefaas_isolates::engine::EpochClock;
use wasmtime::component::{Component, Linker};
use wasmtime::{Engine, Store, StoreLimits};

use super::new_store;
use crate::functions;

#[allow(missing_docs)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "function",
        exports: { default: async },
    });
}
use bindings::edgefaas::function::types::{DirectCall, Trigger};
use bindings::{Event, Function, FunctionPre, Invocation, Reply};

/// A component, linked.
pub struct BareRust {
    engine: Engine,
    component: Component,
    pre: FunctionPre<StoreLimits>,
    clock: EpochClock,
}

/// An instance of a component.
pub struct BareRustInstance {
    store: Store<StoreLimits>,
    function: Function,
}

impl BareRust {
    /// Compiles it.
    pub fn new(engine: Engine, wasm: &[u8]) -> wasmtime::Result<Self> {
        let component = Component::new(&engine, wasm)?;
        let mut linker = Linker::new(&engine);
        // The functions call none of them.
        linker.define_unknown_imports_as_traps(&component)?;
        let pre = FunctionPre::new(linker.instantiate_pre(&component)?)?;
        Ok(Self { clock: EpochClock::start(engine.clone())?, engine, component, pre })
    }

    /// Its code.
    pub fn code(&self) -> &Component {
        &self.component
    }

    /// One invocation in an instance of its own.
    pub async fn run(&self, payload: &[u8]) -> wasmtime::Result<Vec<u8>> {
        let _running = self.clock.running();
        self.start().await?.call(payload).await
    }

    /// A new instance.
    pub async fn start(&self) -> wasmtime::Result<BareRustInstance> {
        let mut store = new_store(&self.engine);
        let function = self.pre.instantiate_async(&mut store).await?;
        Ok(BareRustInstance { store, function })
    }
}

impl BareRustInstance {
    /// Calls the function.
    pub async fn call(&mut self, payload: &[u8]) -> wasmtime::Result<Vec<u8>> {
        let meta = functions::meta();
        let invocation =
            Invocation { id: meta.id, function: meta.function, deadline_unix_ms: meta.deadline_unix_ms };
        let trigger = Trigger::Call(DirectCall { caller: None });
        let event = Event { trigger, body: payload.to_vec() };
        match self.function.call_handle(&mut self.store, &invocation, &event).await? {
            Ok(Reply::Bytes(bytes)) => Ok(bytes),
            other => wasmtime::bail!("the function answered {other:?}"),
        }
    }
}
