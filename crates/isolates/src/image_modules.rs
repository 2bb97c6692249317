//! Compiled modules of memory images without a compiler run for each: those of one size differ in the bytes of the image alone.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use wasmtime::Engine;

use crate::compile::{CodeKind, CompileError, compile};
use crate::memory_image::{MemoryImage, PAGE_BYTES, PassedOn, is_zero};

/// The largest image that others are copied from, in wasm pages, and the maximum of such images: they stay in memory.
const MAX_PAGES: usize = 64;
const MAX_STENCILS: usize = 8;

/// Compiles images that are zeros below an address, such as the end of the stack.
pub struct ImageModules {
    engine: Engine,
    functions: Vec<PassedOn>,
    /// The images may have other bytes than zeros from here on; the beginning of a page of the processor.
    start: usize,
    /// By the size of the memory in wasm pages.
    stencils: Mutex<HashMap<usize, Option<Arc<Stencil>>>>,
}

/// A compiled module whose image has the bytes of [`filler`].
struct Stencil {
    native: Vec<u8>,
    /// The offset of the image's bytes from `start` on.
    at: usize,
}

impl ImageModules {
    /// Images have zeros up to `zeros` and export `functions`.
    pub fn new(engine: Engine, functions: Vec<PassedOn>, zeros: usize) -> Self {
        let page_bytes = rustix::param::page_size();
        Self { engine, functions, start: zeros / page_bytes * page_bytes, stencils: Mutex::default() }
    }

    /// The module of an image. Blocks.
    ///
    /// # Errors
    /// It cannot be compiled.
    pub fn compile(&self, image: &MemoryImage) -> Result<Vec<u8>, CompileError> {
        let (pages, bytes) = (image.len().div_ceil(PAGE_BYTES), image.bytes());
        let (zeros, content) = bytes.split_at(self.start.min(bytes.len()));
        if is_zero(zeros)
            && let Some(stencil) = self.stencil(pages)
        {
            let mut native = stencil.native.clone();
            let (begin, end) = (stencil.at, stencil.at + pages * PAGE_BYTES - self.start);
            let (filled, rest) = native[begin..end].split_at_mut(content.len());
            filled.copy_from_slice(content);
            rest.fill(0);
            return Ok(native);
        }
        compile(&self.engine, CodeKind::Module, &image.to_module(&self.functions, &[], 0))
    }

    /// The stencil for memories of this size. None if there is none.
    fn stencil(&self, pages: usize) -> Option<Arc<Stencil>> {
        let stencils = self.stencils.lock();
        if let Some(made) = stencils.get(&pages) {
            return made.clone();
        }
        if pages > MAX_PAGES || stencils.len() >= MAX_STENCILS {
            return None;
        }
        drop(stencils);
        let made = self.make(pages).map(Arc::new);
        self.stencils.lock().insert(pages, made.clone());
        made
    }

    fn make(&self, pages: usize) -> Option<Stencil> {
        let mut bytes = vec![0; pages * PAGE_BYTES];
        bytes.get_mut(self.start..)?.iter_mut().zip(filler()).for_each(|(byte, filler)| *byte = filler);
        let wasm = MemoryImage::new(bytes.clone()).to_module(&self.functions, &[], 0);
        let native = compile(&self.engine, CodeKind::Module, &wasm).ok()?;
        let content = &bytes[self.start..];
        let head = content.get(..PAGE_BYTES.min(content.len())).filter(|head| !head.is_empty())?;
        let at = native.windows(head.len()).position(|window| window == head)?;
        (native.get(at..at + content.len())? == content).then_some(Stencil { native, at })
    }
}

/// Bytes that are not zeros, so that a compiler leaves none out.
fn filler() -> impl Iterator<Item = u8> {
    (1..=251_u8).cycle()
}

#[cfg(test)]
mod tests {
    use wasmtime::{Instance, Module, Store};

    use super::*;
    use crate::code_cache::Loaded;

    const ZEROS: usize = 70_000;

    fn memory(engine: &Engine, native: &[u8]) -> Vec<u8> {
        let module = Module::from_bytes(engine, native).unwrap();
        let mut store = Store::new(engine, ());
        let instance = Instance::new(&mut store, &module, &[]).unwrap();
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        memory.data(&store).to_vec()
    }

    #[test]
    fn modules_have_the_memory_of_their_images() {
        let engine = Engine::default();
        let modules = ImageModules::new(engine.clone(), Vec::new(), ZEROS);
        for pages in [2, 5, 5, 5] {
            for (first, last) in
                [(ZEROS, ZEROS), (ZEROS + 20_000, pages * PAGE_BYTES - 1), (90_000, 95_000)]
            {
                let mut bytes = vec![0; pages * PAGE_BYTES];
                (bytes[first], bytes[last]) = (3, 5);
                let native = modules.compile(&MemoryImage::new(bytes.clone())).unwrap();
                assert!(memory(&engine, &native) == bytes);
            }
        }
        let stencils = modules.stencils.lock();
        assert!(stencils.len() == 2 && stencils.values().all(Option::is_some));
    }

    #[test]
    fn images_that_do_not_fit_are_compiled() {
        let engine = Engine::default();
        let modules = ImageModules::new(engine.clone(), Vec::new(), ZEROS);
        for bytes in [vec![1; 2 * PAGE_BYTES], vec![0; PAGE_BYTES], Vec::new()] {
            let native = modules.compile(&MemoryImage::new(bytes.clone())).unwrap();
            assert!(memory(&engine, &native) == bytes);
        }
    }

    #[test]
    fn compiled_modules_differ_in_their_images_alone() {
        let engine = Engine::default();
        let modules = ImageModules::new(engine.clone(), Vec::new(), ZEROS);
        let image = |byte: u8| {
            let mut bytes = vec![byte; 3 * PAGE_BYTES];
            bytes[..ZEROS].fill(0);
            MemoryImage::new(bytes)
        };
        for byte in [1, 200] {
            let compiled = compile(&engine, CodeKind::Module, &image(byte).to_module(&[], &[], 0)).unwrap();
            assert!(modules.compile(&image(byte)).unwrap() == compiled);
        }
    }
}
