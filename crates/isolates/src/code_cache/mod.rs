//! Cache of native code between starts.
//!
//! Entries are made on this machine, from sources that are stored elsewhere, and only files that carry this node's own
//! authentication code are loaded. They are mapped, not read: pages that are not touched take no memory, and the system may
//! drop touched ones. The least recently used entries are removed when the folder is full.

mod entry;
mod loaded_file;

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use edgefaas_platform::Clock;
use serde::{Deserialize, Serialize};
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use crate::compile::{CompileError, Compiler};
use entry::{Authentic, Entry};

pub(crate) use loaded_file::{LoadedFile, ReleasedCode};

/// The folder of cached code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFolder {
    /// An existing folder that only this node writes to: a file that is truncated while it is mapped ends the process.
    pub path: PathBuf,
    /// The key that authenticates files.
    pub key: [u8; 32],
    /// The maximum of all files together, in bytes; a larger entry is not cached.
    pub max_bytes: u64,
    /// Bytes of the file system that stay free.
    pub reserve_bytes: u64,
}

impl CacheFolder {
    /// True if the file system has room for `bytes`. True if it cannot tell: the write fails then.
    fn has_room_for(&self, bytes: u64) -> bool {
        rustix::fs::statvfs(&self.path).map_or(true, |stat| {
            let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
            free_bytes >= bytes.saturating_add(self.reserve_bytes)
        })
    }
}

/// Loads native code from its folder, and compiles what is not there.
#[derive(Debug)]
pub struct CodeCache {
    compiler: Compiler,
    /// Without it nothing is cached.
    folder: Option<CacheFolder>,
    /// Bytes that may be written before the size of the folder is looked at again.
    allowance: AtomicU64,
    /// The clock of the last use of entries.
    clock: Clock,
}

/// Code with its metadata.
pub(crate) struct Cached<T> {
    pub code: T,
    pub metadata: Vec<u8>,
    /// The file that it is mapped from. None if it is not mapped.
    pub file: Option<LoadedFile>,
}

/// Native code of one of the two kinds.
pub(crate) trait Loaded: Sized {
    /// The kind of its entries.
    const KIND: &str;
    fn from_bytes(engine: &Engine, native: &[u8]) -> wasmtime::Result<Self>;
    fn from_file(engine: &Engine, file: &File) -> wasmtime::Result<Self>;
}

impl CodeCache {
    /// A cache in `folder`; without a folder code is compiled each time. `clock` gives the times of last use.
    pub fn new(compiler: Compiler, folder: Option<CacheFolder>, clock: Clock) -> Self {
        Self { compiler, folder, allowance: AtomicU64::new(0), clock }
    }

    /// Compiles in this process or in a child.
    pub fn compiler(&self) -> &Compiler {
        &self.compiler
    }

    /// The folder, if code is cached.
    pub fn folder(&self) -> Option<&CacheFolder> {
        self.folder.as_ref()
    }

