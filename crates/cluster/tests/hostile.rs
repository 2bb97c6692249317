//! A member that sends garbage, nonsense, too much, or the same again costs little and breaks nothing.
//!
//! The seed is printed; `PROPTEST_RNG_SEED=SEED` repeats a run.

mod toy;

use std::time::Duration;

use bytes::Bytes;
use edgefaas_cluster::replication::{
    Delta, DisconnectReason, Event, NodeId, ObjectKey, Output, Replication, Settings,
};
use edgefaas_cluster::simulation::{Network, SimulatedReplica, Simulation};
use edgefaas_cluster::wire::{
    BUCKETS, Buckets, Chunk, Deltas, Differences, Finished, InterestEntry, Interests, Kind, Message,
    ObjectDelta, ObjectFields, Objects, RoundPlease, Summary, Wants,
};
use proptest::prelude::*;
use toy::{Fields, Toy, add, all_of, secs, seed, seeded};

const PEER: NodeId = NodeId(5);

/// A node with a few objects and a connected peer that is interested in all of them.
fn node(me: u64) -> (Replication<Fields>, Toy) {
    let mut toy = Toy::default();
    for i in 0..20 {
        toy.add(&ObjectKey::new("app", format!("o{i}")), "n", 1, i + 1);
    }
    let mut machine = Replication::new(NodeId(me), Settings::default());
    machine.handle(Event::LocalInterests(all_of("app")), Duration::ZERO, &toy);
    machine.handle(Event::PeerUp { node: PEER, protocol_version: 1 }, Duration::ZERO, &toy);
    let interests = vec![InterestEntry { app: "app".into(), pattern: "*".into() }];
    let told = Kind::Interests(Interests { version: 1, interests });
    receive(&mut machine, &toy, told, Duration::ZERO);
    (machine, toy)
}

fn receive(machine: &mut Replication<Fields>, toy: &Toy, kind: Kind, now: Duration) -> Vec<Output> {
    let frame = Message::from(kind).encode_frame();
    machine.handle(Event::Received { node: PEER, frame }, now, toy)
}

fn named() -> impl Strategy<Value = (String, String)> {
    (prop_oneof![Just("app"), Just("other")], 0..25_u32).prop_map(|(app, o)| (app.into(), format!("o{o}")))
}

fn fields() -> impl Strategy<Value = Vec<ObjectFields>> {
    let one =
        (named(), prop::collection::vec(("[nm]", any::<u64>()), 0..3)).prop_map(|((app, object), f)| {
            let (names, digests) = f.into_iter().unzip();
            ObjectFields { app, object, names, digests }
        });
    prop::collection::vec(one, 0..4)
}

fn hashes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), 0..6).prop_map(|mut hashes| {
        hashes.sort_unstable();
        hashes
    })
}

fn kinds() -> impl Strategy<Value = Kind> {
    let payload = prop_oneof![Just(""), Just("toy\nn 9 4\n"), Just("toy\n"), Just("garbage")];
    let round = 0..4_u32;
    let delta = (0..4_u32, prop::option::of(named()), payload.clone(), 0..400_u32).prop_map(
        |(id, name, payload, copies)| {
            let (app, object) = name.unzip();
            let payload = Bytes::from_static(payload.as_bytes());
            ObjectDelta { id, app, object, copies, payload, depth: copies * 7 }
        },
    );
    prop_oneof![
        prop::collection::vec(named(), 0..3).prop_map(|names| {
            let entry = |(app, pattern)| InterestEntry { app, pattern };
            Kind::Interests(Interests { version: 7, interests: names.into_iter().map(entry).collect() })
        }),
        prop::collection::vec(delta, 0..4).prop_map(|deltas| Kind::Deltas(Deltas { deltas })),
        (named(), prop_oneof![Just(0), Just(7), any::<u64>()], any::<bool>(), payload).prop_map(
            |((app, object), offset_bytes, last, payload)| {
                let payload = Bytes::from_static(payload.as_bytes());
                Kind::Chunk(Chunk { app, object, copies: 0, offset_bytes, last, payload, depth: 0 })
            }
        ),
        (round.clone(), any::<u64>(), 0..4_u32, any::<u64>(), any::<u64>()).prop_map(
            |(round, root, interests_version, clock_ms, agreed_ms)| {
                Kind::Summary(Summary {
                    round,
                    root,
                    interests_version,
                    clock_ms,
                    agreed_ms,
                    without_ms: root,
                    has_lost: false,
                })
            }
        ),
        (round.clone(), any::<bool>(), any::<u32>(), any::<u64>()).prop_map(
            |(round, some, count, agreed_ms)| {
                let length = if some { BUCKETS } else { 0 };
                Kind::Buckets(Buckets {
                    round,
                    digests: vec![3; length],
                    objects: vec![count; length],
                    follows_clock: some,
                    clock_ms: agreed_ms,
                    has_lost: some,
                    without_ms: agreed_ms,
                    agreed_ms,
                })
            }
        ),
        (round.clone(), hashes(), any::<bool>()).prop_map(|(round, hashes, partial)| {
            let digests = vec![1; hashes.len()];
            Kind::Objects(Objects { round, from: vec![0], to: vec![u64::MAX], hashes, digests, partial })
        }),
        (round.clone(), hashes(), fields(), any::<bool>()).prop_map(|(round, wanted, objects, last)| {
            Kind::Differences(Differences { round, wanted, objects, last })
        }),
        (round.clone(), fields(), any::<bool>()).prop_map(|(round, objects, last)| Kind::Wants(Wants {
            round,
            objects,
            last
        })),
        round.prop_map(|round| Kind::Finished(Finished { round })),
        Just(Kind::RoundPlease(RoundPlease {})),
    ]
}

