//! The compiled JavaScript engine for nodes that start on an empty data directory. It takes seconds of two processors, as on the first
//! start of a machine, which tests in control groups see as it is.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

/// The data directory of a node of this program that has compiled its engine and stopped.
static COMPILED: LazyLock<PathBuf> = LazyLock::new(|| {
    let program = std::fs::metadata(env!("CARGO_BIN_EXE_edgefaas")).expect("the program");
    let changed =
        program.modified().expect("a time").duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("engine-code");
    let compiled = folder.join(format!("{}-{}", changed.as_nanos(), program.len()));
    if !compiled.join("done").exists() {
        // What there is belongs to another program, or was not finished.
        let _ = std::fs::remove_dir_all(&folder);
        compile(&compiled);
        std::fs::write(compiled.join("done"), "").expect("written");
    }
    compiled
});

fn compile(data: &Path) {
    let app = data.with_extension("app");
    std::fs::create_dir_all(&app).expect("a folder");
    std::fs::write(app.join("f.js"), "export default () => 1;").expect("written");
    let any = "127.0.0.1:0";
    let edgefaas = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_edgefaas"));
        command.stdin(Stdio::null()).env_remove("EDGEFAAS_NODE").env_remove("EDGEFAAS_TOKEN");
        command.env("EDGEFAAS_DATA_DIR", data).env("EDGEFAAS_CONFIG_DIR", data.join("login"));
        command
    };
    let mut node = edgefaas()
        .args(["run", "--http", any, "--mqtt", any, "--control", any])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut ready = String::new();
    BufReader::new(node.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
    let control =
        ready.split_whitespace().find_map(|word| word.strip_prefix("control=")).expect("a control port");
    let deployed =
        edgefaas().args(["--node", control, "deploy"]).arg(app.join("f.js")).output().expect("it runs");
    assert!(deployed.status.success(), "{}", String::from_utf8_lossy(&deployed.stderr));
    assert!(Command::new("kill").arg(node.id().to_string()).status().expect("kill runs").success());
    assert!(node.wait().expect("it ends").success());
}

/// Gives a node that has not run yet the compiled engine, with the key that authenticates it.
pub fn give(data: &Path) {
    if data.join("store").exists() || data.join("cache-key").exists() || data.join("cache").exists() {
        return;
    }
    // Tests of small disks count their bytes.
    let above = data.ancestors().find(|folder| folder.exists()).expect("a folder");
    let disk = rustix::fs::statvfs(above).expect("a file system");
    if disk.f_blocks * disk.f_frsize < 1 << 30 {
        return;
    }
    let is_new = !data.exists();
    std::fs::create_dir_all(data).expect("a folder");
    if is_new {
        std::fs::set_permissions(data, std::fs::Permissions::from_mode(0o700)).expect("its owner's only");
    }
    let parts = ["cache", "cache-key"].map(|part| COMPILED.join(part));
    let copied = Command::new("cp").arg("-a").args(parts).arg(data).status().expect("cp runs");
    assert!(copied.success());
}
