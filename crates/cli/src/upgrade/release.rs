//! A program to install, with `SHA256SUMS` and its signature (`SHA256SUMS.minisig`) beside it, in a folder or at an address.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use edgefaas_client::progress::Step;
use edgefaas_functions::outgoing::{self, Caller, FetchError, HttpClient, ResponseLimit};
use edgefaas_isolates::{OutgoingRequest, Redirect};
use edgefaas_manifest::HttpPattern;
use flate2::write::GzDecoder;
use minisign_verify::{PublicKey, Signature};
use ring::digest;
use tokio_stream::StreamExt;
use url::Url;

use super::installed::{InstalledError, Staged};

const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.minisig";
/// Maximum size of the sums and of their signature, in bytes.
const MAX_SUMS_BYTES: usize = 1 << 20;
/// Maximum size of a program, packed and unpacked, in bytes: seven times that of this one.
const MAX_PROGRAM_BYTES: u64 = 512 << 20;
/// Bytes that are read from a file at once.
const CHUNK_BYTES: usize = 64 << 10;
/// The first bytes of a gzip file (RFC 1952).
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A program, packed with gzip or not.
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
    /// The program cannot be unpacked or written.
    #[error("the program cannot be written: {0}")]
    Write(io::Error),
    /// See [`InstalledError`].
    #[error(transparent)]
    Installed(#[from] InstalledError),
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
    /// A URL with http or https, else a file.
    ///
    /// # Errors
    /// It names no file.
    pub fn parse(text: &str) -> Result<Self, ReleaseError> {
        let source = match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") => Self::Url(url),
            _ => Self::File(text.into()),
        };
        source.name().map(drop)?;
        Ok(source)
    }

    /// Reads, checks and unpacks the program into the staged file.
    ///
    /// # Errors
    /// See [`ReleaseError`].
    pub async fn unpack(
        &self,
        key: &Key,
        (staged, file): (Staged, File),
        step: &Step,
    ) -> Result<Staged, ReleaseError> {
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
            unpacking.write(chunk).map_err(ReleaseError::Write)
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
        let (file, found) = unpacking.finish().map_err(ReleaseError::Write)?;
        match found == expected {
            true => Ok(staged.finish(file)?),
            false => Err(ReleaseError::WrongSum { place: self.to_string(), found, expected }),
        }
    }

    /// The sum of the program in the signed sums, in hexadecimal.
    async fn sum(&self, key: &Key) -> Result<String, ReleaseError> {
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
        let name = self.name()?;
        // sha256sum's format: 64 digits, a space, a space or `*`, the name.
        let line = text.lines().find_map(|line| {
            let (sum, of) = line.split_once(' ')?;
            (of.strip_prefix([' ', '*'])? == name && sum.len() == 64).then(|| sum.to_lowercase())
        });
        line.ok_or_else(|| ReleaseError::NoSum { place: sums.to_string(), name: name.to_owned() })
    }

    fn name(&self) -> Result<&str, ReleaseError> {
        let name = match self {
            Self::File(path) => path.file_name().and_then(|name| name.to_str()),
            Self::Url(url) => url.path_segments().and_then(|mut parts| parts.next_back()),
        };
        name.filter(|name| !name.is_empty()).ok_or_else(|| ReleaseError::NoName { place: self.to_string() })
    }

    /// Another file of the release.
    fn beside(&self, name: &str) -> Result<Self, ReleaseError> {
        match self {
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
                let file = File::open(path).map_err(read)?;
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
    let mut answer = client.open(&caller, request).await.map_err(ReleaseError::Fetch)?;
    if answer.status != 200 {
        return Err(ReleaseError::Status { url: url.to_string(), status: answer.status });
    }
    while let Some(chunk) = answer.body.next().await {
        take(&chunk.map_err(|reason| ReleaseError::Broken { url: url.to_string(), reason })?)?;
    }
    Ok(())
}

/// Unpacks a program while its sum is taken.
struct Unpacking {
    sum: digest::Context,
    form: Form,
}

enum Form {
    /// Nothing was written; the first bytes decide.
    Unknown(Bounded),
    Plain(Bounded),
    Gzip(Box<GzDecoder<Bounded>>),
    /// A write failed.
    Failed,
}

/// A file that grows to a maximum.
struct Bounded {
    file: File,
    left: u64,
}

impl Unpacking {
    fn new(file: File) -> Self {
        let sum = digest::Context::new(&digest::SHA256);
        Self { sum, form: Form::Unknown(Bounded { file, left: MAX_PROGRAM_BYTES }) }
    }

    fn write(&mut self, chunk: &[u8]) -> io::Result<()> {
        self.sum.update(chunk);
        self.form = match std::mem::replace(&mut self.form, Form::Failed) {
            Form::Unknown(file) if chunk.starts_with(&GZIP) => Form::Gzip(Box::new(GzDecoder::new(file))),
            Form::Unknown(file) => Form::Plain(file),
            form => form,
        };
        match &mut self.form {
            Form::Gzip(decoder) => decoder.write_all(chunk),
            Form::Plain(file) | Form::Unknown(file) => file.write_all(chunk),
            Form::Failed => Err(io::Error::other("an earlier write failed")),
        }
    }

    /// The unpacked file, and the sum of the packed one.
    fn finish(self) -> io::Result<(File, String)> {
        let file = match self.form {
            Form::Gzip(decoder) => decoder.finish()?.file,
            Form::Plain(file) | Form::Unknown(file) => file.file,
            Form::Failed => return Err(io::Error::other("an earlier write failed")),
        };
        let sum = self.sum.finish();
        Ok((file, sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            io::Error::other(format!("unpacked, it is larger than {MAX_PROGRAM_BYTES} bytes"))
        })?;
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
        for text in ["https://example.org/", "..", ""] {
            let error = Source::parse(text).unwrap_err().to_string();
            assert!(error.contains("names no file"), "{text}: {error}");
        }
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
        // The header comes in one piece, the rest in small ones.
        packed.chunks(11).for_each(|chunk| unpacking.write(chunk).unwrap());
        let (unpacked, sum) = unpacking.finish().unwrap();
        assert_eq!(unpacked.metadata().unwrap().len(), 100_000);
        let expected = digest::digest(&digest::SHA256, &packed);
        assert_eq!(sum, expected.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>());

        let mut cut = Unpacking::new(file());
        cut.write(&packed[..packed.len() - 20]).unwrap();
        assert!(cut.finish().is_err(), "the end is missing");

        let mut bomb = Unpacking::new(file());
        bomb.form = Form::Unknown(Bounded { file: file(), left: 99_999 });
        let error = bomb.write(&packed).and_then(|()| bomb.finish().map(drop)).unwrap_err();
        assert!(error.to_string().contains("larger than"), "{error}");
    }
}