proptest! {
    #![proptest_config(seeded())]

    /// Any messages in any order, to the lower and to the higher node.
    #[test]
    fn nonsense_is_survived(
        me in prop_oneof![Just(1_u64), Just(9)],
        steps in prop::collection::vec((kinds(), 0_u64..3_000), 0..60),
        refuse in any::<u64>(),
    ) {
        let (mut machine, mut toy) = node(me);
        let mut now = Duration::ZERO;
        for (step, (kind, pause_ms)) in steps.into_iter().enumerate() {
            now += Duration::from_millis(pause_ms);
            let mut outputs = receive(&mut machine, &toy, kind, now);
            outputs.extend(machine.handle(Event::Tick, now, &toy));
            let refused = refuse >> (step % 64) & 1 == 1;
            for output in outputs {
                match output {
                    Output::Merge { node, object, copies, payload, .. } => {
                        toy.merge(node, &object, copies, &payload);
                    }
                    Output::Send { node, frame } if refused => {
                        machine.handle(Event::Refused { node, frame }, now, &toy);
                    }
                    Output::Disconnect { node, .. } => {
                        machine.handle(Event::PeerUp { node, protocol_version: 1 }, now, &toy);
                    }
                    _ => {}
                }
            }
            if refused {
                machine.handle(Event::Writable { node: PEER }, now, &toy);
            }
            prop_assert!(machine.waiting_bytes() < 16 * 1024 * 1024);
        }
    }

    #[test]
    fn garbage_disconnects_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let (mut machine, toy) = node(1);
        let _ = machine.handle(Event::Received { node: PEER, frame: bytes.into() }, secs(1), &toy);
    }
}

#[test]
fn garbage_disconnects_each_time() {
    let (mut machine, toy) = node(1);
    for _ in 0..8 {
        let frame = Bytes::from_static(b"\xff\xff\xff");
        let outputs = machine.handle(Event::Received { node: PEER, frame }, secs(1), &toy);
        let reason = DisconnectReason::BadMessage;
        assert_eq!(outputs, [Output::Disconnect { node: PEER, reason }]);
        let frame = Bytes::from_static(b"\x52\x00");
        let late = machine.handle(Event::Received { node: PEER, frame }, secs(1), &toy);
        assert_eq!(late, [], "what came after it is not looked at");
        machine.handle(Event::PeerUp { node: PEER, protocol_version: 1 }, secs(1), &toy);
    }
    let outputs = machine.handle(Event::BadPayload { node: PEER }, secs(1), &toy);
    assert!(matches!(outputs[..], [Output::Disconnect { reason: DisconnectReason::BadPayload, .. }]));
    assert_eq!(machine.counters().bad_messages, 9);
}

#[test]
fn a_peer_that_says_nothing_is_disconnected() {
    let (mut machine, toy) = node(1);
    // The node has begun a round, and nothing comes back.
    let silent = machine.handle(Event::Tick, secs(119), &toy);
    assert!(!silent.iter().any(|output| matches!(output, Output::Disconnect { .. })));
    let outputs = machine.handle(Event::Tick, secs(121), &toy);
    let reason = DisconnectReason::Stalled;
    assert_eq!(outputs.first(), Some(&Output::Disconnect { node: PEER, reason }));
    // What it had is still missing.
    assert!(!outputs.iter().any(|output| matches!(output, Output::Recovering { .. })));
}

