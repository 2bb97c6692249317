//! The wasm of the JavaScript engine, split into code and memory.

use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{BinaryReaderError, DataKind, ExternalKind, Operator, Parser, Payload, TypeRef};

use crate::memory_image::PAGE_BYTES;

// A static: a constant would be put into the binary once for every unit that uses it.
pub(super) static ENGINE_WASM: &[u8] = include_bytes!("../../js-engine/engine.wasm");

/// The engine's wasm is not the result of its build recipe.
#[derive(Debug, thiserror::Error)]
#[error("the JavaScript engine's wasm cannot be used: {0}")]
pub struct SplitError(#[from] SplitFault);

/// The fault of the engine's wasm.
#[derive(Debug, thiserror::Error)]
pub enum SplitFault {
    /// The engine's wasm is invalid.
    #[error("{0}")]
    Invalid(#[from] BinaryReaderError),
    /// The engine's memory has more pages than fit an address space.
    #[error("its memory is too large")]
    MemoryTooLarge,
    /// A data segment is not copied at the start.
    #[error("a data segment is not active")]
    PassiveSegment,
    /// The address of a data segment is computed.
    #[error("the address of a data segment is not constant")]
    SegmentAddress,
    /// A data segment does not fit the memory.
    #[error("a data segment lies outside of the memory")]
    SegmentOutside,
    /// The engine has a memory of its own, or none.
    #[error("it imports no memory")]
    NoMemory,
    /// The engine has no mutable global with an address within the memory, or more than one mutable global.
    #[error("it has no stack pointer, or other mutable globals")]
    NoStackPointer,
    /// The engine exports something else than functions and globals.
    #[error("it exports {0:?}")]
    Export(ExternalKind),
}

/// The export of the stack pointer, which [`split`] adds. With the memory it is all that an instance of the engine can
/// change.
pub(super) const STACK_POINTER: &str = "__stack_pointer";

/// The two parts of the engine's wasm.
#[derive(Debug)]
pub(super) struct Parts {
    /// All sections but the start, data and datacount sections. The start section would clear the zeroed
    /// part of the memory, and with it the snapshot.
    pub code: Vec<u8>,
    /// The memory before the first instruction; whole pages.
    pub memory: Vec<u8>,
    /// The address where the stack begins; it grows down to 0.
    pub stack_top: usize,
}

/// Splits the engine's wasm.
pub(super) fn split(wasm: &[u8]) -> Result<Parts, SplitError> {
    Ok(split_sections(wasm)?)
}

fn split_sections(wasm: &[u8]) -> Result<Parts, SplitFault> {
    let mut code = Module::new();
    let mut memory = Vec::new();
    let (mut stack_top, mut stack_pointer) = (None, None);
    for payload in Parser::new(0).parse_all(wasm) {
        let payload = payload?;
        match &payload {
            Payload::ImportSection(imports) => {
                for import in imports.clone().into_imports() {
                    if let TypeRef::Memory(ty) = import?.ty {
                        let pages = usize::try_from(ty.initial).map_err(|_| SplitFault::MemoryTooLarge)?;
                        memory = vec![0; pages * PAGE_BYTES];
                    }
                }
            }
            Payload::GlobalSection(globals) => {
                for (index, global) in (0_u32..).zip(globals.clone()) {
                    let global = global?;
                    if global.ty.mutable {
                        if stack_pointer.replace(index).is_some() {
                            return Err(SplitFault::NoStackPointer);
                        }
                        stack_top = constant(&global.init_expr);
                    }
                }
            }
            Payload::ExportSection(exports) => {
                let mut section = ExportSection::new();
                for export in exports.clone() {
                    let export = export?;
                    let kind = match export.kind {
                        ExternalKind::Func => ExportKind::Func,
                        ExternalKind::Global => ExportKind::Global,
                        other => return Err(SplitFault::Export(other)),
                    };
                    section.export(export.name, kind, export.index);
                }
                // The engine imports no global, so that this is its index in the whole module.
                let index = stack_pointer.ok_or(SplitFault::NoStackPointer)?;
                code.section(section.export(STACK_POINTER, ExportKind::Global, index));
                continue;
            }
            Payload::DataSection(segments) => {
                for segment in segments.clone() {
                    let segment = segment?;
                    let DataKind::Active { memory_index: 0, offset_expr } = segment.kind else {
                        return Err(SplitFault::PassiveSegment);
                    };
                    let at = constant(&offset_expr).ok_or(SplitFault::SegmentAddress)?;
                    memory
                        .get_mut(at..at + segment.data.len())
                        .ok_or(SplitFault::SegmentOutside)?
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
        return Err(SplitFault::NoMemory);
    }
    let stack_top = stack_top.filter(|top| *top <= memory.len());
    let stack_top = stack_top.ok_or(SplitFault::NoStackPointer)?;
    Ok(Parts { code: code.finish(), memory, stack_top })
}

fn constant(expression: &wasmparser::ConstExpr<'_>) -> Option<usize> {
    match expression.get_operators_reader().read().ok()? {
        Operator::I32Const { value } => usize::try_from(value.cast_unsigned()).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_split() {
        let parts = split(ENGINE_WASM).unwrap();
        assert_eq!(parts.stack_top, 1 << 20);
        assert!(parts.memory[..parts.stack_top].iter().all(|byte| *byte == 0));
        wasmparser::validate(&parts.code).unwrap();
    }

    #[test]
    fn the_memory_and_the_stack_pointer_are_all_that_changes() {
        for payload in Parser::new(0).parse_all(ENGINE_WASM) {
            let Payload::CodeSectionEntry(body) = payload.unwrap() else { continue };
            for operator in body.get_operators_reader().unwrap() {
                let operator = operator.unwrap();
                let changes_table = matches!(
                    operator,
                    Operator::TableSet { .. }
                        | Operator::TableGrow { .. }
                        | Operator::TableFill { .. }
                        | Operator::TableCopy { .. }
                        | Operator::TableInit { .. }
                        | Operator::ElemDrop { .. }
                        | Operator::DataDrop { .. }
                );
                assert!(!changes_table, "{operator:?}");
            }
        }
    }

    #[test]
    fn invalid_wasm_is_refused() {
        assert!(split(b"no wasm").is_err());
        assert!(split(b"\0asm\x01\0\0\0").is_err());
    }
}
