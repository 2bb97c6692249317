//! A full disk.

use std::path::Path;
use std::process::Command;

use crate::support::{Running, skipped};

/// A file system of its own in memory, unmounted when it is dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(path: &'a Path, size: &str) -> Option<Self> {
        let options = format!("size={size}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).output();
    }
}

const COUNT: &str = r#"
export default async (event, context) => {
    if (event.text() === "read") return "read " + (await context.object("o").counter("n").value());
    await context.object("o").counter("n").add(1);
    return "counted";
};
"#;

#[test]
fn a_full_disk_is_told_and_the_node_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let disk_path = home.path().join("disk");
    std::fs::create_dir(&disk_path).unwrap();
    let Some(_disk) = SmallDisk::mount(&disk_path, "128m") else {
        return skipped("the right to mount a file system (root)");
    };
    let config = home.path().join("edgefaas.toml");
    std::fs::write(&config, "[store]\nreserve = \"16MiB\"\n").unwrap();
    let file = home.path().join("count.js");
    std::fs::write(&file, COUNT).unwrap();
    let node = Running::start(&disk_path.join("data"), &["--config", config.to_str().unwrap()]);
    node.ok(&["deploy", file.to_str().unwrap(), "--allow", "objects=o"]);
    assert_eq!(node.http("POST", "/fn/count", ""), (200, "counted".into()));

    let filler = disk_path.join("filler");
    fill(&filler);
    let (status, body) = node.http("POST", "/fn/count", "");
    assert_eq!(status, 507, "{body}");
    assert!(body.contains("the disk is full") && body.contains("make room"), "{body}");
    let (_, read) = node.http("POST", "/fn/count", "read");
    let counted: u32 = read.strip_prefix("read ").expect("reading goes on").parse().unwrap();

    std::fs::write(&file, COUNT.replace("counted", "changed")).unwrap();
    let deploy = node.cli(&["deploy", file.to_str().unwrap(), "--allow", "objects=o"]);
    assert!(!deploy.status.success());
    let said = String::from_utf8_lossy(&deploy.stderr).into_owned();
    assert!(said.contains("the disk is full"), "{said}");

    std::fs::remove_file(&filler).unwrap();
    assert_eq!(node.http("POST", "/fn/count", ""), (200, "counted".into()), "there is room again");
    assert_eq!(node.http("POST", "/fn/count", "read"), (200, format!("read {}", counted + 1)));
    assert_eq!(node.terminate(), Some(0));
}

/// Writes until the disk takes no more.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    for block in [1 << 20, 1 << 12] {
        let zeros = vec![0; block];
        while file.write_all(&zeros).is_ok() {}
    }
}
