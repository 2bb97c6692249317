//! The Debian package of edgefaas: what is installed, what a file has, and installing a file, by dpkg.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ring::digest;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// Name of the package.
pub const NAME: &str = "edgefaas";
/// Path of its program.
const PROGRAM: &str = "/usr/bin/edgefaas";
/// Bytes that are read at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Time limit of a question to dpkg: unpacking takes seconds on a slow processor.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit of an installation with the restart of the node: drain, start, and a slow SD card.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(900);
/// Maximum length of an error of dpkg that is shown, in characters.
const MAX_SAID: usize = 500;

/// A version of the package and its program. Two builds of one version differ in the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The version, such as `1.2.0-1`.
    pub version: String,
    /// SHA-256 sum of the program.
    program: Vec<u8>,
}

/// A command of dpkg failed.
#[derive(Debug, thiserror::Error)]
pub enum DpkgError {
    /// It cannot be started.
    #[error("{program} cannot be started: {reason}")]
    Start { program: &'static str, reason: io::Error },
    /// It takes too long.
    #[error("{program} did not end within {} s", limit.as_secs())]
    Timeout { program: &'static str, limit: Duration },
    /// It ended with an error.
    #[error("{program} ended with {status}{}", if said.is_empty() { String::new() } else { format!(": {said}") })]
    Failed { program: &'static str, status: ExitStatus, said: String },
    /// The file is no Debian package.
    #[error("{} is not a Debian package: {reason}", path.display())]
    NotPackage { path: PathBuf, reason: Box<Self> },
    /// The file is a package of another program.
    #[error("{} is the package `{found}`, and not `{NAME}`", path.display())]
    OtherPackage { path: PathBuf, found: String },
    /// The package is for another kind of machine.
    #[error("{} is for {found}, and this system is {needed}: give edgefaas_VERSION_{needed}.deb", path.display())]
    OtherMachine { path: PathBuf, found: String, needed: String },
    /// The package has no program.
    #[error("{} has no file {PROGRAM}", path.display())]
    NoProgram { path: PathBuf },
    /// The program cannot be read.
    #[error("the program of {} cannot be read: {reason}", path.display())]
    Program { path: PathBuf, reason: io::Error },
    /// dpkg does not count the package as installed.
    #[error(
        "the package {NAME} is not completely installed ({state}); repair it: sudo dpkg --configure -a"
    )]
    NotInstalled { state: String },
}

/// The architecture of this system's packages, such as `amd64`.
///
/// # Errors
/// dpkg does not answer.
pub async fn architecture() -> Result<String, DpkgError> {
    ask("dpkg", &["--print-architecture".as_ref()]).await
}

/// The installed package, with its program.
///
/// # Errors
/// The package is not completely installed, or dpkg does not answer.
pub async fn installed(program: &Path) -> Result<Identity, DpkgError> {
    let format = "--showformat=${db:Status-Status} ${Version}";
    let text = ask("dpkg-query", &["--show".as_ref(), format.as_ref(), NAME.as_ref()]).await?;
    let (state, version) = text.split_once(' ').unwrap_or((&text, ""));
    if state != "installed" {
        return Err(DpkgError::NotInstalled { state: state.to_owned() });
    }
    let unreadable = |reason| DpkgError::Program { path: program.to_owned(), reason };
    let file = tokio::fs::File::open(program).await.map_err(unreadable)?;
    let (program, _) = sum(file).await.map_err(unreadable)?;
    Ok(Identity { version: version.to_owned(), program })
}

/// The package in a file.
///
/// # Errors
/// It is not the package of this program for this system.
pub async fn of_file(path: &Path) -> Result<Identity, DpkgError> {
    let field = async |name: &str| ask("dpkg-deb", &["--field".as_ref(), path, name.as_ref()]).await;
    let found = field("Package")
        .await
        .map_err(|reason| DpkgError::NotPackage { path: path.to_owned(), reason: Box::new(reason) })?;
    if found != NAME {
        return Err(DpkgError::OtherPackage { path: path.to_owned(), found });
    }
    let (found, needed) = (field("Architecture").await?, architecture().await?);
    if found != needed && found != "all" {
        return Err(DpkgError::OtherMachine { path: path.to_owned(), found, needed });
    }
    let version = field("Version").await?;
    let limited = tokio::time::timeout(QUESTION_TIMEOUT, program_of(path)).await;
    let program =
        limited.map_err(|_| DpkgError::Timeout { program: "dpkg-deb", limit: QUESTION_TIMEOUT })??;
    Ok(Identity { version, program })
}

/// SHA-256 sum of the program in a package.
async fn program_of(package: &Path) -> Result<Vec<u8>, DpkgError> {
    let unreadable = |reason| DpkgError::Program { path: package.to_owned(), reason };
    let mut archive = Command::new("dpkg-deb");
    archive.arg("--fsys-tarfile").arg(package).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut archive = archive.kill_on_drop(true).spawn().map_err(unreadable)?;
    let files = archive.stdout.take().ok_or_else(|| unreadable(io::ErrorKind::BrokenPipe.into()))?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--to-stdout", "--wildcards", &format!("*{PROGRAM}"), "--file", "-"]);
    tar.stdin(Stdio::from(files.into_owned_fd().map_err(unreadable)?))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut tar = tar.kill_on_drop(true).spawn().map_err(unreadable)?;
    let program = tar.stdout.take().ok_or_else(|| unreadable(io::ErrorKind::BrokenPipe.into()))?;
    let (sum, bytes) = sum(program).await.map_err(unreadable)?;
    let (unpacked, extracted) =
        (archive.wait().await.map_err(unreadable)?, tar.wait().await.map_err(unreadable)?);
    match bytes > 0 && unpacked.success() && extracted.success() {
        true => Ok(sum),
        false => Err(DpkgError::NoProgram { path: package.to_owned() }),
    }
}

/// SHA-256 sum of a file, and its size in bytes.
async fn sum(mut file: impl AsyncRead + Unpin) -> io::Result<(Vec<u8>, u64)> {
    let (mut sum, mut bytes) = (digest::Context::new(&digest::SHA256), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk).await? {
            0 => return Ok((sum.finish().as_ref().to_vec(), bytes)),
            length => {
                sum.update(&chunk[..length]);
                bytes += length as u64;
            }
        }
    }
}

