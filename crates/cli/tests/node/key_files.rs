//! Files with keys and tokens: a node does not start with one that other users can read.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::damage::start;

fn open_to(path: &Path, mode: u32) {
    set_permissions(path, Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Runs the commands that an error shows between backticks.
fn run_what_it_says(said: &str) {
    let commands = said.split('`').nth(1).unwrap_or_else(|| panic!("no command in: {said}"));
    assert!(Command::new("sh").args(["-c", commands]).status().unwrap().success(), "{commands}");
}

#[test]
fn a_node_does_not_start_with_a_key_that_others_can_read() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let options = ["--mqtts", "127.0.0.1:0", "--p2p", "127.0.0.1:0"];
    let node = start(&data, &options).unwrap();
    node.ok(&["cluster", "init", "--name", "n0"]);
    node.terminate();

    let names =
        ["token", "http-token", "tls-key.pem", "cache-key", "cluster/cluster.key", "cluster/node.key"];
    let files = names.map(|name| data.join(name));
    for (file, mode) in files.iter().zip([0o644, 0o640, 0o604, 0o620, 0o644, 0o644]) {
        open_to(file, mode);
        let Err(said) = start(&data, &options) else {
            panic!("it starts with {} of mode {mode:o}", file.display())
        };
        assert!(said.contains(&format!("chmod 600 {}", file.display())), "{said}");
        open_to(file, 0o600);
    }
    // All in one error, as after a restored backup.
    files.iter().for_each(|file| open_to(file, 0o644));
    let Err(said) = start(&data, &options) else { panic!("it starts with keys that all can read") };
    run_what_it_says(&said);
    let node = start(&data, &options).unwrap();
    node.ok(&["list"]);
}

#[test]
fn private_keys_that_the_configuration_names_are_checked_as_well() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let config = "[tls]\ncert = \"a.pem\"\nkey = \"a.key\"\n[access.jwt]\nsecret = \"secret\"\n\
                  [[bridges]]\nname = \"b\"\nurl = \"mqtts://127.0.0.1:1\"\nca = \"a.pem\"\ncert = \"a.pem\"\nkey = \"b.key\"\n\
                  username = \"u\"\npassword_file = \"password\"\n\
                  topics = [{ filter = \"t\", direction = \"out\" }]\n";
    std::fs::write(path("edgefaas.toml"), config).unwrap();
    std::fs::write(path("a.pem"), made.cert.pem()).unwrap();
    let files = ["a.key", "b.key", "password", "secret"];
    for key in files {
        std::fs::write(path(key), made.signing_key.serialize_pem()).unwrap();
        open_to(&path(key), 0o600);
    }
    let (data, file) = (path("data"), path("edgefaas.toml"));
    let options = ["--config", file.to_str().unwrap(), "--mqtts", "127.0.0.1:0"];
    for key in files {
        open_to(&path(key), 0o644);
        let Err(said) = start(&data, &options) else { panic!("it starts with {key}") };
        assert!(said.contains(&path(key).display().to_string()), "{said}");
        run_what_it_says(&said);
    }
    let node = start(&data, &options).unwrap();
    // A reload does not take an exposed key either, and the node goes on with the one it has.
    open_to(&path("a.key"), 0o644);
    let reload = node.cli(&["users", "reload"]);
    let said = String::from_utf8_lossy(&reload.stderr).into_owned();
    assert!(!reload.status.success() && said.contains("chmod 600"), "{said}");
    open_to(&path("a.key"), 0o600);
    node.ok(&["users", "reload"]);
}
