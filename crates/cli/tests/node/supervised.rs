//! The node under a service manager that speaks sd_notify(3).

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use crate::support::{PATIENCE, Running};

/// The end of a service manager.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(folder: &Path) -> Self {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, path }
    }

    fn start(&self, folder: &Path, watchdog_usec: Option<&str>) -> Running {
        let mut environment = vec![("NOTIFY_SOCKET", self.path.as_path())];
        environment.extend(watchdog_usec.map(|usec| ("WATCHDOG_USEC", Path::new(usec))));
        let any = "127.0.0.1:0";
        let options = ["--http", any, "--mqtt", any, "--control", any];
        Running::start_in(&folder.join("data"), &options, &environment)
    }

    /// The assignments of the next notification.
    fn next(&self) -> Vec<(String, String)> {
        let mut buffer = vec![0; 4096];
        let length = self.socket.recv(&mut buffer).expect("a notification");
        let text = String::from_utf8(buffer[..length].to_vec()).expect("text");
        let assignment = |line: &str| {
            let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("no assignment: {line:?}"));
            (name.to_owned(), value.to_owned())
        };
        text.lines().map(assignment).collect()
    }
}

fn names(message: &[(String, String)]) -> Vec<&str> {
    message.iter().map(|(name, _)| name.as_str()).collect()
}

fn monotonic_usec() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000
}

#[test]
fn the_manager_gets_ready_reload_and_stop() {
    let home = tempfile::tempdir().unwrap();
    let manager = Manager::new(home.path());
    let node = manager.start(home.path(), None);
    let ready = manager.next();
    assert_eq!(names(&ready), ["READY", "STATUS"]);
    assert_eq!(ready[0].1, "1");
    assert!(ready[1].1.starts_with("ready; http 127.0.0.1:") && ready[1].1.contains(&node.mqtt_port));
    assert_eq!(node.control_get("/readyz"), "ready\n");

    node.tell(&["users", "add", "ada"], "a long password");
    let before = monotonic_usec();
    node.signal("-HUP");
    let reloading = manager.next();
    assert_eq!(names(&reloading), ["RELOADING", "MONOTONIC_USEC"]);
    let told: i128 = reloading[1].1.parse().unwrap();
    assert!((before..=monotonic_usec()).contains(&told), "systemd compares it with the time of its signal");
    let reloaded = manager.next();
    assert_eq!(names(&reloaded), ["READY", "STATUS"]);
    assert_eq!(reloaded[1].1, "reloaded; 1 users");

    // A reload that fails has ended too; the lines of its error are one line.
    std::fs::write(home.path().join("data/users.toml"), "ada = 7\n[[").unwrap();
    node.signal("-HUP");
    assert_eq!(names(&manager.next())[0], "RELOADING");
    let failed = manager.next();
    assert_eq!(names(&failed), ["READY", "STATUS"]);
    assert!(failed[1].1.starts_with("the reload failed: "), "{failed:?}");

    let ended = node.terminate();
    let stopping = manager.next();
    assert_eq!(names(&stopping), ["STOPPING", "EXTEND_TIMEOUT_USEC", "STATUS"]);
    // Half of the drain of 10 s for workflows, the drain, 3 s for connections, 5 s for the last spans and 20 s for the store.
    assert_eq!(stopping[1].1, "43000000");
    assert_eq!(ended, Some(0));
    manager.socket.set_nonblocking(true).unwrap();
    assert!(manager.socket.recv(&mut [0; 16]).is_err(), "no watchdog, no notification of it");
}

/// Each of the eight calls has a second of processor time, so that together they keep two threads for four seconds: many
/// intervals of a watchdog of 0.2 s.
#[test]
fn the_watchdog_is_answered_while_functions_compute_and_while_the_node_drains() {
    let home = tempfile::tempdir().unwrap();
    let manager = Manager::new(home.path());
    let node = manager.start(home.path(), Some("200000"));
    assert_eq!(names(&manager.next()), ["READY", "STATUS"]);
    assert_eq!(manager.next(), [("WATCHDOG".to_owned(), "1".to_owned())]);
    let app = home.path().join("app");
    std::fs::create_dir(&app).unwrap();
    let manifest = "app = \"spin\"\n[functions.spin]\nmain = \"spin.js\"\nlimits = { timeout = \"5m\", cpu = \"1s\" }\n";
    std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
    std::fs::write(app.join("spin.js"), "export default () => { for (;;); };\n").unwrap();
    node.ok(&["deploy", app.to_str().unwrap()]);
    std::thread::scope(|threads| {
        let calls: Vec<_> = (0..8).map(|_| threads.spawn(|| node.http("POST", "/fn/spin", ""))).collect();
        let mut answers = 0;
        while !calls.iter().all(|call| call.is_finished()) {
            assert_eq!(names(&manager.next()), ["WATCHDOG"]);
            answers += 1;
        }
        assert!(answers >= 5, "{answers} while functions computed");
    });

    let ended = std::thread::spawn(move || node.terminate());
    let mut stopping = manager.next();
    while names(&stopping) == ["WATCHDOG"] {
        stopping = manager.next();
    }
    assert_eq!(names(&stopping)[0], "STOPPING");
    assert_eq!(ended.join().unwrap(), Some(0));
}

#[test]
fn a_node_whose_manager_is_gone_runs_and_stops() {
    let home = tempfile::tempdir().unwrap();
    let manager = Manager::new(home.path());
    std::fs::remove_file(&manager.path).unwrap();
    let node = manager.start(home.path(), Some("1000"));
    assert_eq!(node.control_get("/readyz"), "ready\n");
    assert_eq!(node.terminate(), Some(0));
}
