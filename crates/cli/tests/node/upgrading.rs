//! `edgefaas upgrade`: real programs, a node that restarts, and cuts between the steps.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::support::{copy_program, edgefaas, free_port};

/// What the program of a release does as a node.
#[derive(Clone, Copy)]
enum Fake {
    Dies,
    NeverReady,
}

/// A program that says its version like edgefaas. With HOLD it waits there until that connection ends.
const FAKE: &str = r#"
use std::io::Read;
fn main() {
    if std::env::args().nth(1).as_deref() == Some("--version") {
        if let Ok(address) = std::env::var("HOLD") {
            let _ = std::net::TcpStream::connect(address).unwrap().read(&mut [0]);
        }
        println!("edgefaas 99.0.0");
    } else if NEVER_READY {
        loop { std::thread::park() }
    } else {
        std::process::exit(3)
    }
}
"#;

fn fake(folder: &Path, kind: Fake) -> Vec<u8> {
    let never_ready = matches!(kind, Fake::NeverReady);
    let (source, program) = (folder.join("fake.rs"), folder.join("fake"));
    fs::write(&source, format!("const NEVER_READY: bool = {never_ready};\n{FAKE}")).unwrap();
    let built = Command::new("rustc").arg("-o").arg(&program).arg(&source).output().expect("rustc runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    fs::read(program).unwrap()
}

fn real() -> Vec<u8> {
    fs::read(env!("CARGO_BIN_EXE_edgefaas")).unwrap()
}

/// The same program with other bytes behind its end.
fn newer() -> Vec<u8> {
    let mut bytes = real();
    bytes.extend_from_slice(b"newer");
    bytes
}

/// A key that signs as minisign does in its older form: over the file, and not over its BLAKE2b sum.
struct SigningKey {
    pair: Ed25519KeyPair,
    id: [u8; 8],
}

impl SigningKey {
    fn new() -> Self {
        let random = SystemRandom::new();
        let pair = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap();
        let mut id = [0; 8];
        random.fill(&mut id).unwrap();
        Self { pair, id }
    }

    fn public(&self) -> String {
        base64(&[b"Ed", &self.id[..], self.pair.public_key().as_ref()].concat())
    }

    fn sign(&self, text: &[u8]) -> String {
        let signature = self.pair.sign(text);
        let comment = "edgefaas 99.0.0";
        let both = self.pair.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        let first = base64(&[b"Ed", &self.id[..], signature.as_ref()].concat());
        format!("untrusted comment: t\n{first}\ntrusted comment: {comment}\n{}\n", base64(both.as_ref()))
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = |part: &[u8]| {
        let bits =
            part.iter().chain([&0, &0]).take(3).fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let digit = |place: usize| DIGITS[(bits >> (18 - 6 * place)) as usize & 63] as char;
        (0..4).map(|place| if place <= part.len() { digit(place) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(digits).collect()
}

/// An installed program, the supervisor of its node, and a release.
struct Home {
    folder: tempfile::TempDir,
    key: SigningKey,
    control_port: u16,
    supervisor_port: u16,
    node: Arc<Mutex<Option<Child>>>,
    /// A restart waits until its sender is dropped.
    restarts: Receiver<Sender<()>>,
}

impl Home {
    /// Starts the node.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("bin")).unwrap();
        fs::create_dir(folder.path().join("release")).unwrap();
        copy_program(&folder.path().join("bin/edgefaas"));
        let control_port = free_port();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let supervisor_port = listener.local_addr().unwrap().port();
        let node = Arc::<Mutex<Option<Child>>>::default();
        let mut first = start(folder.path(), control_port);
        let mut ready = String::new();
        BufReader::new(first.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("ready"), "{ready:?}");
        *node.lock().unwrap() = Some(first);
        let (sent, restarts) = channel();
        let (home, supervised) = (folder.path().to_owned(), node.clone());
        std::thread::spawn(move || {
            for asked in listener.incoming() {
                let (permission, permitted) = channel();
                if sent.send(permission).is_err() {
                    return;
                }
                let _ = permitted.recv();
                let mut node = supervised.lock().unwrap();
                let mut old = node.take().expect("it was started");
                let _ = Command::new("kill").args(["-TERM", &old.id().to_string()]).status();
                old.wait().unwrap();
                *node = Some(start(&home, control_port));
                // The command may have been killed.
                let _ = asked.unwrap().write_all(b"ok\n");
            }
        });
        Self { folder, key: SigningKey::new(), control_port, supervisor_port, node, restarts }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a release with one program; gives its file.
    fn release(&self, name: &str, program: &[u8]) -> PathBuf {
        let release = self.path("release");
        fs::write(release.join(name), program).unwrap();
        let sum = digest::digest(&digest::SHA256, program);
        let sum: String = sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let sums = format!("{sum}  {name}\n");
        fs::write(release.join("SHA256SUMS.minisig"), self.key.sign(sums.as_bytes())).unwrap();
        fs::write(release.join("SHA256SUMS"), sums).unwrap();
        release.join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let restart = format!(
            "exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/{} && read -r line <&3 && [ \"$line\" = ok ]'",
            self.supervisor_port
        );
        let mut command = edgefaas(&self.path("data"));
        command
            .env_remove("EDGEFAAS_PUBLIC_KEY")
            .args(["--node", &format!("http://127.0.0.1:{}", self.control_port), "upgrade"])
            .arg("--program")
            .arg(self.path("bin/edgefaas"))
            .args(["--restart", &restart])
            .args(args);
        command
    }

    /// Runs an upgrade whose restarts are permitted; gives its output and the number of restarts.
    fn upgrade(&self, source: &str, args: &[&str]) -> (Output, usize) {
        let key = self.key.public();
        let command = self.command(&[&[source, "--key", &key], args].concat());
        self.run(command)
    }

    fn run(&self, mut command: Command) -> (Output, usize) {
        let (done, ended) = channel();
        std::thread::spawn(move || done.send(command.output().expect("it runs")));
        let mut restarts = 0;
        loop {
            if let Ok(output) = ended.try_recv() {
                return (output, restarts + self.restarts.try_iter().count());
            }
            if let Ok(permission) = self.restarts.recv_timeout(Duration::from_millis(20)) {
                drop(permission);
                restarts += 1;
            }
        }
    }

    fn installed(&self) -> Vec<u8> {
        fs::read(self.path("bin/edgefaas")).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("bin")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The file that the node runs.
    fn running(&self) -> Vec<u8> {
        let id = self.node.lock().unwrap().as_ref().unwrap().id();
        fs::read(format!("/proc/{id}/exe")).unwrap()
    }

    fn token(&self) -> String {
        fs::read_to_string(self.path("data/token")).unwrap()
    }

    fn is_ready(&self) -> bool {
        let node = format!("http://127.0.0.1:{}", self.control_port);
        edgefaas(&self.path("data")).args(["--node", &node, "status"]).output().unwrap().status.success()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(mut node) = self.node.lock().unwrap().take() {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

fn start(home: &Path, control_port: u16) -> Child {
    let any = "127.0.0.1:0";
    edgefaas_at(&home.join("bin/edgefaas"), home)
        .args(["run", "--http", any, "--mqtt", any, "--control", &format!("127.0.0.1:{control_port}")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn edgefaas_at(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).env("EDGEFAAS_DATA_DIR", home.join("data"));
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_good_program_is_installed_and_the_one_before_returns_on_demand() {
    let home = Home::new();
    let token = home.token();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&newer()).unwrap();
    // The folder of the release has one program for this machine.
    home.release(&format!("edgefaas-99.0.0-{}.gz", std::env::consts::ARCH), &packed.finish().unwrap());
    let (output, restarts) = home.upgrade(home.path("release").to_str().unwrap(), &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("is installed, and its node is ready"), "{}", said(&output));
    assert_eq!(restarts, 1);
    assert!(home.installed() == newer() && home.running() == newer());
    assert_eq!(home.names(), ["edgefaas", "edgefaas.previous"]);
    assert_eq!(home.token(), token, "the data stays");

    let (output, restarts) = home.run(home.command(&["--back"]));
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(restarts, 1);
    assert!(home.installed() == real() && home.running() == real() && home.is_ready());
}

#[test]
fn a_program_that_dies_and_one_that_never_gets_ready_are_removed_again() {
    let home = Home::new();
    // The program that returns has the same time, on a machine that may be busy.
    for (kind, words) in
        [(Fake::Dies, "was not ready within 10 s"), (Fake::NeverReady, "was not ready within 10 s")]
    {
        let program = fake(home.folder.path(), kind);
        let file = home.release("edgefaas", &program);
        let (output, restarts) = home.upgrade(file.to_str().unwrap(), &["--wait", "10s"]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(words), "{}", said(&output));
        assert!(said(&output).contains("edgefaas 99.0.0 is not installed"), "{}", said(&output));
        assert!(said(&output).contains("its node is ready again"), "{}", said(&output));
        assert_eq!(restarts, 2, "to the new one, and back");
        assert!(home.installed() == real() && home.running() == real() && home.is_ready());
        assert_eq!(home.names(), ["edgefaas", "edgefaas.previous"]);
    }
}

#[test]
fn what_does_not_verify_changes_nothing() {
    let home = Home::new();
    let program = newer();
    let file = home.release("edgefaas", &program);
    let (file, sums) = (file.to_str().unwrap(), home.path("release/SHA256SUMS"));
    let refused = |(output, restarts): (Output, usize), words: &str| {
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains(words), "{words}: {}", said(&output));
        assert_eq!(restarts, 0);
        assert!(home.installed() == real());
        assert_eq!(home.names(), ["edgefaas"]);
    };
    refused(home.run(home.command(&[file])), "no key is given");
    let other = SigningKey::new().public();
    refused(home.run(home.command(&[file, "--key", &other])), "not valid for this key");
    refused(home.run(home.command(&[file, "--key", "RWnonsense"])), "is not a minisign public key");

    let mut changed = program.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(file, &changed).unwrap();
    refused(home.upgrade(file, &[]), "it is damaged or was changed");
    refused(home.run(home.command(&[file, "--unsigned"])), "it is damaged or was changed");
    fs::write(file, &program).unwrap();

    let text = fs::read_to_string(&sums).unwrap();
    fs::write(&sums, format!("{text}\n")).unwrap();
    refused(home.upgrade(file, &[]), "not valid for this key");
    fs::write(&sums, &text).unwrap();
    fs::remove_file(home.path("release/SHA256SUMS.minisig")).unwrap();
    refused(home.upgrade(file, &[]), "SHA256SUMS.minisig cannot be read");

    // Signed, and no program that runs here.
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&program).unwrap();
    let mut trailing = packed.finish().unwrap();
    trailing.extend_from_slice(b"more");
    // EM_RISCV in the header.
    let mut foreign = program.clone();
    foreign[18..20].copy_from_slice(&[243, 0]);
    let mut linker = program.clone();
    let loader = b"/ld-linux";
    let at = linker.windows(loader.len()).position(|part| part == loader).expect("a dynamic program");
    linker[at..at + loader.len()].copy_from_slice(b"/ld-musl-");
    for (name, bytes, words) in [
        (
            "trailing.gz",
            &trailing[..],
            "trailing.gz cannot be unpacked: it has more bytes behind the end of its gzip data",
        ),
        (
            "cut.gz",
            &trailing[..trailing.len() / 2],
            "cut.gz cannot be unpacked: its gzip data is damaged or incomplete",
        ),
        (
            "script",
            b"#!/bin/sh\necho edgefaas 99.0.0\n",
            "script does not run here: it is a script, and not a program for this machine",
        ),
        (
            "edgefaas_1_amd64.deb",
            b"!<arch>\ndebian-binary   1",
            "it is a Debian package, and not a program",
        ),
        (
            "foreign",
            &foreign,
            "foreign does not run here: it is a program for 64-bit RISC-V, and not for this machine, which is",
        ),
        ("linker", &linker, "(of musl), which this system does not have: the system has"),
        (
            "other",
            &fs::read("/bin/false").unwrap(),
            "is not edgefaas: `--version` ended with exit status: 1",
        ),
        ("echo", &fs::read("/bin/echo").unwrap(), "is not edgefaas: `--version` wrote"),
    ] {
        let file = home.release(name, bytes);
        refused(home.upgrade(file.to_str().unwrap(), &[]), words);
    }
    // The folder has one file with a name of this machine, or none.
    let folder = home.path("release");
    refused(home.upgrade(folder.to_str().unwrap(), &[]), "has no edgefaas-VERSION-");
    let output =
        home.run(home.command(&[folder.to_str().unwrap(), "--key", &home.key.public(), "--no-way-back"])).0;
    assert!(
        output.status.code() == Some(2) && said(&output).contains("are for the Debian package"),
        "{}",
        said(&output)
    );
    assert!(home.is_ready());
}

#[test]
fn a_cut_between_the_steps_leaves_a_program_and_the_next_upgrade_succeeds() {
    let home = Home::new();
    // While the new program is checked: nothing was replaced.
    let program = fake(home.folder.path(), Fake::NeverReady);
    let file = home.release("edgefaas", &program);
    let key = home.key.public();
    let hold = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = home.command(&[file.to_str().unwrap(), "--key", &key]);
    let mut child = command.env("HOLD", hold.local_addr().unwrap().to_string()).spawn().unwrap();
    let (held, _) = hold.accept().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(held);
    assert!(home.installed() == real());
    assert_eq!(home.names(), ["edgefaas", "edgefaas.new"]);

    // While the node restarts: the new program is in place, and nobody has seen it ready.
    let mut child = home.command(&[file.to_str().unwrap(), "--key", &key]).spawn().unwrap();
    let permission = home.restarts.recv().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    drop(permission);
    assert!(home.installed() == program);
    assert_eq!(home.names(), ["edgefaas", "edgefaas.previous", "edgefaas.unverified"]);

    // The next upgrade fails at once, and has still returned to the program before the cut.
    fs::remove_file(home.path("release/SHA256SUMS")).unwrap();
    let (output, restarts) = home.upgrade(file.to_str().unwrap(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("was cut off"), "{}", said(&output));
    assert_eq!(restarts, 1);
    assert!(home.installed() == real() && home.running() == real() && home.is_ready());
    assert_eq!(home.names(), ["edgefaas", "edgefaas.previous"]);

    let file = home.release("edgefaas", &newer());
    let (output, _) = home.upgrade(file.to_str().unwrap(), &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(home.installed() == newer() && home.running() == newer());
}

#[test]
fn a_program_comes_from_an_address() {
    let home = Home::new();
    home.release("edgefaas", &newer());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let folder = home.path("release");
    std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.unwrap(), &folder)));
    let missing = home.upgrade(&format!("http://{address}/1.0/missing"), &[]);
    assert!(said(&missing.0).contains("no sum of missing"), "{}", said(&missing.0));
    let (output, restarts) = home.upgrade(&format!("http://{address}/1.0/edgefaas"), &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(restarts, 1);
    assert!(home.installed() == newer() && home.running() == newer());
    let nowhere = home.upgrade(&format!("http://{address}/9.9/edgefaas"), &[]);
    assert!(said(&nowhere.0).contains("/9.9/SHA256SUMS is not available: the server answered 404"));
}

/// Answers a request for a file under `/1.0/`.
fn answer(mut stream: TcpStream, folder: &Path) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let path = head.split(' ').nth(1).unwrap();
    let found = path.strip_prefix("/1.0/").and_then(|name| fs::read(folder.join(name)).ok());
    let (status, body) = found.map_or(("404 Not Found", Vec::new()), |body| ("200 OK", body));
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    let _ = stream.write_all(&body);
}
