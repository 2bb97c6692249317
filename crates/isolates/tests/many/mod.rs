//! Functions that are prepared together.

use std::path::Path;

use edgefaas_isolates::engine::PoolConfig;
use edgefaas_isolates::{
    CacheFolder, Compiler, FunctionSource, Isolates, IsolatesConfig, Isolation, Limits, PrepareError,
    Preparing, Program, Reply,
};
use edgefaas_platform::Clock;

use crate::support::{Bench, WALL_UNIX_MS, call, graph};

const FUNCTIONS: usize = 200;

fn isolates(cache: &Path) -> Isolates {
    let folder = CacheFolder { path: cache.to_owned(), key: [3; 32], max_bytes: 1 << 30, reserve_bytes: 0 };
    let config = IsolatesConfig {
        pool: PoolConfig { max_isolates: 2, ..PoolConfig::default() },
        compiler: Compiler::InProcess,
        code_cache: Some(folder),
        clock: Clock::new(|| WALL_UNIX_MS),
    };
    Isolates::new(&config).unwrap()
}

fn source(text: &str) -> FunctionSource {
    FunctionSource::JavaScript(graph("f.js", text))
}

fn preparing(source: &FunctionSource, anew: bool) -> Preparing<'_> {
    let memory_bytes = Limits::default().memory_bytes;
    let isolation = Isolation::Fresh;
    Preparing { name: "f", owner: "f", source, assets: &[], memory_bytes, isolation, anew }
}

async fn run(isolates: &Isolates, bench: &Bench, program: &Program) -> String {
    let run = isolates.run(program, &bench.meta, call("x"), Limits::default(), bench.host()).await;
    match run.result.unwrap() {
        Reply::Json(text) | Reply::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn many_functions_are_prepared_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let (isolates, bench) = (isolates(folder.path()), Bench::new());
    let mut sources: Vec<_> = (0..FUNCTIONS)
        .map(|number| source(&format!("console.log({number}); export default () => {number};")))
        .collect();
    let functions: Vec<_> = sources.iter().map(|source| preparing(source, true)).collect();
    let prepared = isolates.prepare_all(&functions, 150).await.map_err(|(_, error)| error).unwrap();
    assert_eq!(prepared.len(), FUNCTIONS);
    for (number, prepared) in prepared.iter().enumerate() {
        assert_eq!(prepared.log.len(), 1);
        assert_eq!(prepared.log[0].1, number.to_string());
        assert_eq!(prepared.program.is_some(), number < 150);
        if let Some(program) = &prepared.program {
            assert_eq!(run(&isolates, &bench, program).await, number.to_string());
        }
    }
    // Those without a program are in the cache: another process has their numbers.
    let last = isolates.prepare(preparing(&sources[FUNCTIONS - 1], false)).await.unwrap();
    assert_eq!(run(&isolates, &bench, &last).await, (FUNCTIONS - 1).to_string());
    assert!(last.prepare_log().len() == 1);

    for bad in [150, 70] {
        sources[bad] = source(&format!("throw new Error('number {bad}')"));
        let functions: Vec<_> = sources.iter().map(|source| preparing(source, true)).collect();
        let (index, error) = isolates.prepare_all(&functions, 150).await.err().unwrap();
        assert_eq!(index, bad);
        let PrepareError::JavaScript(error) = error else { panic!("{error}") };
        assert!(error.to_string().contains(&format!("number {bad}")), "{error}");
    }
    assert!(isolates.prepare_all(&[], 10).await.is_ok_and(|prepared| prepared.is_empty()));
}
