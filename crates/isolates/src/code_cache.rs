//! Native code that is kept between starts.
//!
//! It is a cache: made on this machine, from sources that are kept elsewhere, and only files that carry this node's own
//! authentication code are ever loaded. What was not used for longest goes when there is too much.

use std::hash::{Hash, Hasher};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::compile::{CodeKind, CompileError, Compiler, compile_with};

/// A file that was begun longer ago was left by a process that is gone.
const STALE_TEMPORARY: Duration = Duration::from_secs(3600);

/// Where compiled code is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheFolder {
    /// The folder, which there is.
    pub path: PathBuf,
    /// What files are authenticated with.
    pub key: [u8; 32],
    /// Bytes of files at most; one that is larger is not kept.
    pub max_bytes: u64,
}

/// Compiles what is not in its folder yet and loads what is.
#[derive(Debug)]
pub struct CodeCache {
    compiler: Compiler,
    /// Without it nothing is kept.
    folder: Option<CacheFolder>,
}

impl CodeCache {
    /// A cache in `folder`, if there is one.
    pub fn new(compiler: Compiler, folder: Option<CacheFolder>) -> Self {
        Self { compiler, folder }
    }

    /// The core module, compiled now or earlier. Blocks for as long as compiling takes.
    pub fn module(&self, engine: &Engine, wasm: &[u8]) -> Result<Module, CompileError> {
        self.load(engine, CodeKind::Module, wasm, load_module)
    }

    /// The component, compiled now or earlier. Blocks for as long as compiling takes.
    pub fn component(&self, engine: &Engine, wasm: &[u8]) -> Result<Component, CompileError> {
        self.load(engine, CodeKind::Component, wasm, load_component)
    }

    fn load<T>(
        &self,
        engine: &Engine,
        kind: CodeKind,
        wasm: &[u8],
        load: fn(&Engine, &[u8]) -> wasmtime::Result<T>,
    ) -> Result<T, CompileError> {
        let entry = self.folder.as_ref().map(|folder| {
            let name = entry_name(engine, kind, wasm);
            Entry { path: folder.path.join(&name), name, folder }
        });
        if let Some(entry) = &entry
            && let Some(native) = entry.read()
        {
            match load(engine, &native) {
                Ok(code) => return Ok(code),
                Err(error) => {
                    let path = entry.path.display();
                    tracing::warn!(%path, %error, "compiled code does not load; compiling anew");
                    // If it stays, the new one replaces it.
                    let _ = std::fs::remove_file(&entry.path);
                }
            }
        }
        let native = compile_with(&self.compiler, engine, kind, wasm)?;
        let code = load(engine, &native).map_err(|error| CompileError::Invalid(format!("{error:#}")))?;
        // Kept only now that it has loaded. A cache that can't be written costs time at the next start,
        // nothing else.
        if let Some(entry) = &entry
            && let Err(error) = entry.write(&native)
        {
            tracing::warn!(path = %entry.path.display(), %error, "compiled code could not be kept");
        }
        Ok(code)
    }
}

/// Files are named by all that the code depends on: source, engine settings and version, processor.
fn entry_name(engine: &Engine, kind: CodeKind, wasm: &[u8]) -> String {
    let mut settings = std::hash::DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut settings);
    let mut digest = blake3::Hasher::new();
    digest.update(kind.as_str().as_bytes());
    digest.update(&settings.finish().to_le_bytes());
    digest.update(wasm);
    format!("{}.native", digest.finalize().to_hex())
}

const CODE_BYTES: usize = blake3::OUT_LEN;

/// A file of the cache: the authentication code of name and content, then the content.
struct Entry<'a> {
    name: String,
    path: PathBuf,
    folder: &'a CacheFolder,
}

impl Entry<'_> {
    /// With the name, so that one entry cannot take another's place. All names are equally long.
    fn code(&self, native: &[u8]) -> blake3::Hash {
        blake3::Hasher::new_keyed(&self.folder.key).update(self.name.as_bytes()).update(native).finalize()
    }

    fn read(&self) -> Option<Vec<u8>> {
        let mut file = std::fs::read(&self.path).ok()?;
        let authentic = file.split_at_checked(CODE_BYTES).is_some_and(|(code, native)| {
            <[u8; CODE_BYTES]>::try_from(code).is_ok_and(|code| self.code(native) == code)
        });
        if !authentic {
            tracing::warn!(path = %self.path.display(), "compiled code is damaged or foreign; compiling anew");
            return None;
        }
        file.drain(..CODE_BYTES);
        // For whoever makes room. Where it can't be noted, the age of the file has to do.
        let used = std::fs::File::options().append(true).open(&self.path);
        let _ = used.and_then(|file| file.set_modified(SystemTime::now()));
        Some(file)
    }

    fn write(&self, native: &[u8]) -> std::io::Result<()> {
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let bytes = (native.len() + CODE_BYTES) as u64;
        if bytes > self.folder.max_bytes {
            return Ok(());
        }
        make_room(&self.folder.path, self.folder.max_bytes - bytes)?;
        let write = WRITES.fetch_add(1, Ordering::Relaxed);
        let temporary = self.path.with_extension(format!("{}-{write}.tmp", std::process::id()));
        let written = self.write_to(&temporary, native);
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }

    fn write_to(&self, temporary: &Path, native: &[u8]) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new();
        let mut file = file.write(true).create(true).truncate(true).mode(0o600).open(temporary)?;
        file.write_all(self.code(native).as_bytes())?;
        file.write_all(native)?;
        drop(file);
        std::fs::rename(temporary, &self.path)
    }
}

