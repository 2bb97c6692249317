//! The platform: what a node takes from the machine it runs on.
//!
//! The wall clock, files that are replaced as a whole, files that hold keys, addresses, and budgets of memory. Nothing here
//! knows what a function or a message is.

mod budget;
mod clock;
mod files;
mod net;
pub mod private_files;

pub use budget::{Budget, Taken};
pub use clock::Clock;
pub use files::replace as replace_file;
pub use net::is_loopback;
