//! `kill -9` at random points under load: nothing that was acknowledged is lost, or out of order, or, at QoS 2, there
//! twice.
//!
//! `EDGEFAAS_CRASH_ROUNDS` says how often the node is killed, `EDGEFAAS_CRASH_SEED` repeats a run's points in time (as
//! far as the machine does).

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::load::{Connection, Publisher, Random, Subscriber, check};
use crate::support::Running;

/// What a CI run has time for.
const ROUNDS: u64 = 25;

#[test]
fn acknowledged_messages_survive_kill_9_under_load() {
    let rounds =
        std::env::var("EDGEFAAS_CRASH_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut random = Random::seeded("EDGEFAAS_CRASH_SEED");
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut publishers = [
        Publisher::new("once-a", 2, false),
        Publisher::new("at-least-a", 1, true),
        Publisher::new("once-b", 2, true),
        Publisher::new("at-least-b", 1, false),
    ];
    let mut subscriber = Subscriber::default();
    // It is subscribed before anything is published.
    let node = Running::start(&data, &[]);
    subscriber.run(&node.mqtt_port, |_| true).expect("it subscribes");
    node.kill();
    let start = Instant::now();
    for round in 0..rounds {
        let node = Running::start(&data, &[]);
        check_retained(&node.mqtt_port, &publishers);
        let finish = AtomicBool::new(false);
        let alive = Duration::from_micros(10_000 + random.below(200_000));
        let port = &node.mqtt_port.clone();
        std::thread::scope(|scope| {
            for publisher in &mut publishers {
                let finish = &finish;
                scope.spawn(move || publisher.run(port, finish).expect_err("it publishes until the kill"));
            }
            // Now and then the subscriber is away, and messages wait for it.
            if round % 4 != 3 {
                scope.spawn(|| subscriber.run(port, |_| false).expect_err("it listens until the kill"));
            }
            std::thread::sleep(alive);
            node.kill();
        });
    }
    let node = Running::start(&data, &[]);
    let finish = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for publisher in &mut publishers {
            scope.spawn(|| publisher.run(&node.mqtt_port, &finish).expect("everything is acknowledged"));
        }
    });
    check_retained(&node.mqtt_port, &publishers);
    let wanted: Vec<(String, u32)> =
        publishers.iter().map(|publisher| (publisher.topic(), publisher.next)).collect();
    let all = |subscriber: &Subscriber| {
        let came = |(topic, count): &(String, u32)| {
            let last = subscriber.got.iter().rev().find(|(of, _)| of == topic);
            *count == 0 || last.is_some_and(|(_, number)| number + 1 == *count)
        };
        subscriber.is_idle() && wanted.iter().all(came)
    };
    let result = subscriber.run(&node.mqtt_port, all);
    for publisher in &publishers {
        let came = subscriber.numbers(&publisher.topic()).len();
        println!("{}: {} sent, {came} came", publisher.name, publisher.next);
    }
    let again = check(&publishers, &subscriber.got);
    result.expect("it gets everything");
    // What is left in the queue is nothing but what publishers of QoS 1 have sent again.
    let mut connection = Connection::open(&node.mqtt_port, "subscriber", false).expect("connects");
    while let Some((first_byte, body)) =
        connection.receive_within(Duration::from_millis(300)).expect("it stays")
    {
        assert_eq!(first_byte & 0xf6, 0x32, "after everything has come, {body:?}");
        let (head, number) = body.split_last_chunk().expect("4 bytes");
        let (topic, id) = head.split_last_chunk().expect("2 bytes");
        let publisher = publishers.iter().find(|publisher| topic.ends_with(publisher.topic().as_bytes()));
        let next = publisher.expect("a publisher of this topic").next;
        assert!(u32::from_be_bytes(*number) < next, "{number:?} was never sent");
        connection.ack(4, u16::from_be_bytes(*id)).expect("it stays");
    }
    let total: u32 = publishers.iter().map(|publisher| publisher.next).sum();
    assert!(total > 100, "there was a load: {total} messages");
    println!(
        "{total} messages over {rounds} kills in {:.1} s; {again} of QoS 1 came again, none was lost",
        start.elapsed().as_secs_f64()
    );
}

/// A new client gets the retained message of each topic that has one: not older than what was acknowledged.
fn check_retained(port: &str, publishers: &[Publisher]) {
    let mut connection = Connection::open(port, "newcomer", true).expect("connects");
    for publisher in publishers.iter().filter(|publisher| publisher.retain && publisher.acknowledged > 0) {
        connection.subscribe(&publisher.topic(), 0).expect("subscribes");
        let (first_byte, body) = connection
            .receive_within(Duration::from_secs(10))
            .expect("it stays")
            .expect("a retained message");
        assert_eq!(first_byte, 0x31, "a retained message at QoS 0");
        let number = u32::from_be_bytes(body[body.len() - 4..].try_into().expect("4 bytes"));
        assert!(
            (publisher.acknowledged - 1..publisher.next).contains(&number),
            "{}: {number} is retained, {} is acknowledged",
            publisher.name,
            publisher.acknowledged - 1
        );
    }
    connection.leave().expect("leaves");
}
