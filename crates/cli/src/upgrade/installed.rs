//! The file of the installed program, the new one beside it, and the kept one. Every change is one rename, synced before the next.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::FlockOperation;
use tokio::process::Command;

use super::foreign::{self, ForeignProgram};

/// Time limit of `--version`: a cold start from an SD card takes seconds.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);
/// The files of the package `edgefaas`, on Debian.
const PACKAGE_FILES: &str = "/var/lib/dpkg/info/edgefaas.list";
/// Maximum length of a text of `--version` in an error, in characters.
const MAX_SAID: usize = 300;

/// The installed program.
#[derive(Debug)]
pub struct Installed {
    path: PathBuf,
}

/// A program beside the installed one. A drop removes it.
#[derive(Debug)]
pub struct Staged {
    path: PathBuf,
    /// File or address that it comes from.
    origin: String,
}

/// The folder of the program, locked against other upgrades until it is dropped.
#[must_use = "a drop releases the lock"]
pub struct Lock {
    _folder: File,
}

/// A step that failed. The installed program is what it was before the step.
#[derive(Debug, thiserror::Error)]
pub enum InstalledError {
    /// There is no such file.
    #[error("there is no program at {}: {reason}; give the installed one with --program", path.display())]
    NotFound { path: PathBuf, reason: io::Error },
    /// Another upgrade holds the lock.
    #[error("another upgrade of a program in {} is running; wait for its end", folder.display())]
    Busy { folder: PathBuf },
    /// A file operation failed.
    #[error("{} cannot be {operation}: {reason}{}", path.display(), remedy(reason))]
    File { operation: &'static str, path: PathBuf, reason: io::Error },
    /// The new file is no program for this machine.
    #[error("{origin} does not run here: {reason}; nothing was installed")]
    Foreign { origin: String, reason: ForeignProgram },
    /// It cannot be started, or `--version` names no version of edgefaas.
    #[error("{program} {reason}")]
    Unusable { program: String, reason: UnusableReason },
    /// There is no kept program.
    #[error("there is no {}: no upgrade has kept a program", path.display())]
    NothingKept { path: PathBuf },
}

/// Why a program does not run.
#[derive(Debug, thiserror::Error)]
pub enum UnusableReason {
    #[error("does not run here: it cannot be started: {0}")]
    Start(io::Error),
    #[error("does not run here, or is not edgefaas: `--version` gave no answer within {} s", VERSION_TIMEOUT.as_secs())]
    Silent,
    #[error("does not run here, or is not edgefaas: `--version` ended with {status}{}", quoted(said))]
    Failed { status: std::process::ExitStatus, said: String },
    /// The dynamic linker refused it.
    #[error(
        "does not run here: it was built for a newer glibc than that of this system{}; take the program of the release",
        quoted(said)
    )]
    NewerGlibc { said: String },
    #[error("is not edgefaas: `--version` wrote {0:?}, and edgefaas writes \"edgefaas VERSION\"")]
    OtherProgram(String),
}

fn quoted(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" and wrote {said:?}") }
}

fn remedy(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::PermissionDenied => "; run the command with sudo",
        io::ErrorKind::StorageFull => "; make room on the disk",
        io::ErrorKind::ReadOnlyFilesystem => "; mount the file system for writing",
        _ => "",
    }
}

impl Installed {
    /// The program at `path`; by default the one that runs. The kept program of an upgrade stands for the installed one, which may not
    /// run any more.
    ///
    /// # Errors
    /// There is none.
    pub fn find(path: Option<&Path>) -> Result<Self, InstalledError> {
        let given = match path {
            Some(path) => path.to_owned(),
            None => std::env::current_exe()
                .map_err(|reason| InstalledError::NotFound { path: "/proc/self/exe".into(), reason })?,
        };
        let path =
            given.canonicalize().map_err(|reason| InstalledError::NotFound { path: given, reason })?;
        let path = match path.extension() {
            Some(extension) if extension == PREVIOUS => path.with_extension(""),
            _ => path,
        };
        Ok(Self { path })
    }

