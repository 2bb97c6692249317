//! Reads the text of a definition into a tree of values with their places. Errors have a line and a column.

mod diagnostic;
mod located;

pub use diagnostic::{DefinitionError, Problem, Problems};
pub use located::{DocumentError, DocumentFault, Key, Located, Node, Place, read};
