//! The memory limit of this process: that of the machine, or the smallest of the control groups that contain the process.
//!
//! Control groups of version 1 and 2, hybrid systems, nested groups, bind mounts and group namespaces (cgroups(7),
//! proc_pid_cgroup(5), proc_pid_mountinfo(5)). Files are read by a function that tests replace.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reads a file as text; `None` if it does not exist or cannot be read.
type ReadFile = dyn Fn(&Path) -> Option<String> + Send + Sync;

/// Limits of version 1 are at least this where none is set.
const NO_LIMIT_BYTES: u64 = 1 << 60;
/// The limit where nothing can be read.
const FALLBACK_BYTES: u64 = 1 << 30;
const MEMINFO: &str = "/proc/meminfo";

/// The memory that this process may use, and the file that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit.
    pub bytes: u64,
    /// The origin of the limit.
    pub source: LimitSource,
}

/// The origin of a memory limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitSource {
    /// The memory of the machine.
    Machine,
    /// A file of a control group.
    Group(PathBuf),
    /// No limit could be read: the limit is a default.
    Unknown,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => out.write_str("the machine"),
            Self::Group(file) => write!(out, "{}", file.display()),
            Self::Unknown => out.write_str("default"),
        }
    }
}

/// Memory that is left within one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLevel {
    /// The limit.
    pub limit_bytes: u64,
    /// Bytes that are free, or in use by file pages that the kernel takes back when memory is short.
    pub available_bytes: u64,
}

/// The control groups of this process, and the machine.
#[derive(Clone)]
pub struct ProcessMemory {
    /// Control groups, from the group of the process to the outermost visible one.
    groups: Arc<[Group]>,
    read: Arc<ReadFile>,
}

/// A control group that counts the memory of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    version: Version,
    folder: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl fmt::Debug for ProcessMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ProcessMemory").field("groups", &self.groups).finish_non_exhaustive()
    }
}

impl ProcessMemory {
    /// Finds the control groups of this process.
    pub fn find() -> Self {
        Self::with(|path: &Path| fs::read_to_string(path).ok())
    }

    /// The memory of the process, by the text of the files that `read` returns.
    pub fn with(read: impl Fn(&Path) -> Option<String> + Send + Sync + 'static) -> Self {
        let text = |path: &str| read(Path::new(path)).unwrap_or_default();
        let groups = groups(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"), &read);
        Self { groups: groups.into(), read: Arc::new(read) }
    }

    /// The smallest limit. Reads the files each time, as limits may change while the process runs.
    pub fn limit(&self) -> MemoryLimit {
        let machine = self.machine().map(|level| (level.limit_bytes, LimitSource::Machine));
        let groups = self.groups.iter().filter_map(|group| {
            let (bytes, file) = group.limit(&*self.read)?;
            Some((bytes, LimitSource::Group(file)))
        });
        let smallest = machine.into_iter().chain(groups).min_by_key(|(bytes, _)| *bytes);
        let (bytes, source) = smallest.unwrap_or((FALLBACK_BYTES, LimitSource::Unknown));
        MemoryLimit { bytes, source }
    }

    /// The level of the limit with the fewest bytes left.
    pub fn level(&self) -> Option<MemoryLevel> {
        let groups = self.groups.iter().filter_map(|group| group.level(&*self.read));
        self.machine().into_iter().chain(groups).min_by_key(|level| level.available_bytes)
    }

    fn machine(&self) -> Option<MemoryLevel> {
        machine(&(self.read)(Path::new(MEMINFO))?)
    }
}

impl Group {
    /// The smallest limit that this group states, with its file.
    fn limit(&self, read: &ReadFile) -> Option<(u64, PathBuf)> {
        let number = |name: &str| {
            let file = self.folder.join(name);
            let bytes = read(&file)?.trim().parse().ok().filter(|bytes| *bytes < NO_LIMIT_BYTES)?;
            Some((bytes, file))
        };
        match self.version {
            // Above `memory.high` the kernel slows the group down until nothing moves.
            Version::Two => {
                ["memory.max", "memory.high"].into_iter().filter_map(number).min_by_key(|(bytes, _)| *bytes)
            }
            Version::One => {
                // Also of groups outside of the namespace or the mount.
                let file = self.folder.join("memory.stat");
                let above = read(&file).and_then(|stat| field(&stat, "hierarchical_memory_limit"));
                let above = above.filter(|bytes| *bytes < NO_LIMIT_BYTES).map(|bytes| (bytes, file));
                // If two limits are equal, the first one is used: it is the limit that an operator wrote.
                number("memory.limit_in_bytes").into_iter().chain(above).min_by_key(|(bytes, _)| *bytes)
            }
        }
    }

