//! Archives of objects where a backup puts them, and values as `edgefaas objects` takes them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::Running;

/// What the command says when it is asked for something that is not there.
const NOT_FOUND: i32 = 6;
const USAGE: i32 = 2;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_archive_goes_where_it_is_told_and_breaks_nothing_there() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    node.ok(&["objects", "add", "app", "room", "people", "3"]);
    let at = |name: &str| home.path().join(name);
    let export = |path: &Path| node.ok(&["objects", "export", path.to_str().unwrap()]);
    let file = at("objects.efobj");
    export(&file);
    assert_eq!(mode(&file), 0o600, "nobody else reads what functions know");
    let archive = fs::read(&file).unwrap();

    // An older one behind a link is replaced, with the mode it had.
    let (old, link) = (at("old.efobj"), at("link.efobj"));
    fs::write(&old, "old").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&old, &link).unwrap();
    export(&link);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!((fs::read(&old).unwrap(), mode(&old)), (archive.clone(), 0o640));

    // A pipe gets the bytes and stays a pipe.
    let pipe = at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let read = std::thread::scope(|scope| {
        let reading = scope.spawn(|| fs::read(&pipe).unwrap());
        export(&pipe);
        reading.join().unwrap()
    });
    assert_eq!(read, archive);
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());

    // A slip in the app's name is not a backup.
    let none = at("none.efobj");
    for app in ["nobody", "not/a/name"] {
        let said = node.cli(&["objects", "export", none.to_str().unwrap(), "--app", app]);
        assert!(!said.status.success(), "{app}");
        assert!(String::from_utf8_lossy(&said.stderr).contains(app), "{said:?}");
    }
    let said = node.cli(&["objects", "export", none.to_str().unwrap(), "--app", "nobody"]);
    assert_eq!(said.status.code(), Some(NOT_FOUND));
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("none")), "{left:?}");

    node.ok(&["objects", "import", file.to_str().unwrap()]);
    assert_eq!(node.ok(&["objects", "get", "app", "room", "people"]).trim(), "3");
}

#[test]
fn values_are_what_functions_would_have_written() {
    let home = tempfile::tempdir().unwrap();
    let node = Running::start(&home.path().join("data"), &[]);
    let set = |args: &[&str]| node.ok(&[&["objects"], args].concat()).trim().to_owned();
    assert_eq!(set(&["set", "app", "o", "text", "\"hello\"", "--type", "text"]), "\"hello\"");
    assert_eq!(set(&["set", "app", "o", "text", "hello there"]), "\"hello there\"");
    assert_eq!(set(&["add", "app", "o", "set", "1.0", "--type", "set"]), "[1]");
    assert_eq!(set(&["add", "app", "o", "set", "1"]), "[1]", "it is the same element");
    assert_eq!(set(&["remove", "app", "o", "set", "1.00"]), "[]");
    let said = node.cli(&["objects", "set", "app", "o", "", "5"]);
    assert_eq!(said.status.code(), Some(USAGE), "{said:?}");
    let said = node.cli(&["objects", "list", "A/b"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("`A/b` is not a valid app name"), "{said:?}");
    for (args, nothing) in [
        (&["objects", "list", "apq"][..], "no object of it"),
        (&["secrets", "list", "--app", "apq"], "no secret of it"),
        (&["workflow", "cancel", "--app", "apq"], "no live instance of its workflows"),
    ] {
        let said = node.cli(args);
        assert_eq!(said.status.code(), Some(NOT_FOUND), "{said:?}");
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(text.contains(&format!("there is no app `apq`, and {nothing}")), "{text}");
    }
}
