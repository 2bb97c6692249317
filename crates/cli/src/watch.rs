//! Watches the sources of an app for changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
pub use notify::RecursiveMode;
use notify::event::EventKind;
use notify::{RecommendedWatcher, Watcher};
use tokio::sync::mpsc;

/// Quiet time after the last change: editors write a file in several steps, `git checkout` many files.
const QUIET: Duration = Duration::from_millis(150);
/// Folders of build output, which have no sources.
const SKIPPED: [&str; 2] = ["target", "node_modules"];

/// Watches the folders of an app, except those that its `.gitignore` or a dot hides.
pub struct Watch {
    root: PathBuf,
    mode: RecursiveMode,
    watcher: RecommendedWatcher,
    changes: mpsc::Receiver<PathBuf>,
}

impl Watch {
    /// Starts to watch `root`, with or without its subfolders.
    pub fn start(root: &Path, mode: RecursiveMode) -> anyhow::Result<Self> {
        let root = root.canonicalize()?;
        let ignored = gitignore(&root);
        let (sender, changes) = mpsc::channel(64);
        let seen_from = root.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // A build reads the sources; that is not a change.
            let Ok(event) = event else { return };
            if matches!(event.kind, EventKind::Access(_)) {
                return;
            }
            for path in event.paths {
                if !is_hidden(&seen_from, &ignored, &path) {
                    // If the channel is full, another change waits already.
                    let _ = sender.try_send(path);
                }
            }
        })?;
        let mut watch = Self { root, mode, watcher, changes };
        watch.add_folders()?;
        Ok(watch)
    }

    /// Waits for a change and for quiet after it; gives the first path that changed. `None` when the watcher ends.
    /// Cancellation loses only the current change.
    pub async fn changed(&mut self) -> Option<PathBuf> {
        let path = self.changes.recv().await?;
        while let Ok(Some(_)) = tokio::time::timeout(QUIET, self.changes.recv()).await {}
        // Watch added folders; a folder that was removed meanwhile is skipped.
        if let Err(error) = self.add_folders() {
            tracing::warn!("changes in some folders may be missed: {error}");
        }
        Some(path)
    }

    /// Watching a folder again has no effect.
    fn add_folders(&mut self) -> notify::Result<()> {
        let ignored = gitignore(&self.root);
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            match self.watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Err(error) if matches!(error.kind, notify::ErrorKind::PathNotFound) => continue,
                result => result?,
            }
            if self.mode == RecursiveMode::NonRecursive {
                continue;
            }
            let Ok(entries) = std::fs::read_dir(&folder) else { continue };
            let below = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            folders.extend(
                below.map(|entry| entry.path()).filter(|path| !is_hidden(&self.root, &ignored, path)),
            );
        }
        Ok(())
    }
}

fn gitignore(root: &Path) -> Gitignore {
    let mut builder = GitignoreBuilder::new(root);
    let file = root.join(".gitignore");
    // Without the file nothing is ignored; of an invalid one the valid lines count.
    if file.is_file() {
        let _ = builder.add(file);
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

fn is_hidden(root: &Path, ignored: &Gitignore, path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(root) else { return true };
    // The secrets of `edgefaas dev`.
    if inside == Path::new(".env") {
        return false;
    }
    // Cargo makes `target` under a temporary name, `targetXXXXXX`.
    let building = |name: &str| name.strip_prefix("target").is_some_and(|rest| rest.len() == 6);
    let hidden = |name: &str| {
        name.starts_with('.') || SKIPPED.contains(&name) || name.ends_with('~') || building(name)
    };
    inside.components().any(|part| hidden(&part.as_os_str().to_string_lossy()))
        || ignored.matched_path_or_any_parents(inside, path.is_dir()).is_ignore()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn changes_are_seen_and_build_output_is_not() {
        let app = tempfile::tempdir().unwrap();
        let root = app.path().canonicalize().unwrap();
        for folder in ["functions", "target", ".edgefaas", "ignored"] {
            fs::create_dir(root.join(folder)).unwrap();
        }
        fs::write(root.join(".gitignore"), "ignored/\n*.log\n").unwrap();
        let mut watch = Watch::start(&root, RecursiveMode::Recursive).unwrap();
        for noise in ["target/a", ".edgefaas/b", "ignored/c", "d.log", "functions/e.js~"] {
            fs::write(root.join(noise), "x").unwrap();
        }
        let source = root.join("functions/f.js");
        fs::write(&source, "x").unwrap();
        let seen = tokio::time::timeout(SOON, watch.changed()).await.unwrap();
        assert_eq!(seen, Some(source), "the noise before it was not reported");
    }

    #[tokio::test]
    async fn new_folders_are_watched_too() {
        let app = tempfile::tempdir().unwrap();
        let root = app.path().canonicalize().unwrap();
        let mut watch = Watch::start(&root, RecursiveMode::Recursive).unwrap();
        fs::create_dir(root.join("new")).unwrap();
        let seen = tokio::time::timeout(SOON, watch.changed()).await.unwrap();
        assert_eq!(seen, Some(root.join("new")));
        fs::write(root.join("new/f.js"), "x").unwrap();
        let seen = tokio::time::timeout(SOON, watch.changed()).await.unwrap();
        assert_eq!(seen, Some(root.join("new/f.js")));
    }
}
