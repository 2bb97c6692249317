use std::sync::LazyLock;

use edgefaas_platform::Clock;
use futures_util::FutureExt;

use super::super::program::{JsProgram, Script};
use super::super::state::Stage;
use super::*;
use crate::code_cache::{CacheFolder, CodeCache};
use crate::compile::Compiler;
use crate::cpu_time::CpuTime;
use crate::deadline;
use crate::engine::{self, EpochClock};
use crate::js::engine_code_wasm;
use crate::{Module as Source, ModuleGraph};

const MEMORY_BYTES: usize = 64 << 20;
const LIMIT: Duration = Duration::from_secs(600);

/// Compiling the engine takes seconds: the tests share it.
static SHARED: LazyLock<(Engine, Module, EpochClock)> = LazyLock::new(|| {
    let engine = engine::build(pool()).unwrap();
    let code = Module::new(&engine, engine_code_wasm().unwrap()).unwrap();
    let clock = EpochClock::start(engine.clone()).unwrap();
    (engine, code, clock)
});

fn pool() -> PoolConfig {
    PoolConfig { max_isolates: 8, ..PoolConfig::default() }
}

struct Bench {
    engine: JsEngine,
    folder: tempfile::TempDir,
}

impl Bench {
    /// An engine whose snapshots have at most `max_bytes`, and none without calls.
    fn new(max_bytes: usize) -> Self {
        let (engine, code, _) = &*SHARED;
        let clock = Clock::new(|| 1_800_000_000_000);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_owned();
        let cached = CacheFolder { path, key: [7; 32], max_bytes: 1 << 30, reserve_bytes: 0 };
        let cache = Arc::new(CodeCache::new(Compiler::InProcess, Some(cached), clock.clone()));
        let snapshots = LoadedSnapshots::with_limits(0, max_bytes);
        let mut engine = JsEngine::new(engine, code.clone(), pool(), clock).unwrap();
        (engine.cache, engine.snapshots) = (cache, snapshots);
        Self { engine, folder }
    }

    async fn prepare(&self, name: &str) -> JsProgram {
        let _running = SHARED.2.running();
        let source = format!("const name = '{name}'; export default () => name;");
        let module = Source { path: "f.js".into(), source, imports: Vec::new() };
        let graph = ModuleGraph { entry: "f.js".into(), modules: vec![module] };
        let script =
            Script { owner: name, graph: &graph, assets: &[], memory_bytes: MEMORY_BYTES, anew: true };
        self.engine.prepare_script(script).await.unwrap()
    }

    /// The memory of a new instance.
    async fn memory(&self, program: &JsProgram) -> Vec<u8> {
        let (stage, reservation) = (Stage::Deploy(Vec::new()), self.engine.no_reservation());
        let mut store = self.engine.store(stage, MEMORY_BYTES, Arc::default(), Arc::default(), reservation);
        deadline::arm(&mut store, Instant::now() + LIMIT, CpuTime::new(LIMIT, Arc::default()));
        let snapshot = program.snapshot.get(&self.engine).await.unwrap();
        snapshot.start(&self.engine.code, &mut store).await.unwrap();
        store.data().memory.unwrap().data(&store).to_vec()
    }

    fn release_all(&self) -> usize {
        self.engine.snapshots.release_while(0, |_| true)
    }

    fn loaded_bytes(&self) -> usize {
        self.engine.snapshots.bytes.load(Relaxed)
    }
}

#[tokio::test]
async fn a_released_snapshot_is_loaded_at_the_next_call() {
    let bench = Bench::new(usize::MAX);
    let (one, two) = (bench.prepare("one").await, bench.prepare("two").await);
    let (of_one, of_two) = (bench.memory(&one).await, bench.memory(&two).await);
    assert!(of_one != of_two);
    assert_eq!(bench.loaded_bytes(), one.filled_bytes() + two.filled_bytes());
    for _ in 0..3 {
        assert_eq!(bench.release_all(), 2);
        assert!(!one.is_loaded() && !two.is_loaded());
        assert_eq!((bench.loaded_bytes(), bench.release_all()), (0, 0));
        assert!(bench.memory(&one).await == of_one);
        assert!(one.is_loaded() && !two.is_loaded());
        assert!(bench.memory(&two).await == of_two);
    }
    drop(two);
    assert_eq!(bench.loaded_bytes(), one.filled_bytes());
}

