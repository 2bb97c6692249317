//! A node in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Longer than anything here takes on the slowest machine, builds of functions included.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// A running `edgefaas run`.
pub struct Running {
    child: Child,
    pub data_dir: PathBuf,
    pub http: String,
    pub mqtt_port: String,
    pub control: String,
    /// What it said when it was ready.
    pub ready: String,
}

impl Running {
    pub fn start(data_dir: &Path, options: &[&str]) -> Self {
        let any = "127.0.0.1:0";
        let mqtt: &[&str] = if options.contains(&"--mqtt") { &[] } else { &["--mqtt", any] };
        Self::start_at(data_dir, &[&["--http", any, "--control", any], mqtt, options].concat())
    }

    /// With its addresses among the options.
    pub fn start_at(data_dir: &Path, options: &[&str]) -> Self {
        let mut child = edgefaas(data_dir)
            .arg("run")
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
        let field = |name: &str| {
            let found = ready.split_whitespace().find_map(|word| word.strip_prefix(name));
            found.unwrap_or_else(|| panic!("no {name} in {ready:?}")).to_owned()
        };
        let mqtt = field("mqtt=mqtt://");
        Self {
            http: field("http=").split_once("://").expect("a URL").1.to_owned(),
            ready: ready.clone(),
            mqtt_port: mqtt.rsplit_once(':').expect("a port").1.to_owned(),
            control: field("control="),
            data_dir: data_dir.to_owned(),
            child,
        }
    }

    /// Runs a command of the CLI against this node.
    pub fn cli(&self, args: &[&str]) -> Output {
        edgefaas(&self.data_dir).args(["--node", &self.control]).args(args).output().expect("it runs")
    }

    /// The same, and it must succeed; gives its stdout.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.cli(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "edgefaas {args:?}: {stderr}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Status code and body of an HTTP request.
    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.http).expect("the gateway is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}"
        );
        write!(stream, "{head}\r\n\r\n{body}").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    /// A word of the ready line, after its name and `=`.
    pub fn word(&self, name: &str) -> &str {
        let found =
            self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.ready))
    }

    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it was alive");
        self.child.wait().expect("it ends");
    }

    /// SIGTERM; gives the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn edgefaas(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edgefaas"));
    command
        .stdin(Stdio::null())
        .env_remove("EDGEFAAS_NODE")
        .env_remove("EDGEFAAS_TOKEN")
        .env("EDGEFAAS_DATA_DIR", data_dir)
        .env("EDGEFAAS_CONFIG_DIR", data_dir.join("login"))
        // The functions that tests build share their dependencies.
        .env("CARGO_TARGET_DIR", guest_target());
    command
}

pub fn guest_target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest")
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Says what a test was skipped for; fails instead where everything has to be there.
pub fn skipped(needs: &str) {
    println!("skipped: needs {needs}");
    assert!(
        std::env::var_os("EDGEFAAS_NO_SKIP").is_none(),
        "nothing may be skipped, but {needs} is missing"
    );
}

/// True if the program runs.
pub fn has(program: &str, args: &[&str]) -> bool {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

/// True if Rust functions can be built here.
pub fn has_wasm_target() -> bool {
    let Ok(output) = Command::new("rustc").args(["--print", "sysroot"]).output() else { return false };
    let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Path::new(&sysroot).join("lib/rustlib/wasm32-wasip2").exists()
}
