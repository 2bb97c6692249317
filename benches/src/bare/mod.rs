//! Functions with wasmtime's own calls and nothing around them, on an engine with the node's settings.

mod js;
mod rust;

use std::time::{Duration, Instant};

use wasmtime::{Engine, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline};

pub use js::{BareJs, BareJsInstance};
pub use rust::{BareRust, BareRustInstance};

fn new_store(engine: &Engine) -> Store<StoreLimits> {
    let mut store = Store::new(engine, StoreLimitsBuilder::new().memory_size(64 << 20).build());
    store.limiter(|limits| limits);
    store.set_epoch_deadline(1);
    let deadline = Instant::now() + Duration::from_secs(30);
    store.epoch_deadline_callback(move |_| {
        assert!(Instant::now() < deadline, "the run takes too long");
        Ok(UpdateDeadline::Yield(1))
    });
    store
}