#[tokio::test]
async fn calls_at_the_same_time_load_a_snapshot_once() {
    let bench = Bench::new(usize::MAX);
    let program = bench.prepare("f").await;
    bench.release_all();
    let get = || program.snapshot.get(&bench.engine);
    let (first, second, third) = tokio::join!(get(), get(), get());
    let first = first.unwrap();
    assert!(Arc::ptr_eq(&first, &second.unwrap()) && Arc::ptr_eq(&first, &third.unwrap()));
    assert_eq!(bench.loaded_bytes(), program.filled_bytes());
    // One that is released while a call has it.
    bench.release_all();
    assert!(!Arc::ptr_eq(&first, &get().await.unwrap()));
    assert_eq!(bench.loaded_bytes(), program.filled_bytes());
}

#[tokio::test]
async fn a_load_that_its_caller_does_not_wait_for_leaves_the_snapshot_in_its_file() {
    let bench = Bench::new(usize::MAX);
    let program = bench.prepare("f").await;
    let memory = bench.memory(&program).await;
    bench.release_all();
    let get = async { program.snapshot.get(&bench.engine).await };
    // Polled once. The load may be quicker than that.
    let is_loaded = get.now_or_never().is_some();
    assert_eq!((program.is_loaded(), bench.loaded_bytes() > 0), (is_loaded, is_loaded));
    assert!(bench.memory(&program).await == memory);
}

#[tokio::test]
async fn the_cache_may_lose_the_file() {
    let bench = Bench::new(usize::MAX);
    let program = bench.prepare("f").await;
    let memory = bench.memory(&program).await;
    let remove_all = || {
        for entry in std::fs::read_dir(bench.folder.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    };
    bench.release_all();
    remove_all();
    assert!(bench.memory(&program).await == memory);
    // It could not be loaded again, so that it stays.
    assert_eq!(bench.release_all(), 0);
    assert!(program.is_loaded() && bench.memory(&program).await == memory);
    // The file of another deploy is not taken for its own.
    let _same = bench.prepare("f").await;
    assert_eq!(bench.release_all(), 1);
    assert!(program.is_loaded());
}

#[tokio::test]
async fn the_least_recently_used_snapshot_makes_room() {
    let bytes = Bench::new(0).prepare("a").await.filled_bytes();
    let bench = Bench::new(bytes * 2 + bytes / 2);
    let programs = [bench.prepare("a").await, bench.prepare("b").await, bench.prepare("c").await];
    bench.release_all();
    let used = |number: usize, ms: u64| programs[number].snapshot.used_ms.store(ms, Relaxed);
    for (number, ms) in [(1, 20), (0, 10), (2, 30)] {
        bench.memory(&programs[number]).await;
        used(number, ms);
    }
    let loaded = || programs.iter().map(JsProgram::is_loaded).collect::<Vec<_>>();
    assert_eq!(loaded(), [false, true, true]);
    let other = bench.prepare("d").await;
    other.snapshot.release();
    bench.memory(&other).await;
    assert_eq!(loaded(), [false, false, true]);
    assert!(other.is_loaded());
}

#[tokio::test]
async fn snapshots_without_a_folder_stay() {
    let (engine, code, _) = &*SHARED;
    let engine = JsEngine::new(engine, code.clone(), pool(), Clock::system()).unwrap();
    let bench = Bench { engine, folder: tempfile::tempdir().unwrap() };
    let program = bench.prepare("f").await;
    assert_eq!((bench.loaded_bytes(), bench.release_all()), (0, 0));
    assert!(program.is_loaded());
}
