//! Upgrades of the Debian package, which keep the package before.
//!
//! The kept packages are in a folder of root, since dpkg runs their scripts as root. The steps:
//!
//! 1. The new package and its sums are read and checked. The installed package must be among the kept ones, those of apt or
//!    `--previous`; otherwise nothing is changed without `--no-way-back`.
//! 2. An upgrade is marked as open. dpkg installs the new package, and its script restarts the node.
//! 3. The node must be ready. Then the mark is removed; otherwise dpkg installs the package before again.
//!
//! A command that finds an open upgrade returns to the package before it first.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::progress::Step;
use rustix::fs::FlockOperation;

use super::dpkg::{self, DpkgError, Identity};
use super::release::{Key, Source, Wanted};
use super::service::{Node, Service};

/// Packages that upgrades and `install.sh` keep.
const KEPT: &str = "/var/cache/edgefaas";
/// Packages that apt has downloaded.
const OF_APT: &str = "/var/cache/apt/archives";
/// Permission to write for others than the owner.
const WRITABLE: u32 = 0o022;

/// The package to return to.
pub enum Former {
    /// The kept one.
    Kept,
    /// A file.
    Given(PathBuf),
    /// None: a package whose node does not get ready stays.
    NoWayBack,
}

/// The folder of kept packages, locked against other upgrades.
struct Kept {
    folder: PathBuf,
    _lock: File,
}

