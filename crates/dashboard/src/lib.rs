//! The built files of the dashboard, for the control port. `dashboard/` has their sources.

use std::io::{self, Read};

/// A file.
#[derive(Debug)]
pub struct File {
    /// Path of its URL: `/` for the page itself.
    pub path: &'static str,
    /// Media type, for `Content-Type`.
    pub media_type: &'static str,
    /// Entity tag with its quotation marks, for `ETag`: a digest of the content.
    pub etag: &'static str,
    /// The content, compressed (RFC 1952).
    pub gzip: &'static [u8],
}

/// All files.
pub const FILES: &[File] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

/// The file of a URL's path.
pub fn file(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

impl File {
    /// The content.
    ///
    /// # Errors
    /// The file was damaged in the program.
    pub fn content(&self) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        flate2::read::GzDecoder::new(self.gzip).read_to_end(&mut content)?;
        Ok(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_is_found_and_whole() {
        assert!(FILES.len() >= 3, "{FILES:?}");
        for at in FILES {
            assert_eq!(file(at.path).map(|file| file.etag), Some(at.etag));
            assert!(!at.content().unwrap().is_empty(), "{}", at.path);
        }
        let page = String::from_utf8(file("/").unwrap().content().unwrap()).unwrap();
        // The policy of the control port allows nothing inline.
        assert!(
            !page.contains("<style") && !page.contains(" style=") && !page.contains("onload="),
            "{page}"
        );
        assert!(file("/index.html").is_none() && file("").is_none());
    }
}
