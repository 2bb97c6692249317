//! What a process did to a folder and sent to its sockets, in order, as strace saw it; and what of it a disk still has
//! after a power cut.
//!
//! The model of the disk is the one of file systems with a metadata journal (ext4, XFS, btrfs, F2FS):
//! - what was written to a file is there if an `fsync` or `fdatasync` of that file began after the write had returned,
//!   and returned before the cut; of what was written later to it, each sector of 512 bytes has some prefix, whatever the
//!   others have,
//! - files are made, cut, renamed and removed in the order in which the process asked for it; all that it asked for
//!   before the last sync that returned has happened, and of the rest a prefix.
//!
//! Not in the model: sectors that are torn, disks that lie about syncs, bits that rot.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::load::Random;

/// Calls that are recorded. Those that are not replayed must not happen to the folder.
pub const CALLS: &str = "openat,open,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,pwritev,pwritev2,\
    sendto,sendmsg,ftruncate,truncate,fallocate,fsync,fdatasync,sync_file_range,rename,renameat,renameat2,unlink,\
    unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,copy_file_range,sendfile,mmap,io_uring_setup";

const SECTOR_BYTES: u64 = 512;

/// A recorded run: events in the order in which they began or ended.
pub struct Recording {
    events: Vec<Event>,
    /// When each event was, in microseconds since 1970.
    times_us: Vec<u64>,
}

#[derive(Debug)]
enum Event {
    /// A change of the folder; `ended` is the event at which the call had returned.
    Change { change: Change, ended: usize },
    /// A sync of a file began at this event, and returned at `ended`.
    Sync { file: PathBuf, ended: usize },
    /// Bytes began to be sent to a socket.
    Sent { socket: String, bytes: Vec<u8> },
    /// A call returned.
    Returned,
}

#[derive(Debug)]
enum Change {
    Create(PathBuf),
    Folder(PathBuf),
    Write(PathBuf, u64, Vec<u8>),
    Length(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

/// One finished call.
struct Call {
    name: String,
    arguments: String,
    result: String,
    began: usize,
    ended: usize,
}

/// A file that is open: where the next write goes.
#[derive(Clone)]
struct Open {
    file: PathBuf,
    append: bool,
    /// Descriptors that were copied share their position.
    position: usize,
}

impl Recording {
    /// Reads strace's output (`-f -ttt -yy -xx`) about `folder`.
    pub fn read(trace: &str, folder: &Path) -> Self {
        let (mut calls, mut times_us) = calls(trace);
        calls.sort_by_key(|call| call.began);
        let count = calls.iter().map(|call| call.ended + 1).max().unwrap_or_default();
        let mut events: Vec<Event> = std::iter::repeat_with(|| Event::Returned).take(count).collect();
        let mut reader =
            Reader { folder, open: HashMap::new(), positions: Vec::new(), lengths: HashMap::new() };
        for call in &calls {
            if let Some(event) = reader.event(call) {
                events[call.began] = event;
            }
        }
        times_us.truncate(count);
        Self { events, times_us }
    }

    /// When an event was, in microseconds since 1970.
    pub fn time_us(&self, at: usize) -> u64 {
        self.times_us[at]
    }

    /// The first event after this time: a cut before it leaves what was done by then.
    pub fn after_us(&self, time_us: u64) -> usize {
        self.times_us.partition_point(|time| *time <= time_us)
    }

    /// The points in time right after something was sent, with what had been sent by then: candidates for a cut.
    pub fn sent(&self) -> Vec<(usize, String, Vec<u8>)> {
        let sent = self.events.iter().enumerate().filter_map(|(at, event)| match event {
            Event::Sent { socket, bytes } => Some((at + 1, socket.clone(), bytes.clone())),
            _ => None,
        });
        sent.collect()
    }

    pub fn syncs(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Sync { .. })).count()
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Makes `to` what the disk has of the folder after a power cut before the event `cut`: only what was synced, or
    /// some of the rest too.
    pub fn restore(&self, cut: usize, to: &Path, random: &mut Random, unsynced: bool) {
        // When the last sync of each file began that had returned before the cut.
        let mut syncs: HashMap<&Path, usize> = HashMap::new();
        for (began, event) in self.events.iter().enumerate().take(cut) {
            if let Event::Sync { file, ended } = event
                && *ended < cut
            {
                syncs.insert(file, began);
            }
        }
        let synced = |file: &Path, ended: usize| syncs.get(file).is_some_and(|began| *began >= ended);
        let last_sync = self.events.iter().take(cut).filter_map(|event| match event {
            Event::Sync { ended, .. } if *ended < cut => Some(*ended),
            _ => None,
        });
        let journaled = last_sync.max().unwrap_or(0);
        let journaled = if unsynced {
            journaled + random.below((cut - journaled) as u64 + 1) as usize
        } else {
            journaled
        };
        let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
        let mut folders: Vec<PathBuf> = Vec::new();
        // Sectors whose later writes are lost, once one of them is.
        let mut lost: HashSet<(&Path, u64)> = HashSet::new();
        // Names change, contents stay: syncs are asked for by the name of their time.
        for (at, event) in self.events.iter().enumerate().take(cut) {
            let Event::Change { change, ended } = event else { continue };
            let there = at < journaled;
            match change {
                Change::Write(file, offset, bytes) => {
                    let Some(content) = files.get_mut(file) else { continue };
                    let synced = synced(file, *ended);
                    let mut at = 0;
                    while at < bytes.len() {
                        let offset = *offset + at as u64;
                        let sector = offset / SECTOR_BYTES;
                        let end = bytes.len().min(at + ((sector + 1) * SECTOR_BYTES - offset) as usize);
                        let gone = !synced
                            && (!unsynced
                                || lost.contains(&(file.as_path(), sector))
                                || random.below(4) == 0);
                        if gone {
                            lost.insert((file.as_path(), sector));
                        } else {
                            let (start, length) = (offset as usize, end - at);
                            if content.len() < start + length {
                                content.resize(start + length, 0);
                            }
                            content[start..start + length].copy_from_slice(&bytes[at..end]);
                        }
                        at = end;
                    }
                }
                Change::Create(file) if there => {
                    files.insert(file.clone(), Vec::new());
                }
                Change::Folder(folder) if there => folders.push(folder.clone()),
                Change::Length(file, length) if there || synced(file, *ended) => {
                    if let Some(content) = files.get_mut(file) {
                        content.resize(*length as usize, 0);
                    }
                }
                Change::Rename(from, to) if there => {
                    if let Some(content) = files.remove(from) {
                        files.insert(to.clone(), content);
                    }
                }
                Change::Remove(file) if there => {
                    files.remove(file);
                    folders.retain(|folder| folder != file);
                }
                _ => {}
            }
        }
        std::fs::create_dir_all(to).unwrap();
        for folder in folders {
            std::fs::create_dir_all(to.join(folder)).unwrap();
        }
        for (file, content) in files {
            let path = to.join(file);
            std::fs::create_dir_all(path.parent().expect("within the folder")).unwrap();
            // Not one write: what is zero at the end stays a hole, as in the original.
            let end = content.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            std::fs::write(&path, &content[..end]).unwrap();
            // A recording knows no modes, and a node takes no keys that others can read.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            std::fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(content.len() as u64)
                .unwrap();
        }
    }
}

struct Reader<'a> {
    folder: &'a Path,
    open: HashMap<i64, Open>,
    positions: Vec<u64>,
    lengths: HashMap<PathBuf, u64>,
}