/// A step that failed, before the installed package has changed.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A package is upgraded by a package.
    #[error(
        "{} belongs to the Debian package edgefaas, and {source_name} is not a Debian package; give edgefaas_VERSION_{architecture}.deb, \
         or the folder of a release", program.display()
    )]
    NotDeb { program: PathBuf, source_name: String, architecture: String },
    /// There is no package to return to.
    #[error(
        "the package of the installed version {version} is not kept (in {KEPT} or {OF_APT}), and without it there is no way back if the \
         node does not get ready; nothing was installed: give the package with --previous FILE, or upgrade without it by --no-way-back"
    )]
    NoFormer { version: String },
    /// The file of `--previous` is another package.
    #[error(
        "{} has the version {found} with another program than the installed {installed}; nothing was installed: give the package that is \
         installed", path.display()
    )]
    OtherFormer { path: PathBuf, found: String, installed: String },
    /// No upgrade has kept a package.
    #[error("there is no {}: no upgrade has kept a package", path.display())]
    NothingKept { path: PathBuf },
    /// Other users could put a package there.
    #[error("{} belongs to the user {user} with mode {mode:o}, and has to be root's; remove it", path.display())]
    Unsafe { path: PathBuf, user: u32, mode: u32 },
    /// Another upgrade runs.
    #[error("another upgrade of the package is running; wait for its end")]
    Busy,
    /// A file operation failed.
    #[error("{} cannot be {operation}: {reason}{}", path.display(), match reason.kind() {
        io::ErrorKind::PermissionDenied => "; run the command with sudo",
        io::ErrorKind::StorageFull => "; make room on the disk",
        _ => "",
    })]
    File { operation: &'static str, path: PathBuf, reason: io::Error },
    /// See [`DpkgError`].
    #[error("{0}; nothing was installed")]
    Dpkg(#[from] DpkgError),
}

/// Installs the package of a release.
pub async fn to(
    program: &Path,
    node: &Node<'_>,
    source: Source,
    key: &Key,
    former: &Former,
) -> anyhow::Result<()> {
    let kept = Kept::open()?;
    kept.end_open_upgrade(node).await?;
    let architecture = dpkg::architecture().await.map_err(PackageError::from)?;
    let end = format!("_{architecture}.deb");
    let source = source.file(key, Wanted { start: "edgefaas_", end: &end }).await?;
    if source.name()?.rsplit_once('.').is_none_or(|(_, extension)| extension != "deb") {
        let (program, source_name) = (program.to_owned(), source.to_string());
        return Err(PackageError::NotDeb { program, source_name, architecture }.into());
    }
    let new = kept.new_package();
    {
        let step = Step::start(format!("Reading {source}"));
        let file = source.read(key, new.create()?, &step).await?;
        file.sync_all().map_err(failed("synced", &new.0))?;
    }
    let after = dpkg::of_file(&new.0).await.map_err(PackageError::from)?;
    let before = dpkg::installed(program).await.map_err(PackageError::from)?;
    eprintln!("edgefaas {} is installed, {} is verified", before.version, after.version);
    match former {
        Former::Kept => kept.keep_known(&before).await?,
        Former::Given(path) => kept.keep_given(path, &before).await?,
        Former::NoWayBack => kept.forget_previous()?,
    }
    kept.install(program, node, new, (&before, &after), former).await
}

/// Returns to the package before the last upgrade.
pub async fn back(node: &Node<'_>) -> anyhow::Result<()> {
    let kept = Kept::open()?;
    let previous = kept.previous();
    if !previous.exists() {
        return Err(PackageError::NothingKept { path: previous }.into());
    }
    let version = dpkg::of_file(&previous).await.map_err(PackageError::from)?.version;
    if let Err(reason) = kept.return_to_previous(node).await {
        return Err(Failure::new(
            Exit::Failed,
            format!("the return to edgefaas {version} failed: {reason}"),
        ));
    }
    report(node, &format!("edgefaas {version} is installed"));
    Ok(())
}

impl Kept {
    fn open() -> Result<Self, PackageError> {
        let folder = Path::new(KEPT);
        let made = DirBuilder::new().mode(0o755).create(folder);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("created", folder)(error));
            }
            _ => {}
        }
        let file = File::open(folder).map_err(failed("opened", folder))?;
        let found = file.metadata().map_err(failed("read", folder))?;
        if found.uid() != 0 || found.mode() & WRITABLE != 0 {
            let (user, mode) = (found.uid(), found.mode() & 0o7777);
            return Err(PackageError::Unsafe { path: folder.to_owned(), user, mode });
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { folder: folder.to_owned(), _lock: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(PackageError::Busy),
            Err(error) => Err(failed("locked", folder)(error.into())),
        }
    }

    /// Installs the new package, and the one before again if the node does not get ready.
    async fn install(
        &self,
        program: &Path,
        node: &Node<'_>,
        new: NewFile,
        (before, after): (&Identity, &Identity),
        former: &Former,
    ) -> anyhow::Result<()> {
        let has_way_back = !matches!(former, Former::NoWayBack);
        if has_way_back {
            self.mark()?;
        }
        let Err(reason) = installed_and_ready(&new.0, node).await else {
            new.rename(&self.folder.join(INSTALLED))?;
            self.close()?;
            report(node, &format!("edgefaas {} is installed", after.version));
            if has_way_back {
                let previous = self.previous();
                eprintln!(
                    "the package before it is {}; `edgefaas upgrade --back` returns to it",
                    previous.display()
                );
            }
            return Ok(());
        };
        let (before_version, after_version) = (&before.version, &after.version);
        if matches!(&reason, InstallFailed::Dpkg(_))
            && dpkg::installed(program).await.is_ok_and(|found| found == *before && found != *after)
        {
            self.close()?;
            let message =
                format!("edgefaas {after_version} is not installed: {reason}; {before_version} stays");
            return Err(Failure::new(Exit::Failed, message));
        }
        if !has_way_back {
            let message = format!(
                "edgefaas {after_version} is installed, but its node is not ready: {reason}; no package before it is kept"
            );
            return Err(Failure::new(Exit::Failed, message));
        }
        eprintln!("error: {reason}; edgefaas {before_version} returns");
        let message = match self.return_to_previous(node).await {
            Ok(()) => format!(
                "edgefaas {after_version} is not installed: {reason}; {before_version} is installed and its node is ready again"
            ),
            Err(again) => format!(
                "edgefaas {after_version} failed: {reason}; the return to {before_version} failed: {again}; install it yourself: \
                 sudo dpkg -i {}",
                self.previous().display()
            ),
        };
        Err(Failure::new(Exit::Failed, message))
    }

    /// Returns to the package before if an upgrade was cut off: the node that runs may be one that nobody has seen ready.
    async fn end_open_upgrade(&self, node: &Node<'_>) -> anyhow::Result<()> {
        if !self.folder.join(MARK).exists() {
            return Ok(());
        }
        eprintln!("an earlier upgrade was cut off; the package before it returns");
        if let Err(reason) = self.return_to_previous(node).await {
            eprintln!("warning: {reason}");
        }
        Ok(())
    }

    /// Installs the package before, which is then the kept one of the installed version.
    async fn return_to_previous(&self, node: &Node<'_>) -> Result<(), InstallFailed> {
        let returned = installed_and_ready(&self.previous(), node).await;
        if !matches!(returned, Err(InstallFailed::Dpkg(_))) {
            self.close()?;
            let copy = NewFile(self.folder.join(COPY));
            copy_file(&self.previous(), &copy)?;
            copy.rename(&self.folder.join(INSTALLED))?;
        }
        returned
    }

    /// Keeps the installed package, if one of the known files is the same.
    async fn keep_known(&self, installed: &Identity) -> Result<(), PackageError> {
        let of_apt = std::fs::read_dir(OF_APT).into_iter().flatten().flatten().map(|entry| entry.path());
        let of_apt = of_apt.filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("edgefaas_"))
        });
        let known = [self.folder.join(INSTALLED), self.previous()].into_iter().chain(of_apt);
        for path in known {
            if path.is_file() && dpkg::of_file(&path).await.is_ok_and(|found| found == *installed) {
                let copy = NewFile(self.folder.join(COPY));
                copy_file(&path, &copy)?;
                return copy.rename(&self.previous());
            }
        }
        Err(PackageError::NoFormer { version: installed.version.clone() })
    }

    /// Keeps a package that the user names.
    async fn keep_given(&self, path: &Path, installed: &Identity) -> Result<(), PackageError> {
        // The copy is checked, which nobody else can change.
        let copy = NewFile(self.folder.join(COPY));
        copy_file(path, &copy)?;
        let found = dpkg::of_file(&copy.0).await?;
        match found == *installed {
            true => copy.rename(&self.previous()),
            false => Err(PackageError::OtherFormer {
                path: path.to_owned(),
                found: found.version,
                installed: installed.version.clone(),
            }),
        }
    }

    fn forget_previous(&self) -> Result<(), PackageError> {
        remove(&self.previous())
    }

    fn mark(&self) -> Result<(), PackageError> {
        let mark = self.folder.join(MARK);
        File::create(&mark).and_then(|mark| mark.sync_all()).map_err(failed("created", &mark))?;
        sync(&self.folder)
    }

    fn close(&self) -> Result<(), PackageError> {
        remove(&self.folder.join(MARK))?;
        sync(&self.folder)
    }

    fn previous(&self) -> PathBuf {
        self.folder.join(PREVIOUS)
    }

    fn new_package(&self) -> NewFile {
        NewFile(self.folder.join("new.deb"))
    }
}

