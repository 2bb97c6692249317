//! A node in a process of its own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::engine_code;

/// Longer than anything here takes on the slowest machine, builds of functions included.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The pause between two looks at what a test waits for: looks without one take the processors from the nodes, and from other tests.
pub fn look_again() {
    std::thread::sleep(Duration::from_millis(20));
}

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
        Self::start_in(data_dir, options, &[])
    }

    /// With its addresses among the options, and variables in its environment.
    pub fn start_in(data_dir: &Path, options: &[&str], environment: &[(&str, &Path)]) -> Self {
        engine_code::give(data_dir);
        Self::spawn(edgefaas(data_dir), "run", data_dir, options, environment)
    }

    /// In a control group, by the file that takes process ids; with its addresses among the options.
    pub fn start_within(procs: &Path, data_dir: &Path, options: &[&str]) -> Self {
        let program = edgefaas(data_dir);
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(procs).arg(program.get_program());
        command.stdin(Stdio::null());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Self::spawn(command, "run", data_dir, options, &[])
    }

    /// A running `edgefaas coordinator`.
    pub fn coordinator(data_dir: &Path, options: &[&str]) -> Self {
        let any = "127.0.0.1:0";
        let program = edgefaas(data_dir);
        Self::spawn(
            program,
            "coordinator",
            data_dir,
            &[&["--http", any, "--control", any], options].concat(),
            &[],
        )
    }

    fn spawn(
        mut program: Command,
        command: &str,
        data_dir: &Path,
        options: &[&str],
        environment: &[(&str, &Path)],
    ) -> Self {
        let mut child = program
            .arg(command)
            .args(options)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut ready).expect("a line");
        Self::of(child, ready, data_dir)
    }

    /// A node that has said that it is ready.
    pub fn of(child: Child, ready: String, data_dir: &Path) -> Self {
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

    /// The same with text on its stdin.
    pub fn tell(&self, args: &[&str], stdin: &str) {
        let mut child = edgefaas(&self.data_dir)
            .args(["--node", &self.control])
            .args(args)
            .stdin(Stdio::piped())
            .spawn()
            .expect("it runs");
        child.stdin.take().expect("piped").write_all(stdin.as_bytes()).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "edgefaas {args:?}");
    }

    /// Status code and body of an HTTP request.
    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (head, body) = self.exchange(method, path, body);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body)
    }

    /// Head and body of the answer to an HTTP request.
    pub fn exchange(&self, method: &str, path: &str, body: &str) -> (String, String) {
        let stream = TcpStream::connect(&self.http).expect("the gateway is open");
        exchange_over(stream, method, path, body)
    }

    /// Body of the control port's answer to a GET request.
    pub fn control_get(&self, path: &str) -> String {
        let address = self.control.split_once("://").expect("a URL").1;
        let token = std::fs::read_to_string(self.data_dir.join("token")).expect("the token");
        let mut stream = TcpStream::connect(address).expect("the control port is open");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
        write!(stream, "{head}authorization: Bearer {}\r\n\r\n", token.trim()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    /// The value of a metric without labels.
    pub fn metric(&self, name: &str) -> u64 {
        let address = self.control.split_once("://").expect("a URL").1;
        let token = std::fs::read_to_string(self.data_dir.join("token")).expect("the token");
        metric_over(TcpStream::connect(address).expect("the control port is open"), token.trim(), name)
    }

    /// A word of the ready line, after its name and `=`.
    pub fn word(&self, name: &str) -> &str {
        let found =
            self.ready.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("no {name} in {:?}", self.ready))
    }

    /// Forgets the peak of the process's resident memory.
    pub fn reset_peak_memory(&self) {
        // proc_pid_clear_refs(5)
        std::fs::write(format!("/proc/{}/clear_refs", self.child.id()), "5").expect("it is our own");
    }

    /// The peak of the process's resident memory, in bytes.
    pub fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the process is there");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
    }

    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has not ended.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("it can be asked").is_none()
    }

    /// A line of `/proc/PID/status` in KiB, such as `VmRSS` or `VmHWM`.
    pub fn memory_kib(&self, line: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
        let number = found.and_then(|text| text.trim().split(' ').next()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {line} in {status}"))
    }

    pub fn kill(mut self) {
        self.child.kill().expect("it was alive");
        self.child.wait().expect("it ends");
    }

    /// Waits for the end that nobody asked for; gives the exit code.
    pub fn ended(mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        while self.is_alive() {
            assert!(Instant::now() < until, "it still runs");
            look_again();
        }
        self.child.wait().expect("it has ended").code()
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

/// Head and body of the answer to an HTTP request over a new connection.
pub fn exchange_over(mut stream: TcpStream, method: &str, path: &str, body: &str) -> (String, String) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}"
    );
    write!(stream, "{head}\r\n\r\n{body}").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