/// Installs a file, without questions; changed configuration stays. Ctrl-C does not reach dpkg.
///
/// # Errors
/// dpkg failed: it may have installed nothing, or a part.
pub async fn install(path: &Path) -> Result<(), DpkgError> {
    let mut command = Command::new("dpkg");
    command.args(["--force-confold", "--install"]).arg(path).env("DEBIAN_FRONTEND", "noninteractive");
    // Stopped in the middle, it would leave half of a package.
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    run("dpkg", command, INSTALL_TIMEOUT).await.map(drop)
}

/// The output of a command, without its last newline.
async fn ask(program: &'static str, args: &[&Path]) -> Result<String, DpkgError> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    run(program, command, QUESTION_TIMEOUT).await
}

async fn run(program: &'static str, mut command: Command, limit: Duration) -> Result<String, DpkgError> {
    let output =
        tokio::time::timeout(limit, command.env("LC_ALL", "C.UTF-8").stderr(Stdio::piped()).output());
    let output = output.await.map_err(|_| DpkgError::Timeout { program, limit })?;
    let output = output.map_err(|reason| DpkgError::Start { program, reason })?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
        false => {
            let said: Vec<_> =
                output.stderr.split(|byte| *byte == b'\n').map(String::from_utf8_lossy).collect();
            let said = said.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
            let said = said.collect::<Vec<_>>().join("; ").chars().take(MAX_SAID).collect();
            Err(DpkgError::Failed { program, status: output.status, said })
        }
    }
}
