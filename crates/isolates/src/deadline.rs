//! Deadlines of running isolates.
//!
//! Code that computes is interrupted by the engine's epoch (see [`crate::engine::TICK`]): it yields to the
//! other isolates of its thread and ends once its deadline has passed. Code that waits for a host call is
//! ended by a timer. Both need the [`crate::engine::EpochClock`] to be running.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use wasmtime::{Store, UpdateDeadline};

use crate::cpu_time::{AtTick, CpuTime};

/// The deadline has passed: the root cause of the error that ends the isolate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the deadline has passed")]
pub struct DeadlinePassed;

/// Makes the code of `store` yield at ticks and wait for its function's [turn](crate::turns). It ends with [`DeadlinePassed`]
/// after `deadline`, or with [`TimeUsed`](crate::cpu_time::TimeUsed) at its limit of processor time.
pub fn arm<T>(store: &mut Store<T>, deadline: Instant, cpu_time: Arc<CpuTime>) {
    store.set_epoch_deadline(1);
    store.epoch_deadline_callback(move |_| {
        if Instant::now() >= deadline {
            return Err(DeadlinePassed.into());
        }
        if cpu_time.at_tick()? == AtTick::GoesOn {
            return Ok(UpdateDeadline::Continue(1));
        }
        let cpu_time = cpu_time.clone();
        Ok(UpdateDeadline::YieldCustom(1, Box::pin(async move { cpu_time.take_turn().await })))
    });
}

/// Runs `run` until `deadline`, and drops it then, which cancels its host calls.
pub async fn limit<F: Future>(deadline: Instant, run: F) -> Result<F::Output, DeadlinePassed> {
    tokio::time::timeout_at(deadline.into(), run).await.map_err(|_| DeadlinePassed)
}
