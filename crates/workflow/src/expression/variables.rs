//! The variables of an expression.

use crate::data::Data;

/// Looks up the value of `$name`.
pub trait Variables {
    /// The value of `name`, which is without `$`. `None` means null.
    fn value(&self, name: &str) -> Option<Data>;
}

/// No variables at all.
impl Variables for () {
    fn value(&self, _: &str) -> Option<Data> {
        None
    }
}
