//! The component of the Rust function on the same engine settings, with wasmtime's own calls and nothing around them.

use std::time::{Duration, Instant};

use wasmtime::component::{Component, Linker};
use wasmtime::{Engine, Store, StoreLimits, StoreLimitsBuilder, UpdateDeadline};

use super::{Bytes, EpochClock, PoolConfig, engine, functions};

wasmtime::component::bindgen!({
    path: "../wit",
    world: "function",
    exports: { default: async },
});
use edgefaas::function::types::{DirectCall, Trigger};

/// The component, linked.
pub struct RustControl {
    engine: Engine,
    pre: FunctionPre<StoreLimits>,
    clock: EpochClock,
}

impl RustControl {
    /// Compiles it.
    pub fn new(wasm: &[u8]) -> Self {
        let engine = engine::build(PoolConfig::default()).expect("the pool can be set up");
        let component = Component::new(&engine, wasm).expect("it compiles");
        let mut linker = Linker::new(&engine);
        // The echo calls none of them.
        linker.define_unknown_imports_as_traps(&component).expect("imports can be defined");
        let pre = linker.instantiate_pre(&component).expect("it links");
        let pre = FunctionPre::new(pre).expect("it is of the function world");
        Self { clock: EpochClock::start(engine.clone()).expect("a thread"), engine, pre }
    }

    /// One invocation in an instance of its own.
    pub async fn run(&self, payload: Bytes) {
        let _running = self.clock.running();
        let limits = StoreLimitsBuilder::new().memory_size(64 << 20).build();
        let mut store = Store::new(&self.engine, limits);
        store.limiter(|limits| limits);
        store.set_epoch_deadline(1);
        let deadline = Instant::now() + Duration::from_secs(30);
        store.epoch_deadline_callback(move |_| {
            assert!(Instant::now() < deadline, "the run takes too long");
            Ok(UpdateDeadline::Yield(1))
        });
        let instance = self.pre.instantiate_async(&mut store).await.expect("an instance");
        let meta = functions::meta();
        let invocation =
            Invocation { id: meta.id, function: meta.function, deadline_unix_ms: meta.deadline_unix_ms };
        let trigger = Trigger::Call(DirectCall { caller: None });
        let event = Event { trigger, body: payload.to_vec() };
        let reply = instance.call_handle(&mut store, &invocation, &event).await.expect("no trap");
        assert!(matches!(reply, Ok(Reply::Bytes(bytes)) if bytes == payload));
    }
}
