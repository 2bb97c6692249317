//! The engine's wasm taken apart into code and memory, and memory put together into a module again.

use bytes::Bytes;
use wasm_encoder::{
    ConstExpr, DataSection, Encode, EntityType, ExportKind, ExportSection, ImportSection, MemorySection,
    MemoryType, Module, RawSection, TypeSection, ValType,
};
use wasmparser::{DataKind, Operator, Parser, Payload, TypeRef};

/// Bytes of a wasm page.
pub const PAGE_BYTES: usize = 64 << 10;

/// Runs of zeros at least this long are left out of a snapshot.
const ZERO_RUN_BYTES: usize = 1024;

/// The engine's wasm is not what its build recipe makes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the JavaScript engine's wasm cannot be used: {0}")]
pub struct SplitError(String);

/// The engine's wasm in two parts.
#[derive(Debug)]
pub struct Parts {
    /// Everything but the start, data and datacount sections. The start section would clear the zeroed
    /// part of the memory, and with it the snapshot.
    pub code: Vec<u8>,
    /// The memory before the first instruction; whole pages.
    pub memory: Vec<u8>,
    /// Where the stack begins; it grows down to 0.
    pub stack_top: usize,
}

/// Takes the engine's wasm apart.
pub fn split(wasm: &[u8]) -> Result<Parts, SplitError> {
    let fault = |reason: &str| SplitError(reason.to_owned());
    let invalid = |error: wasmparser::BinaryReaderError| SplitError(error.to_string());
    let mut code = Module::new();
    let mut memory = Vec::new();
    let mut stack_top = None;
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload.map_err(invalid)?;
        match &payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone().into_imports() {
                    if let TypeRef::Memory(ty) = import.map_err(invalid)?.ty {
                        let pages =
                            usize::try_from(ty.initial).map_err(|_| fault("its memory is too large"))?;
                        memory = vec![0; pages * PAGE_BYTES];
                    }
                }
            }
            Payload::GlobalSection(globals) => {
                for global in globals.clone() {
                    let global = global.map_err(invalid)?;
                    if global.ty.mutable {
                        stack_top = constant(&global.init_expr);
                    }
                }
            }
            Payload::DataSection(segments) => {
                for segment in segments.clone() {
                    let segment = segment.map_err(invalid)?;
                    let DataKind::Active { memory_index: 0, offset_expr } = segment.kind else {
                        return Err(fault("a data segment is not active"));
                    };
                    let at =
                        constant(&offset_expr).ok_or_else(|| fault("a segment's place is not constant"))?;
                    memory
                        .get_mut(at..at + segment.data.len())
                        .ok_or_else(|| fault("a data segment lies outside of the memory"))?
                        .copy_from_slice(segment.data);
                }
                continue;
            }
            Payload::StartSection { .. } | Payload::DataCountSection { .. } => continue,
            _ => {}
        }
        if let Some((id, range)) = payload.as_section() {
            code.section(&RawSection { id, data: &wasm[range] });
        }
    }
    if memory.is_empty() {
        return Err(fault("it imports no memory"));
    }
    let stack_top = stack_top.filter(|top| *top <= memory.len());
    let stack_top = stack_top.ok_or_else(|| fault("it has no stack pointer"))?;
    Ok(Parts { code: code.finish(), memory, stack_top })
}

fn constant(expression: &wasmparser::ConstExpr<'_>) -> Option<usize> {
    match expression.get_operators_reader().read().ok()? {
        Operator::I32Const { value } => usize::try_from(value.cast_unsigned()).ok(),
        _ => None,
    }
}

/// A host function that a snapshot's module takes in and passes on under the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOn {
    /// The module it is imported from.
    pub module: String,
    /// Its name, as import and as export.
    pub name: String,
    /// The types of its parameters.
    pub params: Vec<ValType>,
    /// The types of its results.
    pub results: Vec<ValType>,
}

/// A module without code that exports `memory` filled with `image`, and the functions it passes on.
///
/// Passing functions on lets the host link them once, when the snapshot is made, and not at each start.
/// `assets` lie behind the image, by their addresses, and have `asset_bytes`, whole pages.
pub fn data_module(
    image: &[u8],
    functions: &[PassedOn],
    assets: &[(u32, Bytes)],
    asset_bytes: usize,
) -> Vec<u8> {
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    let mut exports = ExportSection::new();
    for (index, function) in (0..).zip(functions) {
        types.ty().function(function.params.iter().copied(), function.results.iter().copied());
        imports.import(&function.module, &function.name, EntityType::Function(index));
        exports.export(&function.name, ExportKind::Func, index);
    }
    exports.export("memory", ExportKind::Memory, 0);
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: (image.len().div_ceil(PAGE_BYTES) + asset_bytes / PAGE_BYTES) as u64,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut data = DataSection::new();
    for range in filled(image) {
        add_segment(&mut data, range.start as u32, &image[range]);
    }
    for (address, content) in assets {
        add_segment(&mut data, *address, content);
    }
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&memories).section(&exports).section(&data);
    module.finish()
}

/// Adds what lies at `address` of memory 0. The encoder's own way takes bytes one by one, megabytes of them here.
pub fn add_segment(data: &mut DataSection, address: u32, content: &[u8]) {
    let mut segment = Vec::with_capacity(content.len() + 16);
    // Active, memory 0 (WebAssembly core specification, 5.5.14).
    segment.push(0);
    ConstExpr::i32_const(address.cast_signed()).encode(&mut segment);
    content.encode(&mut segment);
    data.raw(&segment);
}

/// Whether there is nothing but zeros; compares whole words.
pub fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

/// How many bytes of `image` lie in pages of the processor that hold something.
pub fn filled_bytes(image: &[u8]) -> usize {
    const PROCESSOR_PAGE_BYTES: usize = 4 << 10;
    let pages = image.chunks(PROCESSOR_PAGE_BYTES);
    pages.filter(|page| !is_zero(page)).map(<[u8]>::len).sum()
}

/// The parts of `image` that hold something, with short runs of zeros between them filled in.
fn filled(image: &[u8]) -> Vec<std::ops::Range<usize>> {
    const STEP: usize = 64;
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, chunk) in image.chunks(STEP).enumerate() {
        if is_zero(chunk) {
            continue;
        }
        let (start, end) = (index * STEP, index * STEP + chunk.len());
        match ranges.last_mut() {
            Some(last) if start - last.end < ZERO_RUN_BYTES => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_module_holds_the_image() {
        let mut image = vec![0; 3 * PAGE_BYTES];
        image[5] = 1;
        image[PAGE_BYTES..PAGE_BYTES + 3000].fill(7);
        *image.last_mut().unwrap() = 9;
        let wasm = data_module(&image, &[], &[], 0);
        assert!(wasm.len() < 4000, "zeros are left out");
        let engine = wasmtime::Engine::default();
        let module = wasmtime::Module::new(&engine, wasm).unwrap();
        let mut store = wasmtime::Store::new(&engine, ());
        let instance = wasmtime::Instance::new(&mut store, &module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        assert_eq!(memory.data(&store), image);
    }

    #[test]
    fn the_engine_comes_apart() {
        let parts = split(crate::js::program::ENGINE_WASM).unwrap();
        assert_eq!(parts.stack_top, 1 << 20);
        assert!(parts.memory[..parts.stack_top].iter().all(|byte| *byte == 0));
        wasmparser::validate(&parts.code).unwrap();
    }

    #[test]
    fn rubbish_is_refused() {
        assert!(split(b"no wasm").is_err());
        assert!(split(b"\0asm\x01\0\0\0").is_err());
    }
}
