//! Text into a tree of values that know their places, and what is wrong with it as people read it.

mod diagnostic;
mod located;

pub use diagnostic::{DefinitionError, Problem, Problems};
pub use located::{Key, Located, Node, Place, read};
