//! Messages for clients that are away, on a node with little memory: they are bounded there, before and after a kill.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::load::{Connection, Random, id_of};
use crate::memory::Group;
use crate::support::{Running, skipped};

const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT_BYTES: u64 = 128 << 20;

fn start(group: &Group, data_dir: &Path) -> Running {
    let any = ["--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0", "--control", "127.0.0.1:0"];
    Running::start_within(&group.procs(), data_dir, &any)
}

/// Makes sessions that outlive their connections, and leaves them.
fn make_sessions(node: &Running, count: usize, qos: u8) {
    for number in 0..count {
        let mut device = Connection::open(&node.mqtt_port, &format!("away-{number}"), false).unwrap();
        device.subscribe("all/#", qos).unwrap();
        device.leave().unwrap();
    }
}

fn expect(connection: &mut Connection, first_byte: u8) -> Vec<u8> {
    let (kind, body) = connection.receive_within(PATIENCE).unwrap().expect("the node answers");
    assert_eq!(kind, first_byte, "{body:?}");
    body
}

#[test]
fn what_is_stored_for_a_hundred_clients_does_not_fill_the_memory() {
    let home = tempfile::tempdir().unwrap();
    let Some(group) = Group::make("away", LIMIT_BYTES) else {
        return skipped("the right to make a control group with a memory limit (root)");
    };
    let node = start(&group, home.path());
    make_sessions(&node, 100, 1);
    let mut publisher = Connection::open(&node.mqtt_port, "publisher", true).unwrap();
    // Two, and then 100 MB for each of them, if it were in memory once for each client.
    let payloads = [(150, 20_000), (5, 1_000_000), (1, 1)];
    let mut id = 0;
    for (count, bytes) in payloads {
        for _ in 0..count {
            id += 1;
            publisher.publish(2, "all/of-them", id, &vec![id as u8; bytes]).unwrap();
            assert_eq!(id_of(&expect(&mut publisher, 0x40)), id);
        }
    }
    node.kill();
    // A start reads back what was not in tables yet.
    let mut node = start(&group, home.path());
    let mut device = Connection::open(&node.mqtt_port, "away-99", false).unwrap();
    assert!(device.session_present);
    let (mut last, until) = (Vec::new(), Instant::now() + PATIENCE);
    while last.len() != 1 && Instant::now() < until {
        let (kind, body) = device.receive_within(PATIENCE).unwrap().expect("it is sent what waited");
        assert_eq!(kind & 0xf6, 0x32, "PUBLISH with QoS 1");
        let topic_bytes = usize::from(id_of(&body));
        device.ack(4, id_of(&body[2 + topic_bytes..])).unwrap();
        last = body[4 + topic_bytes..].to_vec();
    }
    assert_eq!(last, [id as u8], "the last message");
    assert!(node.is_alive());
    assert_eq!(group.killed(), 0, "the kernel killed a process");
}

/// One publish is more than the store writes in one part, and the node is killed at any moment of it.
#[test]
fn a_message_for_many_clients_is_stored_for_all_or_for_none() {
    const SESSIONS: usize = 20;
    const MESSAGES: u16 = 4;
    let home = tempfile::tempdir().unwrap();
    let Some(group) = Group::make("parts", LIMIT_BYTES) else {
        return skipped("the right to make a control group with a memory limit (root)");
    };
    let mut random = Random::seeded("AWAY_SEED");
    let mut node = start(&group, home.path());
    make_sessions(&node, SESSIONS, 2);
    drop(Connection::open(&node.mqtt_port, "publisher", false).unwrap());
    for id in 1..=MESSAGES {
        let mut publisher = Connection::open(&node.mqtt_port, "publisher", false).unwrap();
        publisher.publish(4, "all/of-them", id, &vec![id as u8; 700_000]).unwrap();
        let killed_at = Instant::now() + Duration::from_micros(random.below(100_000));
        while Instant::now() < killed_at {
            std::hint::spin_loop();
        }
        node.kill();
        node = start(&group, home.path());
        let mut publisher = Connection::open(&node.mqtt_port, "publisher", false).unwrap();
        // It does not know whether the node has it: QoS 2 says so.
        publisher.publish(0b1100, "all/of-them", id, &vec![id as u8; 700_000]).unwrap();
        assert_eq!(id_of(&expect(&mut publisher, 0x50)), id);
        publisher.ack(6, id).unwrap();
        assert_eq!(id_of(&expect(&mut publisher, 0x70)), id);
        publisher.leave().unwrap();
    }
    for number in 0..SESSIONS {
        let mut device = Connection::open(&node.mqtt_port, &format!("away-{number}"), false).unwrap();
        let (mut got, mut done) = (Vec::new(), 0);
        while done < MESSAGES {
            let (kind, body) = device.receive_within(PATIENCE).unwrap().expect("it is sent what waited");
            if kind == 0x62 {
                device.ack(7, id_of(&body)).unwrap();
                done += 1;
                continue;
            }
            assert_eq!(kind & 0xf6, 0x34, "PUBLISH with QoS 2");
            let topic_bytes = usize::from(id_of(&body));
            got.push(u16::from(body[4 + topic_bytes]));
            device.ack(5, id_of(&body[2 + topic_bytes..])).unwrap();
        }
        assert_eq!(got, (1..=MESSAGES).collect::<Vec<_>>(), "away-{number}");
        // Nothing more is on its way: what follows comes after it.
        device.subscribe("other", 0).unwrap();
    }
    assert_eq!(group.killed(), 0, "the kernel killed a process");
}
