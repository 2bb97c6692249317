//! Sessions that were signed out before their end. A file keeps them over a restart: what a browser sent once may have been copied.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use edgefaas_platform::replace_file;
use parking_lot::Mutex;

/// Name of the file in the data directory: a JSON array of pairs, a session's identifier and its last end in seconds since the Unix epoch.
const FILE: &str = "signed-out-sessions.json";
/// Maximum number of remembered sessions, 16 bytes of memory each; beyond it the oldest one is forgotten.
const MAX_SESSIONS: usize = 4096;

/// The sessions that were signed out.
pub(super) struct SignedOut {
    path: PathBuf,
    /// Identifiers with the ends that renewals could have given them, oldest first.
    sessions: Mutex<VecDeque<(u64, u64)>>,
    /// Held while the file is written.
    writing: tokio::sync::Mutex<()>,
}

impl SignedOut {
    /// Reads the file in this data directory. A file that cannot be read is left as it is until the next sign-out, with a warning. Blocks.
    pub fn load(data_dir: &str) -> Self {
        let path = PathBuf::from(data_dir).join(FILE);
        let sessions = match std::fs::read(&path) {
            Ok(contents) => serde_json::from_slice(&contents).unwrap_or_else(|error| {
                tracing::warn!(path = %path.display(), %error, "sessions that were signed out are forgotten");
                VecDeque::new()
            }),
            Err(error) => {
                if error.kind() != ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "sessions that were signed out are forgotten");
                }
                VecDeque::new()
            }
        };
        Self { path, sessions: Mutex::new(sessions), writing: tokio::sync::Mutex::default() }
    }

    /// True if the session was signed out.
    pub fn contains(&self, id: u64) -> bool {
        self.sessions.lock().iter().any(|(signed_out, _)| *signed_out == id)
    }

    /// Adds a session that could be renewed until `end_unix_s`; forgets those whose end has passed. In force at once. False if it was
    /// signed out before.
    pub fn add(&self, id: u64, end_unix_s: u64, now_unix_s: u64) -> bool {
        let mut sessions = self.sessions.lock();
        sessions.retain(|(_, end)| *end > now_unix_s);
        if sessions.iter().any(|(other, _)| *other == id) {
            return false;
        }
        if sessions.len() >= MAX_SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back((id, end_unix_s));
        true
    }

    /// Writes the file. If that fails, for example since the disk is full, a restart forgets what was added; the log says so. A write
    /// that has begun goes on if the future is dropped.
    pub async fn write(self: Arc<Self>) {
        let written = tokio::spawn(async move {
            let _writing = self.writing.lock().await;
            let contents = serde_json::to_vec(&*self.sessions.lock()).unwrap_or_default();
            let path = self.path.clone();
            let replaced = tokio::task::spawn_blocking(move || replace_file(&path, &contents)).await;
            if let Ok(Err(error)) = replaced {
                let path = self.path.display();
                tracing::warn!(%path, %error, "a restart of the node forgets that a session was signed out");
            }
        });
        let _ = written.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_restart_remembers_sessions_until_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().to_str().unwrap();
        let signed_out = Arc::new(SignedOut::load(data_dir));
        signed_out.add(u64::MAX, 100, 10);
        assert!(signed_out.add(7, 50, 10));
        assert!(!signed_out.add(7, 50, 10));
        signed_out.clone().write().await;
        let again = Arc::new(SignedOut::load(data_dir));
        assert!(again.contains(u64::MAX) && again.contains(7) && !again.contains(8));
        again.add(8, 200, 60);
        assert!(!again.contains(7), "its end has passed");
        again.write().await;
        assert_eq!(*SignedOut::load(data_dir).sessions.lock(), [(u64::MAX, 100), (8, 200)]);
    }

    #[tokio::test]
    async fn a_damaged_file_is_replaced_by_the_next_sign_out() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join(FILE), "[[1,").unwrap();
        let signed_out = Arc::new(SignedOut::load(data_dir));
        for id in 0..MAX_SESSIONS as u64 + 10 {
            signed_out.add(id, 100, 10);
        }
        signed_out.write().await;
        let again = SignedOut::load(data_dir);
        assert_eq!(again.sessions.lock().len(), MAX_SESSIONS);
        assert!(!again.contains(9) && again.contains(10));
    }
}
