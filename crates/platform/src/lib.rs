//! The platform of a node: the wall clock, atomic replacement of files, checks of files with keys, addresses, and memory
//! budgets. It knows no functions and no messages.

mod budget;
mod clock;
mod files;
mod net;
pub mod private_files;
mod program;

pub use budget::{Budget, Taken};
pub use clock::Clock;
pub use files::replace as replace_file;
pub use net::is_loopback;
pub use program::this_program;
