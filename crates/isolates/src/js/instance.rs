//! An instance of the engine on a memory of its own, with the functions that the node calls.

use wasmtime::{Global, Instance, Memory, ModuleExport, Store, TypedFunc, Val, WasmParams, WasmResults};

use super::engine::JsEngine;
use super::snapshot::Snapshot;
use super::state::State;

/// An instance of the engine. It belongs to one store.
pub(super) struct JsInstance {
    pub memory: Memory,
    /// `(bytes) -> address` of a buffer.
    pub alloc: TypedFunc<u32, u32>,
    /// `(address, bytes) -> message`.
    pub invoke: TypedFunc<(u32, u32), u64>,
    /// `(ticket, address, bytes)`.
    pub resolve: TypedFunc<(u32, u32, u32), ()>,
    /// `() -> message`.
    pub run_jobs: TypedFunc<(), u64>,
    /// Forgets the last invocation, for another one in the same memory.
    pub reset: TypedFunc<(), ()>,
    stack_pointer: Global,
    stack_top: i32,
}

impl JsInstance {
    /// Starts an instance on a copy of the snapshot's memory.
    pub async fn start(
        engine: &JsEngine,
        snapshot: &Snapshot,
        store: &mut Store<State>,
    ) -> wasmtime::Result<Self> {
        let (instance, memory) = snapshot.start(&engine.code, store).await?;
        let exports = &engine.exports;
        let stack_pointer = instance.get_module_export(&mut *store, &exports.stack_pointer);
        let Some(stack_pointer) = stack_pointer.and_then(|export| export.into_global()) else {
            wasmtime::bail!("the engine lacks an export");
        };
        Ok(Self {
            memory,
            alloc: function(instance, store, &exports.alloc)?,
            invoke: function(instance, store, &exports.invoke)?,
            resolve: function(instance, store, &exports.resolve)?,
            run_jobs: function(instance, store, &exports.run_jobs)?,
            reset: function(instance, store, &exports.reset)?,
            stack_top: address(stack_pointer.get(&mut *store))?,
            stack_pointer,
        })
    }

    /// The address at which the stack begins; it grows down.
    pub fn stack_top(&self) -> usize {
        self.stack_top.cast_unsigned() as usize
    }

    /// True if the stack is empty, as it was when the instance was new.
    pub fn has_empty_stack(&self, store: &mut Store<State>) -> bool {
        address(self.stack_pointer.get(store)).is_ok_and(|at| at == self.stack_top)
    }
}

fn address(value: Val) -> wasmtime::Result<i32> {
    value.i32().ok_or_else(|| wasmtime::format_err!("the engine's stack pointer is no address"))
}

fn function<P: WasmParams, R: WasmResults>(
    instance: Instance,
    store: &mut Store<State>,
    export: &ModuleExport,
) -> wasmtime::Result<TypedFunc<P, R>> {
    let function = instance.get_module_export(&mut *store, export).and_then(|export| export.into_func());
    match function {
        Some(function) => function.typed(&*store),
        None => wasmtime::bail!("the engine lacks an export"),
    }
}