    /// The core module that depends on `key`, compiled now or earlier. Blocks while it is compiled.
    ///
    /// # Errors
    /// `wasm` fails, or its result cannot be compiled.
    pub(crate) fn module<E: From<CompileError>>(
        &self,
        engine: &Engine,
        key: &[&[u8]],
        wasm: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Module, E> {
        if let Some(cached) = self.get(engine, key) {
            return Ok(cached.code);
        }
        let native = self.compiler.module(engine, wasm()?)?;
        Ok(self.put(engine, key, &native, Vec::new())?.code)
    }

    /// The code of `key` with its metadata. None if it is not cached. Blocks while the file is read.
    pub(crate) fn get<T: Loaded>(&self, engine: &Engine, key: &[&[u8]]) -> Option<Cached<T>> {
        self.open(engine, &self.entry(engine, T::KIND, key)?)
    }

    /// Caches native code as `key`, in place of earlier code, and loads it. Returns it with its metadata: both are those of
    /// another process that has written the same entry meanwhile. Blocks while the file is written.
    ///
    /// # Errors
    /// `Invalid` if it is not code of this engine.
    pub(crate) fn put<T: Loaded>(
        &self,
        engine: &Engine,
        key: &[&[u8]],
        native: &[u8],
        metadata: Vec<u8>,
    ) -> Result<Cached<T>, CompileError> {
        // Written before it is loaded, so that it can be mapped.
        if let Some(entry) = self.entry(engine, T::KIND, key)
            && self.write(&entry, native, &metadata)
            && let Some(cached) = self.open(engine, &entry)
        {
            return Ok(cached);
        }
        let code = T::from_bytes(engine, native);
        let code = code.map_err(|error| CompileError::Invalid { detail: format!("{error:#}") })?;
        Ok(Cached { code, metadata, file: None })
    }

    /// Caches native code as `key`, in place of earlier code, without loading it. False if it is not cached. Blocks while the
    /// file is written.
    pub(crate) fn store<T: Loaded>(
        &self,
        engine: &Engine,
        key: &[&[u8]],
        native: &[u8],
        metadata: &[u8],
    ) -> bool {
        self.entry(engine, T::KIND, key).is_some_and(|entry| self.write(&entry, native, metadata))
    }

    /// The entry of a key. Its name depends on all that the code depends on: source, engine settings and version, processor.
    fn entry(&self, engine: &Engine, kind: &str, key: &[&[u8]]) -> Option<Entry<'_>> {
        let folder = self.folder.as_ref()?;
        let mut settings = std::hash::DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut settings);
        let mut digest = blake3::Hasher::new();
        digest.update(kind.as_bytes());
        digest.update(&settings.finish().to_le_bytes());
        for part in key {
            digest.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        Some(Entry::new(folder, format!("{}.native", digest.finalize().to_hex())))
    }

    fn open<T: Loaded>(&self, engine: &Engine, entry: &Entry<'_>) -> Option<Cached<T>> {
        let authentic = entry.open(self.clock.now())?;
        match load(engine, &authentic) {
            Ok((code, is_mapped)) => {
                let file = is_mapped.then(|| LoadedFile::new(entry.path.clone(), &authentic.file).ok());
                Some(Cached { code, metadata: authentic.metadata, file: file.flatten() })
            }
            Err(error) => {
                let path = entry.path.display();
                tracing::warn!(%path, %error, "compiled code does not load; compiling it again");
                entry.remove();
                None
            }
        }
    }

    /// Writes an entry. False if it is not written: that costs time and memory, nothing else.
    fn write(&self, entry: &Entry<'_>, native: &[u8], metadata: &[u8]) -> bool {
        entry.write(native, metadata, &self.allowance, self.clock.now()).unwrap_or_else(|error| {
            tracing::warn!(path = %entry.path.display(), %error, "compiled code cannot be cached");
            false
        })
    }
}

/// Maps the code, or reads it where it cannot be mapped, as on a file system mounted `noexec`. True if it is mapped.
fn load<T: Loaded>(engine: &Engine, authentic: &Authentic) -> wasmtime::Result<(T, bool)> {
    if authentic.is_mappable()
        && let Ok(code) = T::from_file(engine, &authentic.file)
    {
        return Ok((code, true));
    }
    Ok((T::from_bytes(engine, &authentic.read()?)?, false))
}

#[allow(unsafe_code)]
impl Loaded for Module {
    const KIND: &str = "module";

    fn from_bytes(engine: &Engine, native: &[u8]) -> wasmtime::Result<Self> {
        // SAFETY: the bytes were made by `compile` on this machine: just now, or earlier and authenticated with the node's
        // own key. wasmtime checks that version and settings match.
        unsafe { Self::deserialize(engine, native) }
    }

    fn from_file(engine: &Engine, file: &File) -> wasmtime::Result<Self> {
        // SAFETY: as above. The file is the very one whose content was authenticated; it is never written again: the
        // node replaces files as a whole, and the folder is its own.
        unsafe { Self::deserialize_open_file(engine, file.try_clone()?) }
    }
}

