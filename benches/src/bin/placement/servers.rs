//! What the functions use, in the zone of the data: PostgreSQL with a small document, Redis with a large one behind webdis, and an HTTP
//! backend; and the functions in Node.js, without edgefaas, on the hosts of the entry nodes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use edgefaas_benches::process::Process;
use edgefaas_testnet::Host;

const POSTGRES_PORT: u16 = 5432;
const REDIS_PORT: u16 = 6379;
const WEBDIS_PORT: u16 = 7379;
const BACKEND_PORT: u16 = 8080;
pub const PEER_PORT: u16 = 8081;
/// As in `guests/document`.
const USER: &str = "edgefaas";
const PASSWORD: &str = "measured";
/// The large document of the evaluation.
const LARGE_BYTES: usize = 124_000_000;
const SMALL_BYTES: usize = 200;
/// What the backend answers with.
const ANSWER_BYTES: usize = 10_000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Programs on the host of the database. Dropping it kills them.
pub struct Databases {
    children: Vec<Child>,
}

impl Databases {
    /// Starts all, with their documents.
    pub fn start(host: &Host, folder: &Path, quick: bool) -> anyhow::Result<Self> {
        let mut databases = Self { children: Vec::new() };
        databases.start_postgres(host, &folder.join("postgres"))?;
        databases.start_redis(host, folder)?;
        host.enter(|| -> anyhow::Result<()> {
            let address = SocketAddr::from((host.address(), REDIS_PORT));
            let mut connection = edgefaas_benches::peers::redis::connect(address)?;
            let large_bytes = if quick { LARGE_BYTES / 10 } else { LARGE_BYTES };
            for (key, bytes) in [("small", SMALL_BYTES), ("large", large_bytes)] {
                redis::cmd("SET").arg(key).arg(document(bytes)).query::<()>(&mut connection)?;
            }
            Ok(())
        })?;
        databases.start_webdis(host, folder)?;
        Ok(databases)
    }

    fn start_postgres(&mut self, host: &Host, folder: &Path) -> anyhow::Result<()> {
        std::fs::create_dir(folder)?;
        let user = PostgresUser::new(folder)?;
        let (data, password) = (folder.join("data"), folder.join("password"));
        std::fs::write(&password, PASSWORD)?;
        let mut init = user.command("initdb")?;
        init.arg("-D").arg(&data).args(["-U", USER, "--auth=scram-sha-256", "--no-sync", "--pwfile"]);
        let made = init.arg(&password).output()?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let address = host.address().to_string();
        let mut server = user.command("postgres")?;
        server.arg("-D").arg(&data).args(["-h", &address, "-p", &POSTGRES_PORT.to_string(), "-k", ""]);
        server.args(["-c", "fsync=off", "-c", &format!("external_pid_file={}/pid", folder.display())]);
        // Connections of other hosts.
        let rule = format!("\nhost all {USER} 10.77.0.0/16 scram-sha-256\n");
        std::fs::OpenOptions::new()
            .append(true)
            .open(data.join("pg_hba.conf"))?
            .write_all(rule.as_bytes())?;
        server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(host.spawn(server)?);
        wait_for(host, POSTGRES_PORT, "postgres")?;
        let sql = format!(
            "create table documents (id text primary key, body text); insert into documents values ('small', '{}')",
            document(SMALL_BYTES)
        );
        let begun = Instant::now();
        loop {
            let mut client = Command::new(program("psql")?);
            client
                .env("PGPASSWORD", PASSWORD)
                .args(["-h", &address, "-U", USER, "-d", "postgres", "-c", &sql]);
            let output = host.output(client)?;
            if output.status.success() {
                return Ok(());
            }
            // It refuses connections while it starts.
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure!(begun.elapsed() < PATIENCE && said.contains("starting up"), "psql: {said}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn start_redis(&mut self, host: &Host, folder: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(program("redis-server")?);
        command
            .args(["--port", &REDIS_PORT.to_string(), "--bind", &host.address().to_string()])
            .args(["--save", "", "--appendonly", "no", "--protected-mode", "no"])
            .current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.children.push(host.spawn(command)?);
        wait_for(host, REDIS_PORT, "redis-server")
    }

    fn start_webdis(&mut self, host: &Host, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join("webdis.json");
        let settings = serde_json::json!({
            "redis_host": host.address(), "redis_port": REDIS_PORT, "redis_auth": null,
            "http_host": host.address(), "http_port": WEBDIS_PORT,
            "threads": 2, "pool_size": 4, "daemonize": false, "websockets": false, "database": 0,
            "acl": [], "verbosity": 0, "logfile": folder.join("webdis.log"),
        });
        std::fs::write(&file, settings.to_string())?;
        let mut command = Command::new(program("webdis")?);
        command.arg(&file).current_dir(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.children.push(host.spawn(command)?);
        wait_for(host, WEBDIS_PORT, "webdis")
    }
}

impl Drop for Databases {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program, in PATH or where Debian has those of PostgreSQL.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let folders = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut folders = folders.unwrap_or_default();
    for version in std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        folders.push(version.path().join("bin"));
    }
    let found = folders.into_iter().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.with_context(|| {
        format!("{name} is not installed (Debian: apt-get install redis-server webdis postgresql nodejs)")
    })
}

/// PostgreSQL refuses to run as root.
struct PostgresUser(Option<(u32, u32)>);

impl PostgresUser {
    /// The owner of `folder` from now on: `postgres`, if this process is root.
    fn new(folder: &Path) -> anyhow::Result<Self> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let users = std::fs::read_to_string("/etc/passwd")?;
        let fields: Option<Vec<_>> = users
            .lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|line| line[0] == "postgres");
        let fields = fields.context("no user `postgres` (Debian: apt-get install postgresql)")?;
        let (user, group) = (fields[2].parse()?, fields[3].parse()?);
        std::os::unix::fs::chown(folder, Some(user), Some(group))?;
        // The folder around it is for this process alone.
        let around = folder.parent().context("a folder")?;
        std::fs::set_permissions(around, std::os::unix::fs::PermissionsExt::from_mode(0o711))?;
        Ok(Self(Some((user, group))))
    }