/// The value of a metric without labels, from a connection with the control port.
pub fn metric_over(mut stream: TcpStream, token: &str, name: &str) -> u64 {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let head = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close";
    write!(stream, "{head}\r\nauthorization: Bearer {token}\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let found = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in {answer}")).trim().parse().expect("a number")
}

/// Copies the program to `to`. Another process writes it: a thread that starts a program at the same time would hand a
/// file that is open here to its child, and a file that is open for writing cannot be started (`ETXTBSY`).
pub fn copy_program(to: &Path) {
    let status = Command::new("cp").arg(env!("CARGO_BIN_EXE_edgefaas")).arg(to).status().unwrap();
    assert!(status.success(), "cp to {}: {status}", to.display());
}

pub fn edgefaas(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edgefaas"));
    command
        .stdin(Stdio::null())
        .env_remove("EDGEFAAS_NODE")
        .env_remove("EDGEFAAS_TOKEN")
        .env("EDGEFAAS_DATA_DIR", data_dir)
        .env("EDGEFAAS_CONFIG_DIR", data_dir.join("login"))
        // `edgefaas test` keeps compiled code there.
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        // The functions that tests build share their dependencies.
        .env("CARGO_TARGET_DIR", guest_target());
    command
}

pub fn guest_target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("guest")
}

/// Builds a guest of `tests/node/guests` and gives its component.
pub fn component(name: &str) -> PathBuf {
    let guests = repository().join("crates/cli/tests/node/guests");
    let output = Command::new("cargo")
        .args(["build", "--release", "--target", "wasm32-wasip2"])
        .current_dir(guests.join(name))
        .env("CARGO_TARGET_DIR", guest_target())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    guest_target().join("wasm32-wasip2/release").join(format!("{name}.wasm"))
}

/// An HTTP server that answers with method, path and body of what it was asked, once `parallel` requests are under way.
/// Gives its address.
pub fn echo_server(parallel: usize) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        loop {
            let mut asked = Vec::new();
            while asked.len() < parallel {
                let Ok((stream, _)) = listener.accept() else { return };
                asked.extend(read_request(stream));
            }
            for (mut stream, text) in asked {
                let head =
                    format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}", text.len());
                let _ = write!(stream, "{head}\r\n\r\n{text}");
            }
        }
    });
    address
}

/// Method, path and body of a request; nothing if the connection ends before.
fn read_request(stream: TcpStream) -> Option<(TcpStream, String)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (mut words, mut length) = (line.split(' '), 0);
    let (method, path) = (words.next()?, words.next()?);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        match header.trim().to_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().ok()?,
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let text = format!("{method} {path} {}", String::from_utf8_lossy(&body));
    Some((reader.into_inner(), text))
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

/// A port for TCP and UDP that nobody has, and that no test after this is given.
///
/// Ports that the system hands out are no use here: it may hand the same one to another test, or to an outgoing connection, before it is
/// listened on. These are below all of them.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const PORTS: std::ops::Range<u16> = 10_000..20_000;
    // Another run of the tests begins somewhere else.
    let first = (std::process::id() % 97) as u16 * 100;
    loop {
        let offset = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = PORTS.start + offset % (PORTS.end - PORTS.start);
        let is_free = UdpSocket::bind(("127.0.0.1", port)).is_ok();
        if is_free && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
