//! Workflows in the CNCF Serverless Workflow DSL 1.0: read, checked, compiled and run, without I/O.

pub mod expression;
