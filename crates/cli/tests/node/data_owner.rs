//! Commands of root in the data directory of another user: the files that they create belong to that user.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::support::{Running, edgefaas, has, skipped};

/// A user and a group without an account.
const OWNER: (u32, u32) = (54_321, 54_322);

/// All files below a folder, with itself.
fn files(folder: &Path) -> Vec<PathBuf> {
    let below = std::fs::read_dir(folder).unwrap().flat_map(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path) } else { vec![path] }
    });
    [folder.to_owned()].into_iter().chain(below).collect()
}

fn is_root() -> bool {
    has("sh", &["-c", "test $(id -u) = 0"])
}

fn run(data: &Path, args: &[&str], stdin: &str) -> Output {
    let mut child = edgefaas(data)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that refuses the directory ends without reading, perhaps before anything is written.
    match child.stdin.take().unwrap().write_all(stdin.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written.unwrap(),
    }
    child.wait_with_output().unwrap()
}

#[test]
fn files_of_commands_without_a_node_belong_to_the_owner_of_the_folder() {
    if !is_root() {
        return skipped("root");
    }
    let home = tempfile::tempdir().unwrap();
    // The owner of the data can reach it, as in /var/lib.
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let data = home.path().join("data");
    assert_eq!(Running::start(&data, &[]).terminate(), Some(0));
    for file in files(&data) {
        lchown(file, Some(OWNER.0), Some(OWNER.1)).unwrap();
    }
    let any = "127.0.0.1:0";
    let check = ["self-check", "--http", any, "--mqtt", any, "--control", any];
    let commands: [(&[&str], &str, &str); 6] = [
        (&["users", "add", "ada"], "a long password", "ada can connect"),
        (&["users", "passwd", "ada"], "another password", "ada has a new password"),
        (&["users", "list"], "", "ada"),
        (&["store", "check"], "", "the store is sound"),
        (&check, "", "free space"),
        (&["users", "rm", "ada"], "", "ada is removed"),
    ];
    for (args, stdin, said) in commands {
        // The commands create it again.
        std::fs::remove_file(data.join("lock")).unwrap();
        let output = run(&data, args, stdin);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{args:?}: {stdout}{stderr}");
        assert!(stdout.contains(said), "{args:?}: {stdout}");
        for file in files(&data) {
            let found = std::fs::symlink_metadata(&file).unwrap();
            assert_eq!((found.uid(), found.gid()), OWNER, "{} after {args:?}", file.display());
        }
    }
    assert!(data.join("users.toml").exists());

    // Root's own directory stays root's.
    let own = home.path().join("own");
    assert!(run(&own, &["users", "add", "ada"], "a long password").status.success());
    assert_eq!(std::fs::metadata(own.join("users.toml")).unwrap().uid(), 0);
    // A directory of root with another group: its files have that group.
    chown(&own, None, Some(OWNER.1)).unwrap();
    assert!(run(&own, &["users", "add", "bob"], "a long password").status.success());
    let users = std::fs::metadata(own.join("users.toml")).unwrap();
    assert_eq!((users.uid(), users.gid()), (0, OWNER.1));
}

#[test]
fn root_does_not_follow_a_link_of_another_user_to_a_folder_of_root() {
    if !is_root() {
        return skipped("root");
    }
    let home = tempfile::tempdir().unwrap();
    let (folder, link) = (home.path().join("folder"), home.path().join("link"));
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::symlink(&folder, &link).unwrap();
    lchown(&link, Some(OWNER.0), Some(OWNER.1)).unwrap();
    let output = run(&link, &["users", "add", "bob"], "a long password");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("is a link of the user 54321"), "{error}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    lchown(&link, Some(0), Some(0)).unwrap();
    assert!(run(&link, &["users", "add", "bob"], "a long password").status.success());
}
