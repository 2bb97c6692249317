//! The text of a definition: reading it into a tree of values with their places, and errors with line and column.

mod diagnostic;
mod located;

pub use diagnostic::{DefinitionError, Problem, Problems};
pub use located::{DocumentError, DocumentFault, Key, Located, Node, Place, read};
