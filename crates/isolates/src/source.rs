//! The sources of a function, as deployed and as kept in a revision.

use serde::{Deserialize, Serialize};

/// A JavaScript or TypeScript function with every module it reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleGraph {
    /// The path of the entry module; one of `modules`.
    pub entry: String,
    /// All modules, the entry first.
    pub modules: Vec<Module>,
}

/// One file of a [`ModuleGraph`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Path of the file relative to the app folder, with `/`, as stacks and errors show it.
    pub path: String,
    /// Text of the file as the user wrote it.
    pub source: String,
    /// Import specifiers with the paths that they resolve to.
    pub imports: Vec<(String, String)>,
}