    fn level(&self, read: &ReadFile) -> Option<MemoryLevel> {
        let (limit_bytes, _) = self.limit(read)?;
        let (usage, inactive, active) = match self.version {
            Version::One => ("memory.usage_in_bytes", "total_inactive_file", "total_active_file"),
            Version::Two => ("memory.current", "inactive_file", "active_file"),
        };
        let used_bytes: u64 = read(&self.folder.join(usage))?.trim().parse().ok()?;
        let stat = read(&self.folder.join("memory.stat")).unwrap_or_default();
        // The calculation of MemAvailable of the machine: the kernel takes half of the pages that are in use, too.
        let reclaimable =
            field(&stat, inactive).unwrap_or(0).saturating_add(field(&stat, active).unwrap_or(0) / 2);
        let left = limit_bytes.saturating_sub(used_bytes.saturating_sub(reclaimable));
        Some(MemoryLevel { limit_bytes, available_bytes: left.min(limit_bytes) })
    }
}

/// The groups of the process by `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn groups(cgroup: &str, mountinfo: &str, read: &ReadFile) -> Vec<Group> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let version = match controllers {
            "" => Version::Two,
            controllers if controllers.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        let Some((mount, below)) = mounted(mountinfo, version, path) else { continue };
        for folder in mount.join(below).ancestors().take_while(|folder| folder.starts_with(&mount)) {
            found.push(Group { version, folder: folder.to_owned() });
            // Without a hierarchy, which old kernels let one choose, groups above do not count this one.
            let flat = || read(&folder.parent()?.join("memory.use_hierarchy"));
            if version == Version::One && flat().is_some_and(|text| text.trim() == "0") {
                break;
            }
        }
    }
    found
}

/// The mount point of the hierarchy, and the group's path below it.
fn mounted(mountinfo: &str, version: Version, path: &str) -> Option<(PathBuf, PathBuf)> {
    let mut mounts = mountinfo.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let mut fields = file_system.split(' ');
        let (kind, _, options) = (fields.next()?, fields.next()?, fields.next()?);
        let fits = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::Two => kind == "cgroup2",
        };
        fits.then(|| (PathBuf::from(root), PathBuf::from(point)))
    });
    let path = Path::new(path);
    // In some containers the path belongs to another namespace than the mounts: the mount is the group itself then.
    let below = |root: &Path| match path.strip_prefix(root) {
        Ok(below) if !below.components().any(|part| part.as_os_str() == "..") => Some(below.to_owned()),
        _ => None,
    };
    let mut first = None;
    mounts
        .find_map(|(root, point)| {
            let found = below(&root).map(|below| (point.clone(), below));
            first.get_or_insert(point);
            found
        })
        .or_else(|| Some((first?, PathBuf::new())))
}

/// Spaces and backslashes are octal in `mountinfo`.
fn unescaped(text: &str) -> String {
    let mut plain = text.to_owned();
    for (escaped, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(escaped, character);
    }
    plain
}

/// `/proc/meminfo` (proc_meminfo(5)).
fn machine(info: &str) -> Option<MemoryLevel> {
    let kib = |name: &str| -> Option<u64> {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
    };
    let limit_bytes = kib("MemTotal")?;
    Some(MemoryLevel { limit_bytes, available_bytes: kib("MemAvailable").unwrap_or(limit_bytes) })
}

