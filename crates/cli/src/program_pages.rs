//! Resident pages of the program's own file that a node at rest does not need.
//!
//! The start reads a configuration, opens a store and makes programs of functions; a deploy and a page of the dashboard
//! run code of their own too. The kernel maps each page that was read, with its neighbours, and counts it as resident until
//! memory is short, when it takes pages that are mapped after others. Pages that the node unmaps stay in the page cache
//! while memory is free, and are the first that go when it is not. One that is needed again is mapped by a page fault; if
//! such faults read the disk, memory is short, the kernel does this work itself, and the node leaves it to it.

use std::time::Duration;

use procfs::ProcError;
use procfs::process::{MMPermissions, MemoryMap, Process};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use thiserror::Error;
use tokio::time::MissedTickBehavior;

/// Time between two looks at the resident pages.
const INTERVAL: Duration = Duration::from_secs(2);
/// The pages are at rest if their size changes by less between two looks.
const AT_REST_BYTES: u64 = 512 << 10;
/// They are given back if they are this much more than those that were needed after the last time.
const WORTHWHILE_BYTES: u64 = 4 << 20;
/// Page faults that read the disk after pages were given back. So many show that memory is short.
const MAX_FAULTS_FROM_DISK: u64 = 32;

/// Why pages stay resident.
#[derive(Debug, Error)]
pub enum GiveBackError {
    /// The kernel does not say what is mapped or resident.
    #[error("the mappings of this process cannot be read: {0}")]
    Mappings(#[from] ProcError),
    /// The kernel keeps the pages, as it does after `mlockall`.
    #[error("the kernel keeps the pages: {0}")]
    Kept(#[from] Errno),
}

/// Gives the pages back whenever the node comes to rest. It ends at the first error and when memory is short, and is cancelled by a
/// drop.
pub async fn give_back_at_rest() {
    let mut looks = tokio::time::interval(INTERVAL);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut course = Course::default();
    loop {
        looks.tick().await;
        let look =
            file_backed_bytes().and_then(|bytes| Ok(course.look(bytes, Process::myself()?.stat()?.majflt)));
        let done = match look {
            Ok(Look::AtRest) => give_back(),
            Ok(Look::Needed) => Ok(()),
            Ok(Look::MemoryIsShort) => {
                tracing::debug!(
                    "pages of the program are read from the disk again: the kernel takes them when it has to"
                );
                return;
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "pages of the program stay resident");
            return;
        }
    }
}

/// Resident file-backed bytes, look by look.
#[derive(Default)]
struct Course {
    last_bytes: u64,
    needed: Needed,
    /// Page faults that had read the disk when pages were given back last; `None` before.
    faults_then: Option<u64>,
}

/// What was resident at the look after the pages were given back.
#[derive(Default)]
enum Needed {
    /// They never were.
    #[default]
    Unknown,
    /// The next look tells.
    AtNextLook,
    Bytes(u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// The pages are to be given back.
    AtRest,
    Needed,
    /// Pages that were given back had to be read from the disk.
    MemoryIsShort,
}

impl Course {
    /// Takes the resident bytes, and the page faults that have read the disk since the start of the process.
    fn look(&mut self, bytes: u64, major_faults: u64) -> Look {
        if self.faults_then.is_some_and(|then| major_faults > then + MAX_FAULTS_FROM_DISK) {
            return Look::MemoryIsShort;
        }
        let changed_bytes = bytes.abs_diff(std::mem::replace(&mut self.last_bytes, bytes));
        let needed_bytes = match self.needed {
            Needed::Unknown => 0,
            Needed::AtNextLook => bytes,
            Needed::Bytes(needed) => needed.min(bytes),
        };
        if changed_bytes < AT_REST_BYTES && bytes >= needed_bytes + WORTHWHILE_BYTES {
            self.needed = Needed::AtNextLook;
            self.faults_then = Some(major_faults);
            return Look::AtRest;
        }
        if !matches!(self.needed, Needed::Unknown) {
            self.needed = Needed::Bytes(needed_bytes);
        }
        Look::Needed
    }
}

fn file_backed_bytes() -> Result<u64, GiveBackError> {
    let pages = Process::myself()?.statm()?.shared;
    Ok(pages * procfs::page_size())
}

/// Unmaps the pages of the program's file that nobody can have written.
fn give_back() -> Result<(), GiveBackError> {
    let maps = Process::myself()?.maps()?;
    let code = give_back as *const () as usize as u64;
    let Some(program) = maps.iter().find(|map| map.address.0 <= code && code < map.address.1) else {
        return Ok(());
    };
    for map in maps.iter().filter(|map| is_never_written(map, program)) {
        let (start, end) = map.address;
        // SAFETY: a private mapping of a file, which was never writable: the next access reads the file's bytes again. The
        // loader writes relocations into mappings behind the code only.
        #[expect(unsafe_code, reason = "the advice drops pages")]
        unsafe {
            madvise(start as usize as *mut _, (end - start) as usize, Advice::LinuxDontNeed)?;
        }
    }
    Ok(())
}

/// If this is the mapping of the program's code, or one of the same file with a lower offset: constants. What follows the
/// code in the file has relocations, which the file does not have.
fn is_never_written(map: &MemoryMap, program: &MemoryMap) -> bool {
    let is_of_program = map.dev == program.dev && map.inode == program.inode && program.inode != 0;
    let is_writable = map.perms.contains(MMPermissions::WRITE);
    is_of_program && !is_writable && map.offset <= program.offset
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pages_leave_when_their_size_rests() {
        let mut course = Course::default();
        assert_eq!(course.look(20 * MIB, 0), Look::Needed, "the start goes on");
        assert_eq!(course.look(35 * MIB, 0), Look::Needed, "and goes on");
        assert_eq!(course.look(35 * MIB, 0), Look::AtRest);
        assert_eq!(course.look(15 * MIB, 0), Look::Needed, "what is needed comes back");
        assert_eq!(course.look(15 * MIB, 0), Look::Needed);
        assert_eq!(course.look(15 * MIB + 3 * MIB, 0), Look::Needed, "too little");
        assert_eq!(course.look(18 * MIB, 0), Look::Needed);
        assert_eq!(course.look(30 * MIB, 0), Look::Needed, "a deploy");
        assert_eq!(course.look(30 * MIB, 0), Look::AtRest);
    }

    #[test]
    fn a_node_under_load_keeps_what_it_needs() {
        let mut course = Course::default();
        let looks: Vec<Look> = (0..10).map(|_| course.look(30 * MIB, 0)).collect();
        assert_eq!(looks.iter().filter(|look| **look == Look::AtRest).count(), 1, "{looks:?}");
    }

    #[test]
    fn pages_that_come_back_from_the_disk_stay() {
        let mut course = Course::default();
        // The start reads the disk.
        assert_eq!(course.look(35 * MIB, 500), Look::Needed);
        assert_eq!(course.look(35 * MIB, 900), Look::AtRest);
        assert_eq!(course.look(15 * MIB, 900 + MAX_FAULTS_FROM_DISK), Look::Needed, "a few are none");
        assert_eq!(course.look(15 * MIB, 901 + MAX_FAULTS_FROM_DISK), Look::MemoryIsShort);
    }

    #[test]
    fn the_kernel_takes_the_pages_and_the_program_goes_on() {
        let before = file_backed_bytes().unwrap();
        give_back().unwrap();
        let after = file_backed_bytes().unwrap();
        assert!(after < before, "{before} bytes before, {after} after");
    }
}
