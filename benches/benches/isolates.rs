//! Fresh invocations through `Isolates::run` beside bare wasmtime, on one thread and on two.
//!
//! Contestants take turns: every benchmark is there once a round, and the report takes the median of the rounds.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use edgefaas_benches::bare::{BareJs, BareRust};
use edgefaas_benches::functions::{self, NoHost};
use edgefaas_isolates::engine::{self, PoolConfig};
use edgefaas_isolates::{Compiler, FunctionSource, Isolates, IsolatesConfig, Limits, Program, Reply};
use tokio::runtime::Runtime;

#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROUNDS: usize = 5;
const THREADS: [usize; 2] = [1, 2];
const PAYLOAD: Bytes = Bytes::from_static(&[b'x'; 64]);

fn fresh(criterion: &mut Criterion) {
    let runtime = runtime();
    let rust = functions::rust_source().expect("the guest builds");
    let isolates = isolates();
    let programs = [
        ("js", prepare(&runtime, &isolates, &functions::js_source())),
        ("rust", prepare(&runtime, &isolates, &rust)),
    ];
    let FunctionSource::Component(wasm) = &rust else { unreachable!("it is a component") };
    let engine = || engine::build(PoolConfig::default()).expect("the pool can be set up");
    let bare_rust = BareRust::new(engine(), wasm).expect("the component compiles");
    let bare_js = runtime.block_on(BareJs::new(engine(), functions::ECHO_JS));
    let bare_js = bare_js.expect("the function is evaluated");

    let mut group = criterion.benchmark_group("fresh");
    for round in 1..=ROUNDS {
        group.bench_function(BenchmarkId::new("rust, bare wasmtime", round), |bencher| {
            bencher.to_async(&runtime).iter(async || {
                let reply = bare_rust.run(&black_box(PAYLOAD)).await.expect("no trap");
                assert_eq!(reply, PAYLOAD);
            });
        });
        group.bench_function(BenchmarkId::new("js, bare wasmtime", round), |bencher| {
            bencher.to_async(&runtime).iter(async || {
                let reply = bare_js.run(&black_box(PAYLOAD)).await.expect("no trap");
                assert_eq!(reply, PAYLOAD);
            });
        });
        for (language, program) in &programs {
            group.bench_function(BenchmarkId::new(*language, round), |bencher| {
                bencher.to_async(&runtime).iter(|| invoke(&isolates, program));
            });
        }
    }
    group.finish();

    let mut group = criterion.benchmark_group("threads");
    group.throughput(Throughput::Elements(1));
    for round in 1..=ROUNDS {
        for (language, program) in &programs {
            for threads in THREADS {
                group.bench_function(
                    BenchmarkId::new(format!("{language}, {threads}"), round),
                    |bencher| {
                        bencher.iter_custom(|count| on_threads(&isolates, program, threads, count));
                    },
                );
            }
        }
    }
    group.finish();
}

/// The time for `count` invocations shared out to `threads`, each with a runtime of its own.
fn on_threads(isolates: &Isolates, program: &Program, threads: usize, count: u64) -> Duration {
    let barrier = Barrier::new(threads);
    let worker = |thread: u64| {
        let threads = threads as u64;
        let own = count / threads + u64::from(thread < count % threads);
        let runtime = runtime();
        barrier.wait();
        let started = Instant::now();
        runtime.block_on(async {
            for _ in 0..own {
                invoke(isolates, program).await;
            }
        });
        (started, Instant::now())
    };
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let worker = &worker;
        let running: Vec<_> =
            (0..threads as u64).map(|thread| scope.spawn(move || worker(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("an invocation does not panic")).collect()
    });
    let first = times.iter().map(|(started, _)| *started).min().expect("there is a thread");
    let last = times.iter().map(|(_, ended)| *ended).max().expect("there is a thread");
    last - first
}

async fn invoke(isolates: &Isolates, program: &Program) {
    let event = functions::call(black_box(PAYLOAD));
    let meta = functions::meta();
    let completion = isolates.run(program, &meta, event, Limits::default(), Box::new(NoHost)).await;
    assert!(matches!(completion.result, Ok(Reply::Bytes(bytes)) if bytes == PAYLOAD));
}

fn isolates() -> Isolates {
    let config = IsolatesConfig {
        pool: PoolConfig::default(),
        compiler: Compiler::InProcess,
        code_cache: None,
        clock: edgefaas_node::Clock::system(),
    };
    Isolates::new(&config).expect("the pool can be set up")
}

fn prepare(runtime: &Runtime, isolates: &Isolates, source: &FunctionSource) -> Program {
    runtime.block_on(isolates.prepare(functions::wanted(source))).expect("the function can be prepared")
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

criterion_group! {
    name = benches;
    // Many short rounds, so that all contestants see the same machine.
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots();
    targets = fresh
}
criterion_main!(benches);