impl Reader<'_> {
    fn event(&mut self, call: &Call) -> Option<Event> {
        let result: i64 = call.result.split(['<', ' ']).next().and_then(|number| number.parse().ok())?;
        if result < 0 {
            return None;
        }
        let arguments = split(&call.arguments);
        let argument = |at: usize| arguments.get(at).copied().unwrap_or_default();
        let descriptor = || argument(0).split('<').next().and_then(|number| number.parse::<i64>().ok());
        let change = |change| Some(Event::Change { change, ended: call.ended });
        match &call.name[..] {
            "openat" => return self.opened(call, argument(1), argument(2), result),
            "open" | "creat" | "truncate" | "link" | "linkat" | "symlink" => {
                assert!(!call.arguments.contains(&hex(self.folder)), "{} is not replayed", call.name);
            }
            "dup" | "dup2" | "dup3" | "fcntl" => {
                let copies = call.name != "fcntl" || argument(1).starts_with("F_DUPFD");
                if copies && let Some(open) = self.open.get(&descriptor()?).cloned() {
                    self.open.insert(result, open);
                }
            }
            "close" => drop(self.open.remove(&descriptor()?)),
            "lseek" => {
                if let Some(open) = self.open.get(&descriptor()?) {
                    self.positions[open.position] = result as u64;
                }
            }
            "write" | "writev" | "sendto" | "sendmsg" if argument(0).contains("<TCP:") => {
                let bytes = strings(&call.arguments).concat();
                let socket = argument(0).to_owned();
                let bytes = bytes[..result as usize].to_vec();
                return Some(Event::Sent { socket, bytes });
            }
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => {
                let open = self.open.get(&descriptor()?)?.clone();
                let bytes = strings(&arguments[1..].join(", ")).concat()[..result as usize].to_vec();
                let length = self.lengths.entry(open.file.clone()).or_default();
                let position = &mut self.positions[open.position];
                let offset = match &call.name[..] {
                    "write" | "writev" if open.append => *length,
                    "write" | "writev" => *position,
                    _ => argument(3).parse().expect("an offset"),
                };
                let end = offset + bytes.len() as u64;
                *length = end.max(*length);
                if !call.name.starts_with('p') {
                    *position = end;
                }
                return change(Change::Write(open.file, offset, bytes));
            }
            "ftruncate" => {
                let open = self.open.get(&descriptor()?)?.clone();
                let length = argument(1).parse().expect("a length");
                self.lengths.insert(open.file.clone(), length);
                return change(Change::Length(open.file, length));
            }
            "fsync" | "fdatasync" => {
                let open = self.open.get(&descriptor()?)?;
                return Some(Event::Sync { file: open.file.clone(), ended: call.ended });
            }
            "rename" => return self.renamed(argument(0), argument(1)).and_then(change),
            "renameat" | "renameat2" => return self.renamed(argument(1), argument(3)).and_then(change),
            "unlink" | "rmdir" => return self.within(argument(0)).map(Change::Remove).and_then(change),
            "unlinkat" => return self.within(argument(1)).map(Change::Remove).and_then(change),
            "mkdir" => return self.within(argument(0)).map(Change::Folder).and_then(change),
            "mkdirat" => return self.within(argument(1)).map(Change::Folder).and_then(change),
            "mmap" => {
                let shared = call.arguments.contains("MAP_SHARED") && call.arguments.contains("PROT_WRITE");
                assert!(!(shared && call.arguments.contains(&hex(self.folder))), "a writable mapping");
            }
            "io_uring_setup" => panic!("io_uring is not replayed"),
            // The rest is not replayed, and must not concern the folder.
            name => assert!(!call.arguments.contains(&hex(self.folder)), "{name} is not replayed"),
        }
        None
    }

    fn opened(&mut self, call: &Call, path: &str, flags: &str, descriptor: i64) -> Option<Event> {
        self.open.remove(&descriptor);
        let file = self.within(path)?;
        let has = |flag: &str| flags.split('|').any(|found| found == flag);
        self.positions.push(0);
        let open = Open { file: file.clone(), append: has("O_APPEND"), position: self.positions.len() - 1 };
        self.open.insert(descriptor, open);
        let created = has("O_CREAT") && !self.lengths.contains_key(&file);
        if created || has("O_TRUNC") {
            self.lengths.insert(file.clone(), 0);
        }
        let change = match (created, has("O_TRUNC")) {
            (true, _) => Change::Create(file),
            (false, true) => Change::Length(file, 0),
            _ => return None,
        };
        Some(Event::Change { change, ended: call.ended })
    }

    fn renamed(&mut self, from: &str, to: &str) -> Option<Change> {
        let (from, to) = (self.within(from)?, self.within(to)?);
        let length = self.lengths.remove(&from)?;
        self.lengths.insert(to.clone(), length);
        // Whoever has it open goes on under its new name; so do syncs.
        for open in self.open.values_mut().filter(|open| open.file == from) {
            open.file.clone_from(&to);
        }
        Some(Change::Rename(from, to))
    }

    /// A path in the folder, relative to it.
    fn within(&self, argument: &str) -> Option<PathBuf> {
        let bytes = strings(argument).concat();
        let path = PathBuf::from(String::from_utf8(bytes).ok()?);
        path.strip_prefix(self.folder).ok().map(Path::to_owned)
    }
}

