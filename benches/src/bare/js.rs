//! The JavaScript engine's own steps: a data-only module with the memory of the evaluated function, the engine's code on it,
//! the message in, the call, the answer out.

use std::time::{SystemTime, UNIX_EPOCH};

use edgefaas_isolates::engine::EpochClock;
use edgefaas_isolates::js::engine_code_wasm;
use edgefaas_js_abi as abi;
use wasm_encoder::{
    ConstExpr, DataSection, EntityType, ExportKind, ExportSection, ImportSection, MemorySection,
    MemoryType, TypeSection, ValType,
};
use wasmtime::{
    Engine, Extern, ExternType, Instance, InstancePre, Linker, Memory, Module, ModuleExport, Store,
    StoreLimits, TypedFunc,
};

use super::new_store;
use crate::functions;

/// The engine with its memory, as it comes out of its recipe.
static ENGINE_WASM: &[u8] = include_bytes!("../../../crates/isolates/js-engine/engine.wasm");

/// The stack, at the lower end of its memory, as its recipe says. Nothing on it is alive between calls.
const STACK_BYTES: usize = 1 << 20;
const WASM_PAGE_BYTES: usize = 64 << 10;
/// Zeros that are left out of the data come in runs of at least this.
const RUN_BYTES: usize = 1024;

/// A JavaScript function, evaluated.
pub struct BareJs {
    engine: Engine,
    clock: EpochClock,
    data: InstancePre<StoreLimits>,
    memory: ModuleExport,
    /// What the code imports, in its order, as exports of the data module.
    imports: Vec<ModuleExport>,
    code: Module,
    invoke: ModuleExport,
    /// Where the message goes.
    input: usize,
}

/// An instance of a JavaScript function.
pub struct BareJsInstance {
    store: Store<StoreLimits>,
    memory: Memory,
    invoke: TypedFunc<(u32, u32), u64>,
    input: usize,
}

impl BareJs {
    /// Evaluates the function's source in an engine and keeps its memory.
    pub async fn new(engine: Engine, source: &str) -> wasmtime::Result<Self> {
        let clock = EpochClock::start(engine.clone())?;
        let running = clock.running();
        let (image, input) = evaluate(&engine, source).await?;
        drop(running);

        let code = Module::new(&engine, engine_code_wasm()?)?;
        let picture = Module::new(&engine, data_module(&code, &image)?)?;
        let mut linker = Linker::new(&engine);
        define_functions(&mut linker)?;
        linker.define_unknown_imports_as_traps(&picture)?;
        let export = |module: &Module, name: &str| {
            module.get_export_index(name).ok_or_else(|| wasmtime::format_err!("there is no export {name}"))
        };
        let imports = code.imports().map(|import| export(&picture, import.name()));
        Ok(Self {
            imports: imports.collect::<wasmtime::Result<_>>()?,
            memory: export(&picture, "memory")?,
            data: linker.instantiate_pre(&picture)?,
            invoke: export(&code, "invoke")?,
            engine,
            clock,
            code,
            input,
        })
    }

    /// The code that all functions share.
    pub fn code(&self) -> &Module {
        &self.code
    }

    /// One invocation in an instance of its own.
    pub async fn run(&self, payload: &[u8]) -> wasmtime::Result<Vec<u8>> {
        let _running = self.clock.running();
        self.start().await?.call(payload).await
    }

    /// A new instance.
    pub async fn start(&self) -> wasmtime::Result<BareJsInstance> {
        let mut store = new_store(&self.engine);
        let data = self.data.instantiate_async(&mut store).await?;
        let found = self.imports.iter().map(|export| data.get_module_export(&mut store, export));
        let imports: Option<Vec<Extern>> = found.collect();
        let imports = imports.ok_or_else(|| wasmtime::format_err!("the data module lacks an export"))?;
        let memory = data.get_module_export(&mut store, &self.memory).and_then(Extern::into_memory);
        let memory = memory.ok_or_else(|| wasmtime::format_err!("there is no memory"))?;
        let instance = Instance::new_async(&mut store, &self.code, &imports).await?;
        let invoke = instance.get_module_export(&mut store, &self.invoke).and_then(Extern::into_func);
        let invoke = invoke.ok_or_else(|| wasmtime::format_err!("there is no invoke"))?;
        let invoke = invoke.typed(&store)?;
        Ok(BareJsInstance { store, memory, invoke, input: self.input })
    }
}