/// Removes the files that were not used for longest until the others have no more than `most_bytes`.
fn make_room(folder: &Path, most_bytes: u64) -> std::io::Result<()> {
    let now = SystemTime::now();
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Another node may be at work in the same folder.
        let Ok(metadata) = path.metadata() else { continue };
        let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("native") => kept.push((used, metadata.len(), path)),
            Some("tmp") if now.duration_since(used).is_ok_and(|age| age > STALE_TEMPORARY) => {
                let _ = std::fs::remove_file(path);
            }
            _ => {}
        }
    }
    kept.sort();
    let mut total: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in kept {
        if total <= most_bytes {
            break;
        }
        let _ = std::fs::remove_file(path);
        total -= bytes;
    }
    Ok(())
}

#[allow(unsafe_code)]
fn load_module(engine: &Engine, native: &[u8]) -> wasmtime::Result<Module> {
    // SAFETY: the bytes were made by `compile` on this machine: just now, or earlier and authenticated
    // with the node's own key. wasmtime checks that version and settings match.
    unsafe { Module::deserialize(engine, native) }
}

#[allow(unsafe_code)]
fn load_component(engine: &Engine, native: &[u8]) -> wasmtime::Result<Component> {
    // SAFETY: as for modules.
    unsafe { Component::deserialize(engine, native) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const EMPTY: &[u8] = b"\0asm\x01\0\0\0";
    /// An empty module with an empty custom section "a".
    const OTHER: &[u8] = b"\0asm\x01\0\0\0\x00\x02\x01a";

    fn folder(path: &Path) -> CacheFolder {
        CacheFolder { path: path.to_owned(), key: KEY, max_bytes: 1 << 20 }
    }

    fn entry<'a>(engine: &Engine, folder: &'a CacheFolder, wasm: &[u8]) -> Entry<'a> {
        let name = entry_name(engine, CodeKind::Module, wasm);
        Entry { path: folder.path.join(&name), name, folder }
    }

    /// A cache that cannot compile: what it gives was kept.
    fn only_kept(folder: &Path) -> CodeCache {
        let (program, arguments) = ("/no/such/compiler".into(), Vec::new());
        let compiler = Compiler::Child { program, arguments, memory_bytes: 0 };
        CodeCache::new(compiler, Some(self::folder(folder)))
    }

    #[test]
    fn an_entry_that_does_not_load_is_compiled_anew() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some(self::folder(folder.path())));
        let own = self::folder(folder.path());
        let entry = entry(&engine, &own, EMPTY);
        entry.write(b"authentic, but no code").unwrap();
        only_kept(folder.path()).module(&engine, EMPTY).unwrap_err();
        assert!(!entry.path.exists());
        entry.write(b"authentic, but no code").unwrap();
        cache.module(&engine, EMPTY).unwrap();
        only_kept(folder.path()).module(&engine, EMPTY).unwrap();
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 1, "no temporary file stays");
    }

    #[test]
    fn an_entry_cannot_take_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some(self::folder(folder.path())));
        cache.module(&engine, EMPTY).unwrap();
        let own = self::folder(folder.path());
        let (here, there) = (entry(&engine, &own, EMPTY), entry(&engine, &own, OTHER));
        std::fs::copy(&here.path, &there.path).unwrap();
        assert!(here.read().is_some());
        assert_eq!(there.read(), None);
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        let file = |name: &str, bytes: usize, age_s: u64| {
            let path = path.join(name);
            std::fs::write(&path, vec![0; bytes]).unwrap();
            let used = SystemTime::now() - Duration::from_secs(age_s);
            std::fs::File::options().append(true).open(&path).unwrap().set_modified(used).unwrap();
        };
        file("old.native", 100, 300);
        file("used.native", 100, 10);
        file("middle.native", 100, 200);
        file("left.tmp", 100, 7200);
        file("begun.tmp", 100, 1);
        file("other.txt", 100, 9000);
        make_room(path, 200).unwrap();
        let left = |name: &str| path.join(name).exists();
        assert!(!left("old.native") && !left("left.tmp"));
        assert!(left("middle.native") && left("used.native") && left("begun.tmp") && left("other.txt"));
        make_room(path, 100).unwrap();
        assert!(!left("middle.native") && left("used.native"));
    }

    #[test]
    fn a_use_is_noted() {
        let temporary = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let own = folder(temporary.path());
        CodeCache::new(Compiler::InProcess, Some(own.clone())).module(&engine, EMPTY).unwrap();
        let entry = entry(&engine, &own, EMPTY);
        let long_ago = SystemTime::now() - Duration::from_secs(1000);
        std::fs::File::options().append(true).open(&entry.path).unwrap().set_modified(long_ago).unwrap();
        assert!(entry.read().is_some());
        assert!(entry.path.metadata().unwrap().modified().unwrap() > long_ago);
        // One that would take all the room for itself is used and not kept.
        let small = CacheFolder { max_bytes: 10, ..own };
        CodeCache::new(Compiler::InProcess, Some(small)).module(&engine, OTHER).unwrap();
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    }
}