fn hex(path: &Path) -> String {
    path.to_str().expect("text").bytes().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// The contents of all quoted strings.
fn strings(text: &str) -> Vec<Vec<u8>> {
    let quoted = text.split('"').skip(1).step_by(2);
    let bytes = |string: &str| {
        let digits = string.split("\\x").skip(1);
        digits.map(|digits| u8::from_str_radix(digits, 16).expect("strace -xx")).collect()
    };
    quoted.map(bytes).collect()
}

/// Splits arguments at commas that are in no brackets; with `-xx` strings have none.
fn split(arguments: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, byte) in arguments.bytes().enumerate() {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(arguments[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(arguments[start..].trim());
    parts
}

/// Joins the lines of calls that other threads interrupted. A line's number is its place in the order of events; the
/// times of all lines in microseconds come too, and never decrease.
fn calls(trace: &str) -> (Vec<Call>, Vec<u64>) {
    let mut unfinished: HashMap<&str, (usize, String)> = HashMap::new();
    let mut calls = Vec::new();
    let mut times_us = Vec::new();
    let mut latest_us = 0;
    for (at, line) in trace.lines().enumerate() {
        let (thread, rest) = line.split_once(' ').unwrap_or_default();
        let (time, rest) = rest.trim_start().split_once(' ').unwrap_or_default();
        // Seconds with six digits after the point.
        let time_us = time.replacen('.', "", 1).parse().unwrap_or(latest_us);
        latest_us = time_us.max(latest_us);
        times_us.push(latest_us);
        let rest = rest.trim_start();
        let (began, whole) = if let Some(resumed) = rest.strip_prefix("<... ") {
            let Some((began, start)) = unfinished.remove(thread) else { continue };
            let (_, end) = resumed.split_once(" resumed>").expect("a resumed call");
            (began, start + end)
        } else if let Some(start) = rest.strip_suffix(" <unfinished ...>") {
            unfinished.insert(thread, (at, start.to_owned()));
            continue;
        } else {
            (at, rest.to_owned())
        };
        // NAME(ARGUMENTS) = RESULT
        let (Some(open), Some(equals)) = (whole.find('('), whole.rfind(" = ")) else { continue };
        let Some(close) = whole[..equals].rfind(')') else { continue };
        calls.push(Call {
            name: whole[..open].to_owned(),
            arguments: whole[open + 1..close].to_owned(),
            result: whole[equals + 3..].to_owned(),
            began,
            ended: at,
        });
    }
    (calls, times_us)
}