/// A line `name number` of `memory.stat`.
fn field(stat: &str, name: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";
    const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

    /// A machine with 1 GB and these files.
    fn process(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> ProcessMemory {
        let fixed = [
            ("/proc/self/cgroup", cgroup),
            ("/proc/self/mountinfo", mountinfo),
            (MEMINFO, "MemTotal:  1048576 kB\nMemFree: 10 kB\nMemAvailable:  524288 kB\n"),
        ];
        let files: Vec<(PathBuf, String)> = fixed
            .iter()
            .chain(files)
            .map(|(path, text)| (PathBuf::from(*path), (*text).to_owned()))
            .collect();
        ProcessMemory::with(move |path| {
            files.iter().find(|(known, _)| known == path).map(|(_, text)| text.clone())
        })
    }

    fn limit(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> (u64, String) {
        let MemoryLimit { bytes, source } = process(cgroup, mountinfo, files).limit();
        (bytes, source.to_string())
    }

    #[test]
    fn a_machine_without_groups_is_its_own_limit() {
        assert_eq!(limit("", "", &[]), (1 << 30, "the machine".to_owned()));
        let unlimited = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit("4:memory:/\n", V1, &[unlimited]).0, 1 << 30);
        assert_eq!(limit("0::/\n", V2, &[("/sys/fs/cgroup/memory.max", "max\n")]).0, 1 << 30);
        assert_eq!(
            ProcessMemory::with(|_| None).limit(),
            MemoryLimit { bytes: FALLBACK_BYTES, source: LimitSource::Unknown }
        );
        assert_eq!(limit("rubbish\n0:\n", "rubbish - \n1 2 - cgroup\n", &[]).0, 1 << 30);
    }

    #[test]
    fn the_smallest_of_nested_groups_of_version_2_is_the_limit() {
        let cgroup = "0::/system.slice/edgefaas.service\n";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        let unit = "/sys/fs/cgroup/system.slice/edgefaas.service/memory.max";
        let (own, above) = ((unit, "268435456\n"), (slice, "134217728\n"));
        assert_eq!(limit(cgroup, V2, &[own]), (256 * MIB, unit.to_owned()));
        assert_eq!(limit(cgroup, V2, &[own, above]), (128 * MIB, slice.to_owned()));
        let high = "/sys/fs/cgroup/system.slice/edgefaas.service/memory.high";
        assert_eq!(limit(cgroup, V2, &[own, (high, "67108864\n")]), (64 * MIB, high.to_owned()));
    }

    #[test]
    fn the_smallest_of_nested_groups_of_version_1_is_the_limit() {
        let cgroup = "7:blkio:/\n4:memory:/box/node\n0::/\n";
        let folder = "/sys/fs/cgroup/memory/box/node";
        let own = format!("{folder}/memory.limit_in_bytes");
        let parent = "/sys/fs/cgroup/memory/box/memory.limit_in_bytes";
        let files = [(own.as_str(), "268435456\n"), (parent, "134217728\n")];
        assert_eq!(limit(cgroup, V1, &files), (128 * MIB, parent.to_owned()));
        // A group that does not count those below it.
        let flat = ("/sys/fs/cgroup/memory/box/memory.use_hierarchy", "0\n");
        assert_eq!(limit(cgroup, V1, &[files[0], files[1], flat]), (256 * MIB, own.clone()));
        // The limit of a group that is not visible here.
        let stat = format!("{folder}/memory.stat");
        let above = (stat.as_str(), "cache 0\nhierarchical_memory_limit 67108864\n");
        assert_eq!(limit(cgroup, V1, &[files[0], above]), (64 * MIB, stat.clone()));
    }

    #[test]
    fn hybrid_systems_have_the_controller_in_version_1() {
        let cgroup = "4:memory:/process/a\n0::/process/a\n";
        let unified = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let own = "/sys/fs/cgroup/memory/process/a/memory.limit_in_bytes";
        let found = limit(cgroup, &format!("{V1}{unified}"), &[(own, "134217728\n")]);
        assert_eq!(found, (128 * MIB, own.to_owned()));
    }

    #[test]
    fn containers_see_their_group_as_the_root() {
        // A group namespace.
        let max = ("/sys/fs/cgroup/memory.max", "134217728\n");
        assert_eq!(limit("0::/\n", V2, &[max]).0, 128 * MIB);
        // A bind mount of the group, while the path is the host's.
        let bound = "35 31 0:32 /docker/a\\040b /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let own = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "134217728\n");
        assert_eq!(limit("4:memory:/docker/a b\n", bound, &[own]).0, 128 * MIB);
        // Paths of another namespace: outside of the root, and of a mount elsewhere.
        assert_eq!(limit("4:memory:/../other\n", V1, &[own]).0, 128 * MIB);
        assert_eq!(limit("4:memory:/elsewhere\n", bound, &[own]).0, 128 * MIB);
    }

    #[test]
    fn the_level_is_that_of_the_limit_with_the_fewest_bytes_left() {
        let machine = MemoryLevel { limit_bytes: 1 << 30, available_bytes: 512 * MIB };
        assert_eq!(process("", "", &[]).level(), Some(machine));
        let folder = "/sys/fs/cgroup";
        let (max, current, stat) = (
            format!("{folder}/memory.max"),
            format!("{folder}/memory.current"),
            format!("{folder}/memory.stat"),
        );
        let files = [
            (max.as_str(), "1000\n"),
            (&current, "950\n"),
            (&stat, "anon 1\ninactive_file 60\nactive_file 5\n"),
        ];
        let level = process("0::/\n", V2, &files).level();
        assert_eq!(level, Some(MemoryLevel { limit_bytes: 1000, available_bytes: 112 }));
        let files = [
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000\n"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "950\n"),
            ("/sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 60\n"),
        ];
        let level = process("4:memory:/\n", V1, &files).level();
        assert_eq!(level, Some(MemoryLevel { limit_bytes: 1000, available_bytes: 110 }));
    }
}
