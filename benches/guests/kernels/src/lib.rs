//! A function that runs a kernel as often as its event says; function.js does the same.

mod kernels;

use edgefaas::prelude::*;
use serde::{Deserialize, Serialize};

/// What is to be run.
#[derive(Debug, Deserialize)]
pub struct Work {
    kernel: String,
    times: u32,
}

/// What the kernel answers.
#[derive(Debug, Serialize)]
pub struct Answer {
    answer: String,
}

/// Runs it. `None` if there is no kernel of this name.
pub fn run(work: &Work) -> Option<Answer> {
    kernels::run(&work.kernel, work.times).map(|answer| Answer { answer })
}

#[edgefaas::function]
fn compute(event: Event) -> Result<Json<Option<Answer>>, Error> {
    Ok(Json(run(&event.json()?)))
}
