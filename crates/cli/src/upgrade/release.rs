//! A program to install, with `SHA256SUMS` and its signature (`SHA256SUMS.minisig`) beside it, in a folder or at an address.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use edgefaas_client::progress::Step;
use edgefaas_functions::outgoing::{self, Caller, FetchError, HttpClient, ResponseLimit};
use edgefaas_isolates::{OutgoingRequest, Redirect};
use edgefaas_manifest::HttpPattern;
use edgefaas_platform::regular_file;
use flate2::write::GzDecoder;
use minisign_verify::{PublicKey, Signature};
use ring::digest;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use url::Url;

const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.minisig";
/// Maximum size of the sums and of their signature, in bytes.
const MAX_SUMS_BYTES: usize = 1 << 20;
/// Maximum size of a program, packed and unpacked, in bytes: seven times that of this one.
const MAX_PROGRAM_BYTES: u64 = 512 << 20;
/// Bytes that are read from a file at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Time for which a server may send nothing.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// The first bytes of a gzip file (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A file of a release, or the folder of a release.
#[derive(Debug)]
pub enum Source {
    File(PathBuf),
    Url(Url),
}

/// What a release is checked against.
pub enum Key {
    /// The key that signs `SHA256SUMS`.
    Public(Box<PublicKey>),
    /// Only the sums are checked.
    Unsigned,
}

/// Why a release is not installed. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The name ends with a slash or is not text.
    #[error("{place} names no file; give the packed program, such as edgefaas-VERSION-ARCH.gz")]
    NoName { place: String },
    /// The key is neither the text of a minisign key nor the file of one.
    #[error("{text:?} is not a minisign public key, and no file with one: {reason}")]
    Key { text: String, reason: minisign_verify::Error },
    /// There is no key.
    #[error(
        "no key is given; give the minisign public key of the release by --key or EDGEFAAS_PUBLIC_KEY (--unsigned is for programs \
         that you built yourself)"
    )]
    NoKey,
    /// A file cannot be read.
    #[error("{} cannot be read: {reason}", path.display())]
    Read { path: PathBuf, reason: io::Error },
    /// A server gave no answer, or an unusable one.
    #[error("{0}")]
    Fetch(FetchError),
    /// The answer of a server ended early.
    #[error("the download of {url} broke: {reason}")]
    Broken { url: String, reason: edgefaas_isolates::FetchError },
    /// A server is silent.
    #[error("the download of {url} broke: the server sent nothing for {} s", limit.as_secs())]
    Stalled { url: String, limit: Duration },
    /// A server refused the request.
    #[error("{url} is not available: the server answered {status}")]
    Status { url: String, status: u16 },
    /// A file is larger than any release.
    #[error("{place} is larger than {max_bytes} bytes")]
    TooLarge { place: String, max_bytes: u64 },
    /// The signature is not one of minisign.
    #[error("the signature {place} is not one of minisign: {reason}")]
    Signature { place: String, reason: minisign_verify::Error },
    /// The signature is of another key or of other sums.
    #[error("the signature of {place} is not valid for this key: {reason}; nothing was installed")]
    Forged { place: String, reason: minisign_verify::Error },
    /// The sums do not have the file.
    #[error("{place} has no sum of {name}; nothing was installed")]
    NoSum { place: String, name: String },
    /// The file is another one than that of the sums.
    #[error(
        "{place} has the SHA-256 sum {found}, and not {expected}: it is damaged or was changed; nothing was installed"
    )]
    WrongSum { place: String, found: String, expected: String },
    /// The release has no file for this machine.
    #[error("{place} has no {wanted}; nothing was installed")]
    NoFile { place: String, wanted: String },
    /// The release has several of them.
    #[error("{place} has several files for this machine: {}; name one of them", names.join(", "))]
    SeveralFiles { place: String, names: Vec<String> },
    /// The file has the right sum, and cannot be unpacked or written.
    #[error("{place} cannot be unpacked: {reason}; nothing was installed")]
    Unpack { place: String, reason: UnpackError },
}