/// The package that is installed.
const INSTALLED: &str = "installed.deb";
/// The package before the last upgrade.
const PREVIOUS: &str = "previous.deb";
/// A package that is being copied.
const COPY: &str = "copy.deb";
/// An upgrade has begun, and nobody has seen its node ready.
const MARK: &str = "unverified";

/// Why a package is not installed, or its node not ready.
#[derive(Debug, thiserror::Error)]
enum InstallFailed {
    #[error(transparent)]
    Dpkg(#[from] DpkgError),
    #[error(transparent)]
    NotReady(#[from] super::service::NotReady),
    #[error(transparent)]
    Kept(#[from] PackageError),
}

/// Installs a package and waits until its node is ready.
async fn installed_and_ready(package: &Path, node: &Node<'_>) -> Result<(), InstallFailed> {
    node.service.forget_failures().await;
    let run = node.service.run_id().await;
    {
        let _step = Step::start("Installing by dpkg".to_owned());
        dpkg::install(package).await?;
    }
    // The script of the package restarts the unit, unless the system's policy forbids it.
    match node.service.run_id().await == run {
        true => node.restart().await?,
        false => node.ready().await?,
    }
    Ok(())
}

/// A file that is removed when it is dropped, unless it was renamed.
struct NewFile(PathBuf);

impl NewFile {
    fn create(&self) -> Result<File, PackageError> {
        remove(&self.0)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(&self.0);
        file.map_err(failed("created", &self.0))
    }

    fn rename(self, to: &Path) -> Result<(), PackageError> {
        std::fs::rename(&self.0, to).map_err(failed("replaced", to))?;
        sync(to.parent().unwrap_or(Path::new("/")))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn copy_file(from: &Path, to: &NewFile) -> Result<(), PackageError> {
    let mut source = File::open(from).map_err(failed("read", from))?;
    let mut copy = to.create()?;
    io::copy(&mut source, &mut copy).and_then(|_| copy.sync_all()).map_err(failed("copied", from))
}

fn report(node: &Node<'_>, done: &str) {
    match node.service {
        Service::None => {
            eprintln!("{done}; its unit did not run before: start it with `systemctl start edgefaas`")
        }
        _ => eprintln!("{done}, and its node is ready"),
    }
}

fn remove(path: &Path) -> Result<(), PackageError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("removed", path)(error)),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Result<(), PackageError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("synced", folder))
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> PackageError {
    let path = path.to_owned();
    move |reason| PackageError::File { operation, path, reason }
}
