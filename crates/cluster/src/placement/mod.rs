//! Placement: decides on which node a call runs, by the policies of the cluster.
//!
//! The language is that of topology-aware allocation priority policies (De Palma, Giallorenzo, Mauro, Trentin,
//! Zavattaro: Topology-Aware Serverless Function-Execution Scheduling, 2022), with additions; `docs/placement.md`
//! describes it. [`Policy::parse`] reads a text. [`Compiled::new`] resolves its names against the members, whenever one
//! of the two changes. [`place`] decides, from a [`View`] of the workers that changes with each heartbeat; [`explain`]
//! gives the same decision with its steps.
//!
//! All of it is pure: the caller gives the time and a random number.

mod check;
mod compiled;
mod decision;
mod explain;
mod observer;
mod policy;
mod refusal;
mod refusals;
pub mod shares;
mod strategy;
mod table;
#[cfg(test)]
mod tests;
mod view;
mod workers;
pub mod zone;

pub use check::{Known, KnownFunction, Warning, WarningKind, check, report_messages, report_warnings};
pub use compiled::Compiled;
pub use decision::{Decision, place};
pub use explain::{Explanation, explain};
pub use policy::{
    Affinity, AffinityRule, Block, BlockOrder, Controller, DEFAULT_TAG, Distribution, Entry, Fault,
    Followup, Limits, MAX_POLICY_BYTES, Name, Place, Policy, PolicyError, Problem, Strategy, Tag, Target,
    Tolerance, WorkerList,
};
pub use refusal::{Refusal, Skip};
pub use table::{Call, FunctionFacts, Loads, PlacedCall, Table};
pub use view::{FunctionPlacement, Health, Load, Request, View};
pub use workers::{MAX_WORKERS, Worker, WorkerIndex, WorkerSet, Workers};