impl BareJsInstance {
    /// Calls the function.
    pub async fn call(&mut self, payload: &[u8]) -> wasmtime::Result<Vec<u8>> {
        let Self { store, memory, invoke, input } = self;
        let meta = functions::meta();
        let message = abi::encode(&abi::Invocation {
            id: &meta.id,
            function: &meta.function,
            deadline_unix_ms: meta.deadline_unix_ms,
            seed: 1,
            trigger: abi::Trigger::Call { caller: None },
            body: payload,
        })?;
        memory.write(&mut *store, *input, &message)?;
        let packed = invoke.call_async(&mut *store, (*input as u32, message.len() as u32)).await?;
        match abi::decode(answer(*memory, store, packed))? {
            abi::Outcome::Done(abi::Reply::Bytes(bytes)) => Ok(bytes.to_vec()),
            abi::Outcome::Done(abi::Reply::Text(text)) => Ok(text.as_bytes().to_vec()),
            other => wasmtime::bail!("the function answered {other:?}"),
        }
    }
}

/// The memory after the function's top-level code, and where messages go.
async fn evaluate(engine: &Engine, source: &str) -> wasmtime::Result<(Vec<u8>, usize)> {
    let whole = Module::new(engine, ENGINE_WASM)?;
    let mut store = new_store(engine);
    let mut linker = Linker::new(engine);
    define_functions(&mut linker)?;
    let mut memory = None;
    for import in whole.imports() {
        if let ExternType::Memory(ty) = import.ty() {
            let made = Memory::new_async(&mut store, ty).await?;
            linker.define(&store, import.module(), import.name(), made)?;
            memory = Some(made);
        }
    }
    let memory = memory.ok_or_else(|| wasmtime::format_err!("the engine imports no memory"))?;
    linker.define_unknown_imports_as_traps(&whole)?;
    let instance = linker.instantiate_async(&mut store, &whole).await?;
    let init: TypedFunc<(), ()> = instance.get_typed_func(&mut store, "engine_init")?;
    init.call_async(&mut store, ()).await?;
    let input: TypedFunc<(), u32> = instance.get_typed_func(&mut store, "input")?;
    let input = input.call_async(&mut store, ()).await?;

    let modules = vec![abi::Source { path: "echo.js", code: source, imports: Vec::new() }];
    let load = abi::encode(&abi::Load { entry: "echo.js", modules, seed: 1 })?;
    let alloc: TypedFunc<u32, u32> = instance.get_typed_func(&mut store, "alloc")?;
    let at = alloc.call_async(&mut store, load.len() as u32).await?;
    memory.write(&mut store, at as usize, &load)?;
    let run: TypedFunc<(u32, u32), u64> = instance.get_typed_func(&mut store, "load")?;
    let packed = run.call_async(&mut store, (at, load.len() as u32)).await?;
    let loaded: abi::Loaded = abi::decode(answer(memory, &store, packed))?;
    wasmtime::ensure!(loaded == abi::Loaded::Ready, "the function is not ready: {loaded:?}");
    let mut image = memory.data(&store).to_vec();
    image[..STACK_BYTES].fill(0);
    Ok((image, input as usize))
}

fn answer(memory: Memory, store: &Store<StoreLimits>, packed: u64) -> &[u8] {
    let (at, length) = ((packed >> 32) as usize, packed as u32 as usize);
    &memory.data(store)[at..at + length]
}

/// Those that the engine calls without being asked; the others trap.
fn define_functions(linker: &mut Linker<StoreLimits>) -> wasmtime::Result<()> {
    linker.func_wrap("env", "__rquickjs_host_now_us", || -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as f64
    })?;
    Ok(())
}

/// A module without code that exports a memory with `image` in it, and what else `code` imports.
fn data_module(code: &Module, image: &[u8]) -> wasmtime::Result<Vec<u8>> {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    let mut exports = ExportSection::new();
    let mut count = 0;
    for import in code.imports() {
        let ExternType::Func(ty) = import.ty() else { continue };
        let params = ty.params().map(value_type).collect::<wasmtime::Result<Vec<_>>>()?;
        let results = ty.results().map(value_type).collect::<wasmtime::Result<Vec<_>>>()?;
        types.ty().function(params, results);
        imports.import(import.module(), import.name(), EntityType::Function(count));
        exports.export(import.name(), ExportKind::Func, count);
        count += 1;
    }
    exports.export("memory", ExportKind::Memory, 0);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: (image.len() / WASM_PAGE_BYTES) as u64,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut data = DataSection::new();
    for (number, run) in image.chunks(RUN_BYTES).enumerate() {
        if run.iter().any(|byte| *byte != 0) {
            let at = ConstExpr::i32_const((number * RUN_BYTES) as i32);
            data.active(0, &at, run.iter().copied());
        }
    }
    let mut module = wasm_encoder::Module::new();
    module.section(&types).section(&imports).section(&memories).section(&exports).section(&data);
    Ok(module.finish())
}

fn value_type(ty: wasmtime::ValType) -> wasmtime::Result<ValType> {
    match ty {
        wasmtime::ValType::I32 => Ok(ValType::I32),
        wasmtime::ValType::I64 => Ok(ValType::I64),
        wasmtime::ValType::F64 => Ok(ValType::F64),
        other => wasmtime::bail!("an import uses {other}"),
    }
}
