//! Measurements of edgefaas, each with its peer beside it in the same run.
//!
//! `benches/isolates/` measures the parts with criterion; the program `end-to-end` runs the real binary beside its
//! peers and writes `results/*.json`; `workflows` has chains of functions, `objects` stateful objects; `soak` has
//! functions that misbehave, `hostile` attacks a node with little memory, `photons` runs a trace of many functions on it and on a process for each instance;
//! `placement`, `remote-call` and `fifty-nodes` have clusters on a network of their own, `cluster-simulation` has a thousand
//! nodes in virtual time; `interpreter` runs functions without native code, `kernels` runs programs that compute beside V8 and native
//! code; the program `report` makes `docs/benchmarks.md` of them.

pub mod bare;
pub mod broker_load;
pub mod client;
pub mod fleet;
pub mod functions;
pub mod http;
pub mod misbehaviours;
pub mod mqtt;
pub mod node;
pub mod peers;
pub mod plots;
pub mod process;
pub mod replica;
pub mod results;
pub mod samples;
pub mod work;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("benches is a folder of the repository")
}

/// Where results are kept.
pub fn results_folder() -> PathBuf {
    repository().join("benches/results")
}

/// Where plots are kept, for the documentation to show.
pub fn plots_folder() -> PathBuf {
    repository().join("docs/plots")
}

/// Where cargo puts what it builds.
pub fn target_folder() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    repository().join(set.unwrap_or_else(|| "target".into()))
}