    fn command(&self, name: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(program(name)?);
        // The current one may be closed to it.
        command.current_dir("/");
        if let Some((user, group)) = self.0 {
            command.uid(user).gid(group);
        }
        Ok(command)
    }
}

fn wait_for(host: &Host, port: u16, program: &str) -> anyhow::Result<()> {
    let address = SocketAddr::from((host.address(), port));
    let begun = Instant::now();
    while host.connect(address).is_err() {
        ensure!(begun.elapsed() < PATIENCE, "{program} does not listen on {address}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// A document in JSON of so many bytes, whose property `name` comes last.
fn document(bytes: usize) -> String {
    const END: &str = "\"\"],\"name\":\"harbour\"}";
    const ENTRY: &str = "\"measured 20.5 at 12:00\",";
    let mut text = String::with_capacity(bytes + ENTRY.len() + END.len());
    text.push_str("{\"values\":[");
    while text.len() + END.len() < bytes {
        text.push_str(ENTRY);
    }
    text.push_str(END);
    text
}

/// Starts the functions in Node.js on a host.
pub fn start_peer(host: &Host, app: &Path) -> anyhow::Result<Process> {
    let file = app.join("peer.mjs");
    std::fs::copy(edgefaas_benches::repository().join("benches/apps/placement/peer.mjs"), &file)?;
    let mut command = Command::new(program("node")?);
    command.arg(file).arg(PEER_PORT.to_string());
    Process::start_on(host, command)
}

/// Starts an HTTP server on a host, which ends with the process.
pub fn start_backend(host: &Host) -> anyhow::Result<()> {
    let address = SocketAddr::from((host.address(), BACKEND_PORT));
    let listener = host.enter(|| TcpListener::bind(address))?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(serve(stream)));
        }
    });
    Ok(())
}

/// Answers the requests of one connection.
fn serve(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWER_BYTES}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + ANSWER_BYTES, b'.');
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut body_bytes) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let lower = line.to_ascii_lowercase();
            if let Some(bytes) = lower.strip_prefix("content-length:") {
                body_bytes = bytes.trim().parse().unwrap_or(0);
            }
        }
        std::io::copy(&mut reader.by_ref().take(body_bytes), &mut std::io::sink())?;
        writer.write_all(&answer)?;
    }
}