    /// True if the file belongs to the Debian package.
    pub fn is_of_package(&self) -> bool {
        let files = std::fs::read_to_string(PACKAGE_FILES).unwrap_or_default();
        files.lines().any(|file| Path::new(file) == self.path)
    }

    /// The file of the program.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The program before the last upgrade.
    pub fn previous(&self) -> PathBuf {
        self.beside(PREVIOUS)
    }

    /// Excludes other upgrades of programs in the same folder.
    ///
    /// # Errors
    /// Another upgrade runs.
    pub fn lock(&self) -> Result<Lock, InstalledError> {
        let folder = self.folder();
        let file = File::open(folder).map_err(failed("opened", folder))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _folder: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(InstalledError::Busy { folder: folder.to_owned() }),
            Err(error) => Err(failed("locked", folder)(error.into())),
        }
    }

    /// A new empty file for the program of `origin`, beside the installed one.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn stage(&self, origin: String) -> Result<(Staged, File), InstalledError> {
        let path = self.beside("new");
        remove(&path)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(failed("created", &path))?;
        Ok((Staged { path, origin }, file))
    }

    /// The version, as `--version` writes it.
    ///
    /// # Errors
    /// The program does not run.
    pub async fn version(&self) -> Result<String, InstalledError> {
        version(&self.path, &self.path.display().to_string()).await
    }

    /// True if an upgrade has replaced the program and has not ended.
    pub fn is_open(&self) -> bool {
        self.mark().exists()
    }

    /// Keeps the installed program, marks the upgrade as open, and puts the new program in its place.
    ///
    /// # Errors
    /// See [`InstalledError::File`].
    pub fn replace(&self, new: Staged) -> Result<(), InstalledError> {
        let owner = std::fs::metadata(&self.path).map_err(failed("read", &self.path))?;
        let (user, group) = (owner.uid(), owner.gid());
        std::os::unix::fs::chown(&new.path, Some(user), Some(group))
            .map_err(failed("changed", &new.path))?;
        self.copy(&self.path, &self.previous())?;
        let mark = File::create(self.mark()).and_then(|mark| mark.sync_all());
        mark.map_err(failed("created", &self.mark()))?;
        self.sync()?;
        std::fs::rename(&new.path, &self.path).map_err(failed("replaced", &self.path))?;
        self.sync()
    }

    /// Puts the kept program in the place of the installed one. It stays kept.
    ///
    /// # Errors
    /// No program is kept, or a file operation fails.
    pub fn return_to_previous(&self) -> Result<(), InstalledError> {
        let previous = self.previous();
        match previous.exists() {
            true => self.copy(&previous, &self.path),
            false => Err(InstalledError::NothingKept { path: previous }),
        }
    }

    /// Removes the mark of an open upgrade.
    ///
    /// # Errors
    /// See [`InstalledError::File`].
    pub fn close(&self) -> Result<(), InstalledError> {
        remove(&self.mark())?;
        self.sync()
    }

    /// Gives a file a second name, which replaces another file. A file system without hard links gets a copy.
    fn copy(&self, from: &Path, to: &Path) -> Result<(), InstalledError> {
        let link = self.beside("link");
        remove(&link)?;
        if std::fs::hard_link(from, &link).is_err() {
            let copied = std::fs::copy(from, &link).and_then(|_| File::open(&link)?.sync_all());
            copied.map_err(failed("copied", from))?;
        }
        // Two names of one file: rename(2) does nothing, and leaves both.
        std::fs::rename(&link, to).map_err(failed("replaced", to))?;
        remove(&link)?;
        self.sync()
    }

    fn beside(&self, extension: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".");
        path.push(extension);
        path.into()
    }

    fn mark(&self) -> PathBuf {
        self.beside("unverified")
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn sync(&self) -> Result<(), InstalledError> {
        let folder = self.folder();
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("synced", folder))
    }
}

