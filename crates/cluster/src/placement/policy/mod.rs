//! The policy language: its text, its checked form, and warnings about a checked policy.

mod fault;
mod language;
mod parse;
mod values;
mod yaml;

pub use fault::{Fault, Place, PolicyError, Problem};
pub(crate) use fault::{nearest, report};
pub use language::{
    Affinity, AffinityRule, Block, BlockOrder, Controller, DEFAULT_TAG, Distribution, Entry, Followup,
    Limits, Name, Policy, Strategy, Tag, Target, Tolerance, WorkerList,
};
pub(crate) use parse::MAX_BLOCKS_OF_TAG;
pub use yaml::MAX_BYTES as MAX_POLICY_BYTES;
