//! The platform of a node: its clock, atomic replacement of files, checks of files with keys, addresses, the form
//! of labels, and memory budgets. It knows no functions and no messages.

mod budget;
mod clock;
mod clock_control;
mod files;
mod label;
mod net;
pub mod private_files;
mod program;
pub mod regular_file;
mod sleeper;

pub use budget::{Budget, Taken};
pub use clock::Clock;
pub use clock_control::{ClockControl, Held};
pub use files::replace as replace_file;
pub use label::{LABEL_RULE, is_label};
pub use net::is_loopback;
pub use program::this_program;
pub use sleeper::Sleeper;
