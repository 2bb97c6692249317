//! `wasi:clocks/wall-clock`: the time of day from the node's clock.

use rustix::time::{ClockId, clock_getres};
use wasmtime_wasi::p2::bindings::clocks::wall_clock::{self, Datetime};

use super::state::ComponentState;

impl wall_clock::Host for ComponentState {
    fn now(&mut self) -> wasmtime::Result<Datetime> {
        let now = self.clock.since_unix_epoch();
        Ok(Datetime { seconds: now.as_secs(), nanoseconds: now.subsec_nanos() })
    }

    fn resolution(&mut self) -> wasmtime::Result<Datetime> {
        let resolution = clock_getres(ClockId::Realtime);
        Ok(Datetime { seconds: resolution.tv_sec as u64, nanoseconds: resolution.tv_nsec as u32 })
    }
}
