//! A full disk, and the way back.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rumqttc::v5;
use v5::mqttbytes::QoS;
use v5::mqttbytes::v5::{ConnectProperties, Packet, PubAckReason, PublishProperties};
use v5::{AsyncClient, Event, EventLoop, MqttOptions};

use crate::load::Connection;
use crate::support::{PATIENCE, Running, look_again, skipped};

/// Time in which writes have to be accepted again after data was removed.
/// It takes a fraction of a second on an idle machine, and several passes over the store beside other tests on two cores.
const RECOVERY: Duration = Duration::from_secs(60);

/// A file system of its own in memory, unmounted when it is dropped.
pub struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    pub fn mount(path: &'a Path, size: &str) -> Option<Self> {
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

const DEAD: &str = r#"
export default async (event, context) => {
    const map = context.object("o").map("m");
    for (let key = 0; key < 200; key++) {
        if (event.text() === "fill") await map.set("k" + key, "x".repeat(20_000));
        else await map.delete("k" + key);
    }
    return "done";
};
"#;

/// The store stops for good if its own work meets a full disk, so it does none that another program leaves no room for.
#[test]
fn a_disk_that_another_program_fills_is_left_alone_until_that_has_ended() {
    const ROUNDS: usize = 40;
    /// The store looks once a second: in one round it may miss the moment.
    const TOLD: usize = 4;
    /// It looks for 100 ms at how fast the space goes.
    const LONG_GAP: Duration = Duration::from_millis(50);
    let home = tempfile::tempdir().unwrap();
    let disk_path = home.path().join("disk");
    std::fs::create_dir(&disk_path).unwrap();
    let Some(_disk) = SmallDisk::mount(&disk_path, "256m") else {
        return skipped("the right to mount a file system (root)");
    };
    let file = home.path().join("dead.js");
    std::fs::write(&file, DEAD).unwrap();
    let mut small = SmallNode::start(home, "[store]\nreserve = \"64MiB\"\n");
    small.node().ok(&["deploy", file.to_str().unwrap(), "--allow", "objects=o"]);
    let reclaims = |small: &SmallNode| small.metric("edgefaas_disk_reclaims_total");
    let make_dead = |small: &SmallNode| {
        for what in ["fill", "delete"] {
            assert_eq!(small.node().http("POST", "/fn/dead", what), (200, "done".into()));
        }
        assert_eq!(reclaims(small), 0, "there is room");
    };
    let (mut told, mut rounds) = (0, 0);
    while told < TOLD {
        rounds += 1;
        assert!(rounds <= ROUNDS, "this machine paused in nearly each of {ROUNDS} rounds");
        make_dead(&small);
        leave(&disk_path, 72 << 20);
        let longest_gap = fill_steadily(&disk_path.join("more"));
        let during = reclaims(&small);
        // What the node has still to do belongs to no other round.
        small.kill();
        for name in ["filler", "more"] {
            std::fs::remove_file(disk_path.join(name)).unwrap();
        }
        small.restart();
        // A round in which this machine paused says nothing.
        if longest_gap <= LONG_GAP {
            assert_eq!(during, 0, "passes while the disk was filled");
            told += 1;
        }
    }
    // On a full disk of which others take little, it is done.
    make_dead(&small);
    leave(&disk_path, 48 << 20);
    let mut taking = std::fs::File::create(disk_path.join("more")).unwrap();
    let until = Instant::now() + PATIENCE;
    while reclaims(&small) == 0 {
        assert!(Instant::now() < until, "the space of what was deleted is not reclaimed");
        std::io::Write::write_all(&mut taking, &[0; 4096]).unwrap();
        look_again();
    }
    small.terminate();
}

/// Fills the disk at 100 MB/s; gives the longest time between two writes.
fn fill_steadily(path: &Path) -> Duration {
    use std::io::Write;
    const BYTES_PER_MS: u128 = 100_000;
    let mut file = std::fs::File::create(path).unwrap();
    let (begun, mut last, mut longest_gap) = (Instant::now(), Instant::now(), Duration::ZERO);
    let mut written = 0;
    loop {
        let due = (begun.elapsed().as_millis() * BYTES_PER_MS) as usize;
        if file.write_all(&vec![0; due - written]).is_err() {
            return longest_gap;
        }
        written = due;
        std::thread::sleep(Duration::from_millis(10));
        longest_gap = longest_gap.max(last.elapsed());
        last = Instant::now();
    }
}

/// Writes until the disk takes no more.
pub fn fill(path: &Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    for block in [1 << 20, 1 << 12] {
        let zeros = vec![0; block];
        while file.write_all(&zeros).is_ok() {}
    }
}

const LIMITS: &str = "[broker]\nqueue_messages = 1000000\nqueue_size = \"1GiB\"\nmax_queue_size = \"1GiB\"\n\
                      when_queue_full = \"reject\"\nmax_retained = \"1GiB\"\n";

/// A node on a file system of 64 MB.
struct SmallNode {
    home: tempfile::TempDir,
    node: Option<Running>,
}

impl SmallNode {
    fn start(home: tempfile::TempDir, store: &str) -> Self {
        let config = home.path().join("edgefaas.toml");
        std::fs::write(&config, format!("{LIMITS}{store}")).unwrap();
        let mut small = Self { home, node: None };
        small.restart();
        small
    }

    fn restart(&mut self) {
        let config = self.home.path().join("edgefaas.toml");
        let data = self.home.path().join("disk/data");
        self.node = Some(Running::start(&data, &["--config", config.to_str().unwrap()]));
    }

    fn node(&self) -> &Running {
        self.node.as_ref().expect("it runs")
    }

    fn kill(&mut self) {
        self.node.take().expect("it runs").kill();
    }

    fn terminate(&mut self) {
        assert_eq!(self.node.take().expect("it runs").terminate(), Some(0));
    }

    fn port(&self) -> u16 {
        self.node().mqtt_port.parse().unwrap()
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.node().control_get("/metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse::<f64>().unwrap() as u64
    }
}

impl SmallNode {
    /// The metrics of the disk and of the queues, for the message of a failure.
    fn disk(&self) -> String {
        let text = self.node().control_get("/metrics");
        let is_wanted = |line: &&str| {
            !line.starts_with('#') && ["_disk_", "_store_", "_queue"].iter().any(|part| line.contains(part))
        };
        text.lines().filter(is_wanted).collect::<Vec<_>>().join("\n")
    }
}

/// A client whose messages are answered one by one.
pub struct Client {
    client: AsyncClient,
    events: EventLoop,
    random: u64,
}

impl Client {
    pub async fn connect(port: u16, id: &str, clean: bool) -> Self {
        let mut options = MqttOptions::new(id, "127.0.0.1", port);
        let mut properties = ConnectProperties::new();
        properties.session_expiry_interval = (!clean).then_some(3600);
        options.set_clean_start(clean).set_connect_properties(properties);
        options.set_keep_alive(Duration::from_secs(60)).set_max_packet_size(Some(1 << 20));
        let (client, events) = AsyncClient::new(options, 100);
        let mut client = Self { client, events, random: 0x9e37_79b9_7f4a_7c15 };
        client.wait(|packet| matches!(packet, Packet::ConnAck(_)).then_some(())).await;
        client
    }

    async fn wait<T>(&mut self, mut wanted: impl FnMut(Packet) -> Option<T>) -> T {
        let found = async {
            loop {
                if let Event::Incoming(packet) = self.events.poll().await.expect("the connection holds")
                    && let Some(found) = wanted(packet)
                {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("in time")
    }

    /// Bytes that no store can compress.
    pub fn noise(&mut self, bytes: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random.to_le_bytes()
        });
        words.flatten().take(bytes).collect()
    }

    /// Publishes with QoS 1 and gives the answer.
    pub async fn publish(
        &mut self,
        topic: &str,
        retain: bool,
        payload: Vec<u8>,
        expiry: Option<u32>,
    ) -> PubAckReason {
        let properties =
            PublishProperties { message_expiry_interval: expiry, ..PublishProperties::default() };
        let sent =
            self.client.publish_with_properties(topic, QoS::AtLeastOnce, retain, payload, properties);
        sent.await.unwrap();
        self.wait(|packet| match packet {
            Packet::PubAck(ack) => Some(ack.reason),
            _ => None,
        })
        .await
    }

    /// Publishes until the node refuses; gives the number of messages that it took.
    async fn fill(
        &mut self,
        bytes: usize,
        expiry: Option<u32>,
        topic: impl Fn(u32) -> (String, bool),
    ) -> u32 {
        let mut taken = 0;
        loop {
            let (topic, retain) = topic(taken);
            let payload = self.noise(bytes);
            match self.publish(&topic, retain, payload, expiry).await {
                PubAckReason::QuotaExceeded => return taken,
                _ => taken += 1,
            }
            assert!((taken as usize) < (64 << 20) / bytes, "the disk never filled");
        }
    }

    /// Publishes until the node takes it; gives the time.
    async fn accepted(&mut self, topic: &str, retain: bool) -> Duration {
        self.accepted_within(RECOVERY, 1000, topic, retain).await
    }

    async fn accepted_within(
        &mut self,
        most: Duration,
        bytes: usize,
        topic: &str,
        retain: bool,
    ) -> Duration {
        let time = self.accepted_in_time(most, bytes, topic, retain).await;
        time.unwrap_or_else(|| panic!("writes are still refused after {most:?}"))
    }

    /// `None` if the node refuses it for that long.
    async fn accepted_in_time(
        &mut self,
        most: Duration,
        bytes: usize,
        topic: &str,
        retain: bool,
    ) -> Option<Duration> {
        let since = Instant::now();
        loop {
            let payload = self.noise(bytes);
            if self.publish(topic, retain, payload, None).await != PubAckReason::QuotaExceeded {
                return Some(since.elapsed());
            }
            if since.elapsed() >= most {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn subscribe(mut self, filter: &str) {
        self.client.subscribe(filter, QoS::AtLeastOnce).await.unwrap();
        self.wait(|packet| matches!(packet, Packet::SubAck(_)).then_some(())).await;
        self.leave().await;
    }

    /// Receives and acknowledges so many messages.
    pub async fn drain(mut self, count: u32) {
        let mut left = count;
        while left > 0 {
            self.wait(|packet| matches!(packet, Packet::Publish(_)).then_some(())).await;
            left -= 1;
        }
        // The last acknowledgement leaves with the next packet.
        self.leave().await;
    }

    async fn leave(mut self) {
        self.client.disconnect().await.unwrap();
        while self.events.poll().await.is_ok() {}
    }
}

fn small_disk(test: impl AsyncFnOnce(tempfile::TempDir)) {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("disk");
    std::fs::create_dir(&path).unwrap();
    let Some(_disk) = SmallDisk::mount(&path, "64m") else {
        return skipped("the right to mount a file system (root)");
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(home));
}

#[test]
fn a_queue_that_filled_the_disk_and_was_drained_makes_room_again() {
    small_disk(async |home| {
        let small = SmallNode::start(home, "");
        Client::connect(small.port(), "away", false).await.subscribe("full/#").await;
        let mut publisher = Client::connect(small.port(), "publisher", true).await;
        let clear_bytes = || {
            let needed_bytes = small.metric("edgefaas_disk_needed_bytes");
            small.metric("edgefaas_disk_free_bytes").saturating_sub(needed_bytes)
        };
        // A journal and a memtable are kept.
        let all_bytes = clear_bytes() - (8 << 20);
        let mut first = 0;
        // Large ones are refused before the disk is full.
        for (round, bytes) in [50_000, 2_000, 50_000, 800_000].into_iter().enumerate() {
            let taken = publisher.fill(bytes, None, |_| ("full/a".into(), false)).await;
            println!("round {round}: {taken} messages of {bytes} bytes were taken");
            let stored = taken as usize * bytes;
            first = if round == 0 { stored } else { first };
            assert!(stored > 10 << 20, "{stored} bytes were taken before the disk was full");
            assert!(
                stored >= first / 2,
                "{stored} bytes were taken in round {round}, {first} in the first"
            );
            Client::connect(small.port(), "away", false).await.drain(taken).await;
            let time = publisher.accepted_in_time(RECOVERY, bytes, "full/a", false).await;
            let time = time.unwrap_or_else(|| panic!("writes are still refused: {}", small.disk()));
            println!("round {round}: accepted again after {time:?}");
            let since = Instant::now();
            while clear_bytes() < all_bytes {
                assert!(
                    since.elapsed() < PATIENCE,
                    "of {all_bytes} bytes, {} are free {PATIENCE:?} after the delivery",
                    clear_bytes()
                );
                publisher.publish("nobody/hears", false, Vec::new(), None).await;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            println!("round {round}: all of it is free after {:?} more", since.elapsed());
            Client::connect(small.port(), "away", false).await.drain(1).await;
        }
        // It counts as full for some seconds more.
        let until = Instant::now() + PATIENCE;
        while small.metric("edgefaas_disk_full") != 0 {
            assert!(Instant::now() < until, "{}", small.disk());
            look_again();
        }
    });
}

#[test]
fn a_full_node_that_was_killed_or_stopped_starts_and_is_drained() {
    small_disk(async |home| {
        let mut small = SmallNode::start(home, "[store]\nreserve = \"4MiB\"\n");
        Client::connect(small.port(), "away", false).await.subscribe("full/#").await;
        let fill = async |small: &SmallNode| {
            let mut publisher = Client::connect(small.port(), "publisher", true).await;
            publisher.fill(20_000, None, |_| ("full/a".into(), false)).await
        };
        let mut taken = fill(&small).await;
        small.kill();
        small.restart();
        // There may be some room: the journal was replayed and is gone.
        taken += fill(&small).await;
        small.terminate();
        small.restart();
        taken += fill(&small).await;
        Client::connect(small.port(), "away", false).await.drain(taken).await;
        let mut publisher = Client::connect(small.port(), "publisher", true).await;
        publisher.accepted("full/a", false).await;
        assert_eq!(small.node.take().unwrap().terminate(), Some(0));
    });
}

#[test]
fn retained_messages_that_filled_the_disk_are_deleted_and_messages_expire() {
    small_disk(async |home| {
        let small = SmallNode::start(home, "");
        let mut publisher = Client::connect(small.port(), "publisher", true).await;
        let topic = |number: u32| (format!("kept/{number}"), true);
        let taken = publisher.fill(50_000, None, topic).await;
        for number in 0..taken {
            let deleted = publisher.publish(&topic(number).0, true, Vec::new(), None).await;
            assert_ne!(deleted, PubAckReason::QuotaExceeded, "deleting is always accepted");
        }
        publisher.accepted("kept/again", true).await;

        Client::connect(small.port(), "away", false).await.subscribe("full/#").await;
        // Few and large, so that none expires before the disk is full, also on a slow machine.
        publisher.fill(400_000, Some(20), |_| ("full/a".into(), false)).await;
        let expired = Duration::from_secs(20) + RECOVERY;
        publisher.accepted_within(expired, 1000, "full/a", false).await;
        assert_eq!(small.node.unwrap().terminate(), Some(0));
    });
}

const KEEP: &str = r#"
export default async (event, context) => {
    const [object, field, value] = event.text().split(" ");
    await context.object(object).register(field).set(value || null);
    return "set";
};
"#;

#[test]
fn objects_that_filled_the_disk_are_emptied_and_apps_are_removed() {
    small_disk(async |home| {
        let file = home.path().join("keep.js");
        std::fs::write(&file, KEEP).unwrap();
        let small = SmallNode::start(home, "");
        let node = small.node();
        node.ok(&["deploy", file.to_str().unwrap(), "--allow", "objects=*"]);
        let other = file.with_file_name("other.js");
        std::fs::write(&other, KEEP.replace("set\"", "other\"")).unwrap();
        node.ok(&["deploy", other.to_str().unwrap(), "--allow", "objects=*"]);
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut set = |number: u32, bytes: usize| {
            let letters = std::iter::repeat_with(|| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                char::from(b'0' + (random >> 58) as u8)
            });
            let value: String = letters.take(bytes).collect();
            // An object may have 4 MiB.
            node.http("POST", "/fn/keep", &format!("o{} f{number} {value}", number / 15)).0
        };
        let mut fields = 0;
        while set(fields, 200_000) == 200 {
            fields += 1;
            assert!(fields < 400, "the disk never filled");
        }
        println!("{fields} fields of 200 kB were taken");
        assert!(fields > 40, "{fields} fields of 200 kB were taken");
        let secret = node.cli(&["secrets", "list"]);
        assert!(secret.status.success(), "reading goes on");
        node.ok(&["rm", "other"]);
        for field in 0..fields {
            assert_eq!(set(field, 0), 200, "a register is always set to null");
        }
        let since = Instant::now();
        while set(1000, 200_000) != 200 {
            assert!(since.elapsed() < RECOVERY, "writes are still refused after {RECOVERY:?}");
        }
        println!("accepted again after {:?}", since.elapsed());
        assert_eq!(small.node.unwrap().terminate(), Some(0));
    });
}

const CROWD: &str = r#"
// No store can compress it.
const noise = (seed) => {
    let text = "";
    while (text.length < 2000) {
        seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
        text += String.fromCharCode(48 + (seed >>> 26));
    }
    return text;
};
export default async (event, context) => {
    const [what, number] = event.text().split(" ");
    const map = (object) => context.object("o" + object).map("m");
    const all = [];
    if (what === "fill") {
        for (let object = number * 200; object < number * 200 + 200; object++) {
            all.push(map(object).register("noise").set(noise(object + 1)));
            for (const key of ["a", "b", "c"]) all.push(map(object).counter(key).add(1));
        }
    } else if (what === "remove") {
        for (let object = 0; object < 4000; object++) all.push(map(object).delete(number));
    }
    await Promise.all(all);
    return (await map(3999).keys()).join("");
};
"#;

/// Takes the free space of a file system but for so many bytes.
fn leave(disk: &Path, room_bytes: u64) {
    let free = rustix::fs::statvfs(disk).unwrap();
    let taken = (free.f_bavail * free.f_frsize).saturating_sub(room_bytes);
    match std::fs::write(disk.join("filler"), vec![1; taken as usize]) {
        // The node has taken some of it meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {}
        written => written.unwrap(),
    }
}

/// Each writes the rest of its field once more: 8 MB together.
#[test]
fn many_small_removals_do_not_overrun_a_full_disk() {
    small_disk(async |home| {
        let file = home.path().join("crowd.js");
        std::fs::write(&file, CROWD).unwrap();
        let mut small = SmallNode::start(home, "");
        let disk = small.home.path().join("disk");
        let call = |small: &SmallNode, what: &str| small.node().http("POST", "/fn/crowd", what);
        small.node().ok(&["deploy", file.to_str().unwrap(), "--allow", "objects=*"]);
        for part in 0..20 {
            assert_eq!(call(&small, &format!("fill {part}")).0, 200);
        }
        // Afterwards the engine compacts nothing by itself.
        small.terminate();
        small.restart();
        leave(&disk, 3 << 20);
        let (status, body) = call(&small, "remove a");
        assert_eq!(status, 507, "{body}");
        assert_eq!(call(&small, "look"), (200, "abcnoise".into()), "the node goes on");
        std::fs::remove_file(disk.join("filler")).unwrap();
        let since = Instant::now();
        while call(&small, "remove a").0 != 200 {
            assert!(since.elapsed() < RECOVERY, "removals are still refused after {RECOVERY:?}");
        }
        small.kill();
        small.restart();
        assert_eq!(call(&small, "look"), (200, "bcnoise".into()));
        small.terminate();
    });
}

const LATER: &str = r#"
export default async (event, context) => {
    const [what, from] = event.text().split(" ");
    const text = (object) => context.object("o" + object).register("text");
    if (what === "read") return String((await text(from).get())?.length);
    for (let object = 0; object < 50; object++) await text(object).set(from.repeat(2000) + object);
    return "set";
};
"#;

/// Objects of durability `memory` are written later than they are changed: others may have filled the disk meanwhile.
#[test]
fn what_is_to_be_written_later_waits_for_room() {
    small_disk(async |home| {
        let app = home.path().join("app");
        std::fs::create_dir(&app).unwrap();
        std::fs::write(app.join("later.js"), LATER).unwrap();
        let manifest = "app = \"later\"\n[functions.later]\nmain = \"later.js\"\npermissions = { objects = [\"*\"] }\n\
                        [objects.\"*\"]\ndurability = \"memory\"\nwrite_interval = \"5s\"\n";
        std::fs::write(app.join("edgefaas.toml"), manifest).unwrap();
        let mut small = SmallNode::start(home, "");
        let disk = small.home.path().join("disk");
        let call = |small: &SmallNode, what: &str| small.node().http("POST", "/fn/later", what);
        small.node().ok(&["deploy", app.to_str().unwrap()]);
        let until = Instant::now() + PATIENCE;
        loop {
            assert_eq!(call(&small, "set x"), (200, "set".into()));
            leave(&disk, 0);
            // After a pause of this machine they may have been written before the disk was full.
            if small.metric("edgefaas_object_fields_unwritten") > 0 {
                break;
            }
            assert!(Instant::now() < until, "it is written before the disk is full");
            std::fs::remove_file(disk.join("filler")).unwrap();
        }
        while small.metric("edgefaas_object_writes_postponed_total") == 0 {
            assert!(Instant::now() < until, "nothing waits for room");
            look_again();
        }
        assert_eq!(call(&small, "read 49"), (200, "2002".into()), "the node goes on");
        assert_eq!(call(&small, "set y").0, 507, "what would wait as well is refused");
        std::fs::remove_file(disk.join("filler")).unwrap();
        while small.metric("edgefaas_object_fields_unwritten") > 0 {
            assert!(Instant::now() < until, "it is not written though there is room");
            look_again();
        }
        small.kill();
        small.restart();
        assert_eq!(call(&small, "read 49"), (200, "2002".into()));
        small.terminate();
    });
}

#[test]
fn events_for_a_durable_instance_wait_within_bounds_while_the_disk_is_full() {
    const FLOOD: usize = 60_000;
    let home = tempfile::tempdir().unwrap();
    let disk_path = home.path().join("disk");
    std::fs::create_dir(&disk_path).unwrap();
    let Some(_disk) = SmallDisk::mount(&disk_path, "128m") else {
        return skipped("the right to mount a file system (root)");
    };
    let config = home.path().join("edgefaas.toml");
    std::fs::write(&config, "[store]\nreserve = \"16MiB\"\n[workflows]\nroot_memory = \"8MiB\"\n").unwrap();
    let file = home.path().join("listens.yaml");
    // It looks at each event of the flood and keeps none.
    let listens = "document: { dsl: '1.0.3', namespace: test, name: listens, version: '1.0.0', metadata: { durable: true } }\ndo:\n  \
                   - all: { listen: { to: { any: [ { with: { type: mqtt.publish, subject: flood, data: '${ . == \"never\" }' } } ], until: { \
                   one: { with: { type: mqtt.publish, subject: done } } } } } }\n";
    std::fs::write(&file, listens).unwrap();
    let node = Running::start(&disk_path.join("data"), &["--config", config.to_str().unwrap()]);
    node.ok(&["deploy", file.to_str().unwrap()]);
    let mut client = Connection::open(&node.mqtt_port, "flood", true).unwrap();
    let acknowledged = |client: &mut Connection| {
        let (kind, _) = client.receive_within(PATIENCE).unwrap().expect("an acknowledgement");
        assert_eq!(kind, 0x40);
    };
    client.publish(0b0010, "$faas/wf/listens/invoke", 1, b"{}").unwrap();
    acknowledged(&mut client);
    let until = std::time::Instant::now() + PATIENCE;
    while !node.ok(&["workflow", "list", "-o", "json"]).contains("\"waiting\"") {
        assert!(std::time::Instant::now() < until, "the instance listens");
        look_again();
    }

    let filler = disk_path.join("filler");
    fill(&filler);
    let before = node.memory_kib("VmRSS");
    let event = vec![b'x'; 2048];
    for _ in 0..FLOOD {
        client.publish_unacknowledged("flood", &event).unwrap();
    }
    // Behind the flood: the broker has taken all of it.
    client.publish(0b0010, "plain", 2, b"1").unwrap();
    acknowledged(&mut client);
    let grown = node.memory_kib("VmRSS").saturating_sub(before);
    println!("{grown} KiB more after {FLOOD} events");
    assert!(grown < 48 << 10, "{grown} KiB wait for the disk");

    // An event that has to be kept is not acknowledged before there is room for it, and then not lost.
    client.publish(0b0010, "done", 3, b"1").unwrap();
    let (status, _) = node.http("GET", "/fn/nothing", "");
    assert_eq!(status, 404, "everything else goes on");
    assert!(client.receive_within(std::time::Duration::ZERO).unwrap().is_none(), "it is not kept yet");
    std::fs::remove_file(&filler).unwrap();
    acknowledged(&mut client);
    while !node.ok(&["workflow", "list", "-o", "json"]).contains("\"completed\"") {
        assert!(std::time::Instant::now() < until, "the instance goes on");
        look_again();
    }
    assert_eq!(node.terminate(), Some(0));
}

#[test]
fn durable_workflows_are_started_until_the_disk_is_full_and_end_all_the_same() {
    small_disk(async |home| {
        let file = home.path().join("hold.yaml");
        let hold = "document: { dsl: '1.0.3', namespace: test, name: hold, version: '1.0.0', metadata: { durable: true } }\ndo:\n  \
                    - wait: { listen: { to: { one: { with: { type: mqtt.publish, subject: go } } } } }\n";
        std::fs::write(&file, hold).unwrap();
        let mut small = SmallNode::start(home, "");
        small.node().ok(&["deploy", file.to_str().unwrap()]);
        let mut publisher = Client::connect(small.port(), "publisher", true).await;
        let mut taken = 0;
        // Refused once, it finds more room; and is refused again.
        for _ in 0..3 {
            loop {
                let noise: Vec<u8> =
                    publisher.noise(20_000).iter().map(|byte| b'0' + (byte & 63)).collect();
                let input = serde_json::to_vec(&String::from_utf8(noise).unwrap()).unwrap();
                // One that could be told by an answer is told by the acknowledgement as well.
                let request = if taken % 2 == 0 { String::new() } else { format!("/r{taken}") };
                let topic = format!("$faas/wf/hold/invoke{request}");
                match publisher.publish(&topic, false, input, None).await {
                    PubAckReason::QuotaExceeded => break,
                    _ => taken += 1,
                }
                assert!(taken < 4000, "the disk never filled");
            }
            let (free, reserve) = (small.metric("edgefaas_disk_free_bytes"), 4 << 20);
            assert!(free > reserve, "{free} bytes are free after {taken} instances");
        }
        assert!(taken > 300, "{taken} instances were started before the disk was full");
        small.kill();
        small.restart();
        let mut publisher = Client::connect(small.port(), "publisher", true).await;
        let until = Instant::now() + PATIENCE;
        let list =
            |small: &SmallNode| small.node().ok(&["workflow", "list", "-o", "json", "--limit", "10000"]);
        let count = |text: &str| {
            let all: serde_json::Value = serde_json::from_str(text).unwrap();
            let all = all["instances"].as_array().unwrap();
            all.iter().filter(|one| one["status"] != "completed").count()
        };
        assert_eq!(count(&list(&small)), taken, "all that were acknowledged");
        // Those that have not come to their `listen` for want of room come to it when others have ended.
        while count(&list(&small)) > 0 {
            publisher.publish("go", false, Vec::new(), None).await;
            assert!(
                Instant::now() < until,
                "they end: {}",
                list(&small).chars().take(2000).collect::<String>()
            );
        }
        publisher.accepted("$faas/wf/hold/invoke", false).await;
        small.terminate();
    });
}

#[test]
fn a_message_whose_copies_do_not_fit_is_refused_and_smaller_ones_go_on() {
    const AWAY: usize = 100;
    small_disk(async |home| {
        let mut small = SmallNode::start(home, "");
        let name = |number: usize| format!("away-{number}");
        for number in 0..AWAY {
            Client::connect(small.port(), &name(number), false).await.subscribe("all").await;
        }
        let mut publisher = Client::connect(small.port(), "publisher", true).await;
        for _ in 0..3 {
            let large = publisher.noise(900_000);
            assert_eq!(publisher.publish("all", false, large, None).await, PubAckReason::QuotaExceeded);
            assert_eq!(small.metric("edgefaas_disk_full"), 0, "there is room for others");
            let little = publisher.noise(1000);
            assert_eq!(publisher.publish("all", false, little, None).await, PubAckReason::Success);
        }
        small.kill();
        small.restart();
        for number in 0..AWAY {
            Client::connect(small.port(), &name(number), false).await.drain(3).await;
        }
        small.terminate();
    });
}

#[test]
fn a_node_whose_store_fails_ends_and_starts_again_with_what_it_acknowledged() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let node = Running::start(&data, &[]);
    let mut device = Connection::open(&node.mqtt_port, "away", false).unwrap();
    device.subscribe("all", 1).unwrap();
    device.leave().unwrap();
    // The engine cannot make another table.
    let (tables, elsewhere) = (data.join("store/keyspaces"), data.join("store/elsewhere"));
    std::fs::rename(&tables, &elsewhere).unwrap();
    let mut publisher = Connection::open(&node.mqtt_port, "publisher", true).unwrap();
    let mut acknowledged = 0_u16;
    while publisher.publish(2, "all", acknowledged + 1, &[acknowledged as u8; 60_000]).is_ok()
        && let Ok(Some((0x40, _))) = publisher.receive_within(PATIENCE)
    {
        acknowledged += 1;
    }
    assert_eq!(node.ended(), Some(1));
    assert!(acknowledged > 10, "{acknowledged} messages");
    std::fs::rename(&elsewhere, &tables).unwrap();
    let node = Running::start(&data, &[]);
    let mut device = Connection::open(&node.mqtt_port, "away", false).unwrap();
    for number in 0..acknowledged {
        let (_, body) = device.receive_within(PATIENCE).unwrap().expect("it is there");
        let topic_bytes = usize::from(crate::load::id_of(&body));
        device.ack(4, crate::load::id_of(&body[2 + topic_bytes..])).unwrap();
        assert_eq!(body[4 + topic_bytes], number as u8);
    }
    assert_eq!(node.terminate(), Some(0));
}

#[test]
fn a_disk_that_takes_no_more_files_is_full() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("disk");
    std::fs::create_dir(&path).unwrap();
    let Some(_disk) = SmallDisk::mount(&path, "128m,nr_inodes=400") else {
        return skipped("the right to mount a file system (root)");
    };
    let node = Running::start(&path.join("data"), &[]);
    let mut device = Connection::open(&node.mqtt_port, "away", false).unwrap();
    device.subscribe("all", 1).unwrap();
    device.leave().unwrap();
    let (crowd, mut files) = (path.join("crowd"), 0);
    std::fs::create_dir(&crowd).unwrap();
    while std::fs::File::create(crowd.join(files.to_string())).is_ok() {
        files += 1;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut publisher = Client::connect(node.mqtt_port.parse().unwrap(), "publisher", true).await;
        let mut accepted = 0;
        loop {
            let payload = publisher.noise(100_000);
            match publisher.publish("all", false, payload, None).await {
                PubAckReason::QuotaExceeded => break,
                _ => accepted += 1,
            }
            assert!(accepted < 30, "the store cannot make a table of so much");
        }
        std::fs::remove_dir_all(&crowd).unwrap();
        publisher.accepted("all", false).await;
        Client::connect(node.mqtt_port.parse().unwrap(), "away", false).await.drain(accepted + 1).await;
    });
    assert_eq!(node.terminate(), Some(0));
}