/// Why a file cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("it has more bytes behind the end of its gzip data; pack the program alone, with `gzip`")]
    Trailing,
    #[error("its gzip data is damaged or incomplete ({0}); pack the program again, with `gzip`")]
    Damaged(io::Error),
    #[error("unpacked, it is larger than {MAX_PROGRAM_BYTES} bytes")]
    TooLarge,
    #[error("the new file cannot be written: {0}")]
    Write(io::Error),
}

/// The file for this machine in the folder of a release.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The start of its name.
    pub start: &'a str,
    /// The end of its name.
    pub end: &'a str,
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(out, "{}", path.display()),
            Self::Url(url) => write!(out, "{}", url[..url::Position::AfterPath].trim_end_matches('/')),
        }
    }
}

impl Key {
    /// The key in `text`, which is the text of a minisign key (`RW…`) or the name of its file.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, ReleaseError> {
        let key = match Path::new(text).is_file() {
            true => PublicKey::from_file(text),
            false => PublicKey::from_base64(text.trim()),
        };
        key.map(|key| Self::Public(Box::new(key)))
            .map_err(|reason| ReleaseError::Key { text: text.to_owned(), reason })
    }
}

impl Source {
    /// A URL with http or https, else a file; an address that ends with `/` and a folder name a whole release.
    ///
    /// # Errors
    /// It names neither.
    pub fn parse(text: &str) -> Result<Self, ReleaseError> {
        let source = match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Self::Url(url),
            _ => Self::File(text.into()),
        };
        if !source.is_folder() {
            source.name().map(drop)?;
        }
        Ok(source)
    }

    fn is_folder(&self) -> bool {
        match self {
            Self::File(path) => path.is_dir(),
            Self::Url(url) => url.path().ends_with('/'),
        }
    }

    /// The file itself, or the one for this machine in the folder, as the signed sums name it.
    ///
    /// # Errors
    /// See [`ReleaseError`].
    pub async fn file(self, key: &Key, wanted: Wanted<'_>) -> Result<Self, ReleaseError> {
        if !self.is_folder() {
            return Ok(self);
        }
        let text = self.sums(key).await?;
        let Wanted { start, end } = wanted;
        let names = text.lines().filter_map(sum_of_line).map(|(_, name)| name);
        let mut names: Vec<_> = names
            .filter(|name| name.starts_with(start) && name.ends_with(end))
            .map(str::to_owned)
            .collect();
        match (names.pop(), names.as_slice()) {
            (Some(name), []) => self.beside(&name),
            (Some(name), _) => {
                names.push(name);
                Err(ReleaseError::SeveralFiles { place: self.to_string(), names })
            }
            (None, _) => {
                let wanted = format!("{start}VERSION{end}");
                Err(ReleaseError::NoFile { place: self.to_string(), wanted })
            }
        }
    }

    /// Reads and checks the file of the release, and writes it to `file`, unpacked if it is packed with gzip.
    ///
    /// # Errors
    /// See [`ReleaseError`].
    pub async fn read(&self, key: &Key, file: File, step: &Step) -> Result<File, ReleaseError> {
        let expected = self.sum(key).await?;
        let mut unpacking = Unpacking::new(file);
        let mut read_bytes = 0;
        let mut take = |chunk: &[u8]| {
            read_bytes += chunk.len() as u64;
            if read_bytes > MAX_PROGRAM_BYTES {
                return Err(ReleaseError::TooLarge {
                    place: self.to_string(),
                    max_bytes: MAX_PROGRAM_BYTES,
                });
            }
            step.detail(format!("{} MiB", read_bytes >> 20));
            unpacking.write(chunk);
            Ok(())
        };
        match self {
            Self::File(path) => {
                let read = |reason| ReleaseError::Read { path: path.clone(), reason };
                let mut file = File::open(path).map_err(read)?;
                let mut chunk = vec![0; CHUNK_BYTES];
                loop {
                    match file.read(&mut chunk).map_err(read)? {
                        0 => break,
                        length => take(&chunk[..length])?,
                    }
                }
            }
            Self::Url(url) => fetch(url, take).await?,
        }
        let (unpacked, found) = unpacking.finish();
        // Damaged gzip data is first of all a damaged file.
        if found != expected {
            return Err(ReleaseError::WrongSum { place: self.to_string(), found, expected });
        }
        unpacked.map_err(|reason| ReleaseError::Unpack { place: self.to_string(), reason })
    }

    /// The sums of the release, whose signature is valid.
    async fn sums(&self, key: &Key) -> Result<String, ReleaseError> {
        let sums = self.beside(SUMS)?;
        let text = sums.text().await?;
        if let Key::Public(key) = key {
            let signature = self.beside(SIGNATURE)?;
            let decoded = Signature::decode(&signature.text().await?);
            let place = signature.to_string();
            let decoded = decoded.map_err(|reason| ReleaseError::Signature { place, reason })?;
            let verified = key.verify(text.as_bytes(), &decoded, true);
            verified.map_err(|reason| ReleaseError::Forged { place: sums.to_string(), reason })?;
        }
        Ok(text)
    }

    /// The sum of the file in the signed sums, in hexadecimal.
    async fn sum(&self, key: &Key) -> Result<String, ReleaseError> {
        let (text, name) = (self.sums(key).await?, self.name()?);
        let found = text.lines().filter_map(sum_of_line).find(|(_, of)| *of == name);
        match found {
            Some((sum, _)) => Ok(sum.to_lowercase()),
            None => {
                let place = self.beside(SUMS)?.to_string();
                Err(ReleaseError::NoSum { place, name: name.to_owned() })
            }
        }
    }

    /// The last part of the path.
    pub fn name(&self) -> Result<&str, ReleaseError> {
        let name = match self {
            Self::File(path) => path.file_name().and_then(|name| name.to_str()),
            Self::Url(url) => url.path_segments().and_then(|mut parts| parts.next_back()),
        };
        name.filter(|name| !name.is_empty()).ok_or_else(|| ReleaseError::NoName { place: self.to_string() })
    }

    /// Another file of the release.
    fn beside(&self, name: &str) -> Result<Self, ReleaseError> {
        match self {
            Self::File(path) if path.is_dir() => Ok(Self::File(path.join(name))),
            Self::File(path) => Ok(Self::File(path.with_file_name(name))),
            Self::Url(url) => {
                let other = url.join(name);
                other.map(Self::Url).map_err(|_| ReleaseError::NoName { place: self.to_string() })
            }
        }
    }

    /// The whole of a small file.
    async fn text(&self) -> Result<String, ReleaseError> {
        let mut bytes = Vec::new();
        let too_large =
            || ReleaseError::TooLarge { place: self.to_string(), max_bytes: MAX_SUMS_BYTES as u64 };
        match self {
            Self::File(path) => {
                let read = |reason| ReleaseError::Read { path: path.clone(), reason };
                let file = regular_file::open(path).map_err(read)?;
                file.take(MAX_SUMS_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(read)?;
            }
            Self::Url(url) => {
                let take = |chunk: &[u8]| {
                    bytes.extend_from_slice(chunk);
                    if bytes.len() > MAX_SUMS_BYTES { Err(too_large()) } else { Ok(()) }
                };
                fetch(url, take).await?;
            }
        }
        if bytes.len() > MAX_SUMS_BYTES {
            return Err(too_large());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Reads the answer to a GET request in pieces. The server of the URL is permitted, and any public one that it redirects to.
async fn fetch(
    url: &Url,
    mut take: impl FnMut(&[u8]) -> Result<(), ReleaseError>,
) -> Result<(), ReleaseError> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let named: Vec<HttpPattern> = [format!("{}://{host}{port}", url.scheme()), "*".to_owned()]
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect();
    let limit = ResponseLimit::OfFunction { bytes: MAX_PROGRAM_BYTES };
    let caller = Caller::new("edgefaas upgrade", Arc::from(named), limit);
    let client = HttpClient::new(CHUNK_BYTES);
    let request = OutgoingRequest {
        method: "GET".to_owned(),
        url: url.to_string(),
        headers: Vec::new(),
        body: Default::default(),
        redirect: Redirect::Follow,
    };
    let request = outgoing::check(request, &caller, None).map_err(ReleaseError::Fetch)?;
    let stalled = |_| ReleaseError::Stalled { url: url.to_string(), limit: MAX_SILENCE };
    let answer = timeout(MAX_SILENCE, client.open(&caller, request)).await.map_err(stalled)?;
    let mut answer = answer.map_err(ReleaseError::Fetch)?;
    if answer.status != 200 {
        return Err(ReleaseError::Status { url: url.to_string(), status: answer.status });
    }
    while let Some(chunk) = timeout(MAX_SILENCE, answer.body.next()).await.map_err(stalled)? {
        take(&chunk.map_err(|reason| ReleaseError::Broken { url: url.to_string(), reason })?)?;
    }
    Ok(())
}

/// A line of sha256sum's format: 64 digits, a space, a space or `*`, the name.
fn sum_of_line(line: &str) -> Option<(&str, &str)> {
    let (sum, name) = line.split_once(' ')?;
    let name = name.strip_prefix([' ', '*'])?;
    (sum.len() == 64).then_some((sum, name))
}

/// Unpacks a file while its sum is taken.
struct Unpacking {
    sum: digest::Context,
    form: Result<Form, UnpackError>,
}

enum Form {
    /// Nothing was written; the first two bytes decide.
    Unknown {
        file: Bounded,
        first: Option<u8>,
    },
    Plain(Bounded),
    Gzip(Box<GzDecoder<Bounded>>),
}

/// A file that grows to a maximum.
struct Bounded {
    file: File,
    left: u64,
}

impl Unpacking {
    fn new(file: File) -> Self {
        let sum = digest::Context::new(&digest::SHA256);
        Self {
            sum,
            form: Ok(Form::Unknown { file: Bounded { file, left: MAX_PROGRAM_BYTES }, first: None }),
        }
    }

    /// Takes the next bytes. After an error only their sum is taken.
    fn write(&mut self, chunk: &[u8]) {
        self.sum.update(chunk);
        let form = std::mem::replace(&mut self.form, Err(UnpackError::Trailing));
        self.form = form.and_then(|form| form.written(chunk));
    }

    /// The unpacked file, and the sum of the packed one.
    fn finish(self) -> (Result<File, UnpackError>, String) {
        let file = self.form.and_then(|form| match form {
            Form::Gzip(decoder) => decoder.finish().map(|bounded| bounded.file).map_err(unpack_error),
            Form::Plain(bounded) => Ok(bounded.file),
            Form::Unknown { mut file, first } => {
                file.write_all(first.as_slice()).map(|()| file.file).map_err(unpack_error)
            }
        });
        (file, self.sum.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Form {
    fn written(self, mut chunk: &[u8]) -> Result<Self, UnpackError> {
        let mut form = match self {
            Self::Unknown { file, first: None } if chunk.len() < GZIP.len() => {
                return Ok(Self::Unknown { file, first: chunk.first().copied() });
            }
            Self::Unknown { file, first } => {
                let form = match first.iter().chain(chunk).take(GZIP.len()).eq(&GZIP) {
                    true => Self::Gzip(Box::new(GzDecoder::new(file))),
                    false => Self::Plain(file),
                };
                form.written(first.as_slice())?
            }
            form => form,
        };
        match &mut form {
            Self::Gzip(decoder) => {
                while !chunk.is_empty() {
                    match decoder.write(chunk).map_err(unpack_error)? {
                        // The decoder has its checksum.
                        0 => return Err(UnpackError::Trailing),
                        taken => chunk = &chunk[taken..],
                    }
                }
            }
            Self::Plain(file) | Self::Unknown { file, .. } => {
                file.write_all(chunk).map_err(unpack_error)?
            }
        }
        Ok(form)
    }
}

/// The decoder's errors, and those of the file that it writes.
fn unpack_error(error: io::Error) -> UnpackError {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            UnpackError::Damaged(error)
        }
        io::ErrorKind::FileTooLarge => UnpackError::TooLarge,
        _ => UnpackError::Write(error),
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(bytes.len() as u64);
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_file_or_an_address() {
        let url = Source::parse("https://example.org/1.0/edgefaas-1.0-x86_64.gz?x=1").unwrap();
        assert_eq!(url.name().unwrap(), "edgefaas-1.0-x86_64.gz");
        assert_eq!(url.beside(SUMS).unwrap().to_string(), "https://example.org/1.0/SHA256SUMS");
        let file = Source::parse("here/edgefaas.gz").unwrap();
        assert_eq!(file.beside(SIGNATURE).unwrap().to_string(), "here/SHA256SUMS.minisig");
        let error = Source::parse("").unwrap_err().to_string();
        assert!(error.contains("names no file"), "{error}");
        let folder = Source::parse("https://example.org/1.0/").unwrap();
        assert_eq!(folder.beside(SUMS).unwrap().to_string(), "https://example.org/1.0/SHA256SUMS");
        assert_eq!(Source::parse("..").unwrap().beside(SUMS).unwrap().to_string(), "../SHA256SUMS");
    }

    #[tokio::test]
    async fn a_folder_gives_the_file_of_this_machine() {
        let folder = tempfile::tempdir().unwrap();
        let release = |names: &[&str]| {
            let sums: String = names.iter().map(|name| format!("{}  {name}\n", "0".repeat(64))).collect();
            std::fs::write(folder.path().join(SUMS), sums).unwrap();
            Source::parse(folder.path().to_str().unwrap()).unwrap()
        };
        let wanted = Wanted { start: "edgefaas_", end: "_amd64.deb" };
        let all = ["edgefaas-1.0-x86_64.gz", "edgefaas_1.0-1_amd64.deb", "edgefaas_1.0-1_arm64.deb"];
        let found = release(&all).file(&Key::Unsigned, wanted).await.unwrap();
        assert_eq!(found.name().unwrap(), "edgefaas_1.0-1_amd64.deb");
        let error = release(&all[2..]).file(&Key::Unsigned, wanted).await.unwrap_err().to_string();
        assert!(error.ends_with("has no edgefaas_VERSION_amd64.deb; nothing was installed"), "{error}");
        let two = release(&["edgefaas_2.0-1_amd64.deb", all[1]]);
        let error = two.file(&Key::Unsigned, wanted).await.unwrap_err().to_string();
        assert!(error.contains("edgefaas_2.0-1_amd64.deb, edgefaas_1.0-1_amd64.deb; name one"), "{error}");
    }

    #[test]
    fn gzip_is_unpacked_and_a_bomb_ends() {
        let packed = |bytes: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let file = || tempfile::tempfile().unwrap();
        let packed = packed(&[7; 100_000]);
        let mut unpacking = Unpacking::new(file());
        packed.chunks(1).for_each(|chunk| unpacking.write(chunk));
        let (unpacked, sum) = unpacking.finish();
        assert_eq!(unpacked.unwrap().metadata().unwrap().len(), 100_000);
        let expected = digest::digest(&digest::SHA256, &packed);
        assert_eq!(sum, expected.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>());

        let error = |bytes: &[u8], chunk_bytes: usize, left: u64| {
            let mut unpacking = Unpacking::new(file());
            unpacking.form = Ok(Form::Unknown { file: Bounded { file: file(), left }, first: None });
            bytes.chunks(chunk_bytes).for_each(|chunk| unpacking.write(chunk));
            unpacking.finish().0.unwrap_err()
        };
        let cut = &packed[..packed.len() - 20];
        assert!(
            matches!(error(cut, 1 << 16, MAX_PROGRAM_BYTES), UnpackError::Damaged(_)),
            "the end is missing"
        );
        let mut damaged = packed.clone();
        *damaged.last_mut().unwrap() ^= 1;
        assert!(matches!(error(&damaged, 1 << 16, MAX_PROGRAM_BYTES), UnpackError::Damaged(_)));
        let longer = [&packed[..], b"more"].concat();
        for chunk_bytes in [1, 11, 1 << 16] {
            assert!(matches!(error(&longer, chunk_bytes, MAX_PROGRAM_BYTES), UnpackError::Trailing));
        }
        assert!(matches!(error(&packed, 1 << 16, 99_999), UnpackError::TooLarge), "a bomb");
    }
}