#[allow(unsafe_code)]
impl Loaded for Component {
    const KIND: &str = "component";

    fn from_bytes(engine: &Engine, native: &[u8]) -> wasmtime::Result<Self> {
        // SAFETY: as for modules.
        unsafe { Self::deserialize(engine, native) }
    }

    fn from_file(engine: &Engine, file: &File) -> wasmtime::Result<Self> {
        // Components are opened by a path; this one leads to the open file, whatever has become of its name.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: as for modules.
        unsafe { Self::deserialize_file(engine, path) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::entry::{make_room, may_have_holes, write_sparse};
    use super::*;
    use crate::compile::ChildCompiler;

    const KEY: [u8; 32] = [7; 32];
    const EMPTY: &[u8] = b"\0asm\x01\0\0\0";
    /// An empty module with an empty custom section "a".
    const OTHER: &[u8] = b"\0asm\x01\0\0\0\x00\x02\x01a";

    /// 2027, whatever the machine's clock says.
    fn clock() -> Clock {
        Clock::new(|| 1_800_000_000_000)
    }

    fn now() -> SystemTime {
        clock().now()
    }

    fn given(wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        Ok(wasm.to_vec())
    }

    fn folder(path: &Path) -> CacheFolder {
        CacheFolder { path: path.to_owned(), key: KEY, max_bytes: 1 << 20, reserve_bytes: 0 }
    }

    fn entry<'a>(engine: &Engine, cache: &'a CodeCache, wasm: &[u8]) -> Entry<'a> {
        cache.entry(engine, Module::KIND, &[wasm]).unwrap()
    }

    /// A cache that cannot compile: it returns cached code only.
    fn only_kept(folder: &Path) -> CodeCache {
        let (program, arguments) = ("/no/such/compiler".into(), Vec::new());
        let compiler = Compiler::Child(ChildCompiler { program, arguments, memory_bytes: 0 });
        CodeCache::new(compiler, Some(self::folder(folder)), clock())
    }