#[test]
fn objects_that_nobody_uses_here_are_kept_within_a_budget() {
    let toy = Toy::default();
    let settings = Settings { keep_bytes: 10_000, keep_bytes_per_second: 1_000, ..Settings::default() };
    let mut machine = Replication::new(NodeId(1), settings);
    machine.handle(Event::PeerUp { node: PEER, protocol_version: 1 }, Duration::ZERO, &toy);
    let mut send = |i: u64, now: Duration| {
        let payload = Bytes::from(vec![b'x'; 994]);
        let (app, object) = (Some("app".into()), Some(format!("{i:03}")));
        let deltas = vec![ObjectDelta { id: 0, app, object, copies: 0, payload, depth: 0 }];
        let outputs = receive(&mut machine, &toy, Kind::Deltas(Deltas { deltas }), now);
        outputs.iter().any(|output| matches!(output, Output::Merge { .. }))
    };
    let taken = (0..100).filter(|i| send(*i, Duration::ZERO)).count();
    assert_eq!(taken, 10);
    let later = (100..200).filter(|i| send(*i, secs(5))).count();
    assert_eq!(later, 5);
    assert_eq!(machine.counters().keep_refused, 185);
}

#[test]
fn a_flood_of_rounds_is_not_answered() {
    let (mut machine, toy) = node(9);
    let before = toy.digests.get();
    for round in 0..5_000 {
        let summary = Summary { round, root: 1, interests_version: 1, ..Summary::default() };
        receive(&mut machine, &toy, Kind::Summary(summary), secs(1));
    }
    assert!(toy.digests.get() - before <= 260, "{}", toy.digests.get() - before);
}

#[test]
fn a_payload_in_endless_pieces_is_cut_off() {
    let (mut machine, toy) = node(1);
    let piece = Bytes::from(vec![0; 256 * 1024]);
    let mut sent = 0_u64;
    loop {
        let (app, object, payload) = ("app".to_owned(), "o".to_owned(), piece.clone());
        let chunk = Chunk { app, object, copies: 0, offset_bytes: sent, last: false, payload, depth: 0 };
        sent += piece.len() as u64;
        let outputs = receive(&mut machine, &toy, Kind::Chunk(chunk), secs(1));
        if outputs.iter().any(|output| matches!(output, Output::Disconnect { .. })) {
            break;
        }
        assert!(sent < 20 * 1024 * 1024);
    }
}

#[test]
fn an_unknown_kind_is_counted_and_a_delta_under_an_unknown_number_leads_to_a_round() {
    let (mut machine, toy) = node(9);
    let unknown = Bytes::from_static(&[0x7a, 2, 8, 1]);
    assert_eq!(machine.handle(Event::Received { node: PEER, frame: unknown }, secs(1), &toy), []);
    assert_eq!(machine.counters().unknown_messages, 1);

    let payload = Fields::default().encode();
    let deltas = vec![ObjectDelta { id: 3, app: None, object: None, copies: 0, payload, depth: 0 }];
    let outputs = receive(&mut machine, &toy, Kind::Deltas(Deltas { deltas }), secs(2));
    let please = Message::from(Kind::RoundPlease(RoundPlease {})).encode_frame();
    assert_eq!(outputs, [Output::Send { node: PEER, frame: please }]);
    assert_eq!(machine.counters().unknown_keys, 1);
}

#[test]
fn good_peers_are_served_beside_a_bad_one() {
    let mut simulation: Simulation<Toy> = Simulation::new(seed(), Network::default(), Settings::default());
    for node in 1..=3 {
        simulation.start(NodeId(node), Toy::default(), all_of("app"));
    }
    simulation.run_for(secs(3));
    let object = ObjectKey::new("app", "o");
    let garbage = Deltas {
        deltas: vec![ObjectDelta {
            app: Some("app".into()),
            object: Some("o".into()),
            payload: Bytes::from_static(b"garbage"),
            ..ObjectDelta::default()
        }],
    };
    let garbage = Message::from(Kind::Deltas(garbage)).encode_frame();
    let mut disconnected_at = Vec::new();
    for _ in 0..100 {
        simulation.inject(NodeId(3), NodeId(1), garbage.clone());
        if simulation.disconnects().len() > disconnected_at.len() {
            disconnected_at.push(simulation.now());
        }
        add(&mut simulation, 2, &object, 0);
        simulation.run_for(Duration::from_millis(500));
        assert_eq!(simulation.replica(NodeId(1)).unwrap().fields(&object), {
            simulation.replica(NodeId(2)).unwrap().fields(&object)
        });
    }
    // The pauses double from 0.5 s; jitter takes up to a half of each, and garbage comes every 0.5 s.
    assert_eq!(simulation.disconnects().len(), disconnected_at.len());
    assert!((7..=8).contains(&disconnected_at.len()), "{disconnected_at:?}");
    let pauses = disconnected_at.windows(2).map(|times| times[1] - times[0]);
    for (pause, doublings) in pauses.zip(0..) {
        let longest = Duration::from_millis(500 << doublings);
        assert!(pause >= longest / 2 && pause <= longest + secs(1), "{disconnected_at:?}");
    }
}