impl Staged {
    /// Makes the written file a program, and checks that it is for this machine.
    ///
    /// # Errors
    /// It is for another machine, or a file operation fails.
    pub fn finish(self, file: File) -> Result<Self, InstalledError> {
        file.set_permissions(PermissionsExt::from_mode(0o755)).map_err(failed("changed", &self.path))?;
        file.sync_all().map_err(failed("synced", &self.path))?;
        // A file that is open for writing cannot be started.
        drop(file);
        match foreign::check(&self.path) {
            Ok(()) => Ok(self),
            Err(reason) => Err(InstalledError::Foreign { origin: self.origin.clone(), reason }),
        }
    }

    /// See [`Installed::version`].
    ///
    /// # Errors
    /// The program does not run.
    pub async fn version(&self) -> Result<String, InstalledError> {
        version(&self.path, &self.origin).await
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Extension of the kept program.
const PREVIOUS: &str = "previous";

/// The version of the program at `path`, which `program` names in errors.
async fn version(path: &Path, program: &str) -> Result<String, InstalledError> {
    let unusable = |reason| InstalledError::Unusable { program: program.to_owned(), reason };
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(VERSION_TIMEOUT, command.output()).await;
    let output = output.map_err(|_| unusable(UnusableReason::Silent))?;
    let output = output.map_err(|error| unusable(UnusableReason::Start(error)))?;
    let text =
        |bytes: &[u8]| -> String { String::from_utf8_lossy(bytes).trim().chars().take(MAX_SAID).collect() };
    if !output.status.success() {
        let said = text(&output.stderr);
        // As ld.so(8) names a missing version of a symbol.
        return Err(unusable(match said.contains("`GLIBC_") {
            true => UnusableReason::NewerGlibc { said },
            false => UnusableReason::Failed { status: output.status, said },
        }));
    }
    let text = text(&output.stdout);
    match text.starts_with("edgefaas ") && !text.contains(char::is_control) {
        true => Ok(text),
        false => Err(unusable(UnusableReason::OtherProgram(text))),
    }
}

fn remove(path: &Path) -> Result<(), InstalledError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removed", path)(error)),
        _ => Ok(()),
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstalledError {
    let path = path.to_owned();
    move |reason| InstalledError::File { operation, path, reason }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Folder {
        folder: tempfile::TempDir,
        installed: Installed,
    }

    impl Folder {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("edgefaas");
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            let installed = Installed::find(Some(&path)).unwrap();
            Self { folder, installed }
        }

        fn staged(&self, text: &str) -> Staged {
            let (staged, mut file) = self.installed.stage("new".to_owned()).unwrap();
            io::Write::write_all(&mut file, text.as_bytes()).unwrap();
            staged
        }

        fn text(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.folder.path().join(name)).ok()
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.folder.path()).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    #[test]
    fn a_replaced_program_is_kept_and_returns() {
        let folder = Folder::new();
        folder.installed.replace(folder.staged("new")).unwrap();
        assert_eq!(folder.text("edgefaas").as_deref(), Some("new"));
        assert_eq!(folder.text("edgefaas.previous").as_deref(), Some("old"));
        assert!(folder.installed.is_open());
        folder.installed.close().unwrap();
        assert!(!folder.installed.is_open());
        assert_eq!(folder.names(), ["edgefaas", "edgefaas.previous"]);

        folder.installed.return_to_previous().unwrap();
        assert_eq!(folder.text("edgefaas").as_deref(), Some("old"));
        // A second time the two names are one file.
        folder.installed.return_to_previous().unwrap();
        assert_eq!(folder.names(), ["edgefaas", "edgefaas.previous"]);
    }

    #[test]
    fn every_step_leaves_a_program_and_what_it_leaves_is_cleared() {
        // A power cut after the first, the second and the third step of `replace`.
        for step in 1..=3 {
            let folder = Folder::new();
            let path = |name: &str| folder.folder.path().join(name);
            fs::write(path("edgefaas.new"), "half of a prog").unwrap();
            fs::write(path("edgefaas.link"), "half").unwrap();
            fs::copy(path("edgefaas"), path("edgefaas.previous")).unwrap();
            if step >= 2 {
                fs::write(path("edgefaas.unverified"), "").unwrap();
            }
            if step >= 3 {
                fs::write(path("edgefaas"), "unverified").unwrap();
            }
            assert_eq!(folder.installed.is_open(), step >= 2);
            if folder.installed.is_open() {
                folder.installed.return_to_previous().unwrap();
                folder.installed.close().unwrap();
            }
            assert_eq!(folder.text("edgefaas").as_deref(), Some("old"));
            folder.installed.replace(folder.staged("new")).unwrap();
            folder.installed.close().unwrap();
            assert_eq!(folder.text("edgefaas").as_deref(), Some("new"));
            assert_eq!(folder.text("edgefaas.previous").as_deref(), Some("old"));
            assert_eq!(folder.names(), ["edgefaas", "edgefaas.previous"], "step {step}");
        }
    }

    #[test]
    fn a_file_that_does_not_run_here_is_refused() {
        let folder = Folder::new();
        let (staged, mut file) = folder.installed.stage("a.gz".to_owned()).unwrap();
        io::Write::write_all(&mut file, b"#!/bin/sh\necho edgefaas 1.0.0\n").unwrap();
        let error = staged.finish(file).unwrap_err();
        assert!(error.to_string().starts_with("a.gz does not run here: it is a script"), "{error}");
        assert_eq!(folder.names(), ["edgefaas"], "a refused program is removed");
    }

    /// Written by a child: a test that starts a process at this moment would inherit the open file, which then cannot be started.
    fn write_script(path: &Path, script: &str) {
        let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\"";
        let status = std::process::Command::new("sh").args(["-c", write]).arg(path).arg(script).status();
        assert!(status.unwrap().success());
    }

    #[tokio::test]
    async fn a_program_must_say_its_version() {
        let folder = Folder::new();
        let program = folder.folder.path().join("edgefaas");
        for (script, words) in [
            (
                "echo wrong >&2; exit 3",
                "is not edgefaas: `--version` ended with exit status: 3 and wrote \"wrong\"",
            ),
            (
                "echo mosquitto 2.0",
                "is not edgefaas: `--version` wrote \"mosquitto 2.0\", and edgefaas writes",
            ),
            ("kill -SEGV $$", "does not run here, or is not edgefaas: `--version` ended with signal: 11"),
            (
                "echo \"libc.so.6: version \\`GLIBC_2.99' not found\" >&2; exit 1",
                "built for a newer glibc than that of this system and wrote",
            ),
        ] {
            write_script(&program, script);
            let error = folder.installed.version().await.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        write_script(&program, "echo edgefaas 1.2.3");
        assert_eq!(folder.installed.version().await.unwrap(), "edgefaas 1.2.3");
    }

    #[test]
    fn one_upgrade_at_a_time_and_the_kept_program_stands_for_the_installed_one() {
        let folder = Folder::new();
        let lock = folder.installed.lock().unwrap();
        assert!(matches!(folder.installed.lock(), Err(InstalledError::Busy { .. })));
        drop(lock);
        drop(folder.installed.lock().unwrap());
        assert!(matches!(folder.installed.return_to_previous(), Err(InstalledError::NothingKept { .. })));
        let kept = folder.folder.path().join("edgefaas.previous");
        fs::copy(folder.folder.path().join("edgefaas"), &kept).unwrap();
        let installed = Installed::find(Some(&kept)).unwrap();
        assert_eq!(installed.path, folder.installed.path);
    }
}