    #[test]
    fn an_entry_that_does_not_load_is_compiled_anew() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some(self::folder(folder.path())), clock());
        let entry = entry(&engine, &cache, EMPTY);
        entry.write(b"authentic, but no code", b"", &AtomicU64::new(0), now()).unwrap();
        only_kept(folder.path()).module(&engine, &[EMPTY], || given(EMPTY)).unwrap_err();
        assert!(!entry.path.exists());
        entry.write(b"authentic, but no code", b"", &AtomicU64::new(0), now()).unwrap();
        cache.module(&engine, &[EMPTY], || given(EMPTY)).unwrap();
        only_kept(folder.path()).module(&engine, &[EMPTY], || given(EMPTY)).unwrap();
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 1, "no temporary file stays");
    }

    #[test]
    fn an_entry_cannot_take_the_place_of_another() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some(self::folder(folder.path())), clock());
        cache.module(&engine, &[EMPTY], || given(EMPTY)).unwrap();
        let (here, there) = (entry(&engine, &cache, EMPTY), entry(&engine, &cache, OTHER));
        std::fs::copy(&here.path, &there.path).unwrap();
        assert!(here.open(now()).is_some());
        assert!(there.open(now()).is_none());
    }

    #[test]
    fn every_changed_byte_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some(self::folder(folder.path())), clock());
        let entry = entry(&engine, &cache, EMPTY);
        // With pages of zeros, which take no room on most disks.
        let native = [b"native code".as_slice(), &[0; 40_000], b"more of it"].concat();
        entry.write(&native, b"about it", &AtomicU64::new(0), now()).unwrap();
        let room = std::os::unix::fs::MetadataExt::blocks(&entry.path.metadata().unwrap()) * 512;
        let is_sparse = may_have_holes(&File::open(&entry.path).unwrap());
        assert_eq!(room < 30_000, is_sparse, "{room}");
        let kept = entry.open(now()).unwrap();
        assert!(kept.read().unwrap() == native);
        assert_eq!(kept.metadata, b"about it");
        let whole = std::fs::read(&entry.path).unwrap();
        for at in (0..whole.len()).filter(|at| !(100..40_000).contains(at) || at % 997 == 0) {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            std::fs::write(&entry.path, &changed).unwrap();
            assert!(entry.open(now()).is_none(), "byte {at}");
            std::fs::write(&entry.path, &whole[..at]).unwrap();
            assert!(entry.open(now()).is_none(), "cut at {at}");
        }
        std::fs::write(&entry.path, &whole).unwrap();
        assert!(entry.open(now()).is_some());
    }

    #[test]
    fn a_file_in_memory_has_no_holes_or_is_not_mapped() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let engine = Engine::default();
        let cache = CodeCache::new(Compiler::InProcess, Some(self::folder(folder.path())), clock());
        cache.module(&engine, &[EMPTY], || given(EMPTY)).unwrap();
        let entry = entry(&engine, &cache, EMPTY);
        assert!(entry.open(now()).unwrap().is_mappable());
        // As `cp` leaves it, which makes holes of zeros that had room where they come from.
        let native = [entry.open(now()).unwrap().read().unwrap(), vec![0; 40_000]].concat();
        entry.write(&native, b"", &AtomicU64::new(0), now()).unwrap();
        assert!(entry.open(now()).unwrap().is_mappable());
        let whole = std::fs::read(&entry.path).unwrap();
        let mut copy = File::create(&entry.path).unwrap();
        write_sparse(&mut copy, &whole[..whole.len() - 1]).unwrap();
        copy.write_all(&whole[whole.len() - 1..]).unwrap();
        let with_holes = entry.open(now()).expect("it has the same content");
        assert!(!with_holes.is_mappable());
        assert_eq!(with_holes.read().unwrap(), native);
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path();
        let file = |name: &str, bytes: usize, age_s: u64| {
            let path = path.join(name);
            std::fs::write(&path, vec![0; bytes]).unwrap();
            let used = now() - Duration::from_secs(age_s);
            std::fs::File::options().append(true).open(&path).unwrap().set_modified(used).unwrap();
        };
        file("old.native", 4096, 300);
        file("used.native", 4096, 10);
        file("middle.native", 4096, 200);
        file("left.tmp", 4096, 7200);
        file("begun.tmp", 4096, 1);
        file("other.txt", 4096, 9000);
        make_room(path, 2 * 4096, now()).unwrap();
        let left = |name: &str| path.join(name).exists();
        assert!(!left("old.native") && !left("left.tmp"));
        assert!(left("middle.native") && left("used.native") && left("begun.tmp") && left("other.txt"));
        make_room(path, 4096, now()).unwrap();
        assert!(!left("middle.native") && left("used.native"));
    }

    #[test]
    fn a_use_is_noted() {
        let temporary = tempfile::tempdir().unwrap();
        let engine = Engine::default();
        let own = folder(temporary.path());
        let cache = CodeCache::new(Compiler::InProcess, Some(own.clone()), clock());
        cache.module(&engine, &[EMPTY], || given(EMPTY)).unwrap();
        let entry = entry(&engine, &cache, EMPTY);
        let long_ago = now() - Duration::from_secs(1000);
        std::fs::File::options().append(true).open(&entry.path).unwrap().set_modified(long_ago).unwrap();
        assert!(entry.open(now()).is_some());
        assert_eq!(entry.path.metadata().unwrap().modified().unwrap(), now());
        // One that would take all the room for itself is used and not kept.
        let full = CacheFolder { reserve_bytes: u64::MAX, ..own.clone() };
        assert!(!full.has_room_for(1));
        let small = CacheFolder { max_bytes: 10, ..own };
        CodeCache::new(Compiler::InProcess, Some(small), clock())
            .module(&engine, &[OTHER], || given(OTHER))
            .unwrap();
        assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 1);
    }
}
