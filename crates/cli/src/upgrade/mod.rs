//! `edgefaas upgrade`: a verified version takes the place of the installed one, and leaves it again if the node does not get ready.
//!
//! - [`release`]: files with signed sums; [`foreign`]: programs that do not run here
//! - [`program`] over [`installed`]: a program that was copied or came from the tarball
//! - [`package`] over [`dpkg`]: the Debian package
//! - [`service`]: the restart of the node, and the wait until it is ready

pub mod dpkg;
pub mod foreign;
pub mod installed;
pub mod package;
pub mod program;
pub mod release;
pub mod service;
