//! Trie match, codec, and what hooks add to a publish.

use std::hint::black_box;
use std::num::NonZeroU16;
use std::sync::Arc;

use bytes::BytesMut;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use edgefaas_broker::wire::{Decoder, Encoder, Packet, PublishHeader};
use edgefaas_broker::{
    Broker, BrokerConfig, FilterTrie, Hooks, MemoryStorage, Message, Origin, PublishHook, Publishing, QoS,
    TopicFilter, TopicName, Verdict, Version,
};

fn trie(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("trie_match");
    for filters in [10, 1_000, 100_000] {
        let mut trie = FilterTrie::new();
        for number in 0..filters {
            let text = match number % 4 {
                0 => format!("site/{}/room/{}/temperature", number % 100, number),
                1 => format!("site/{}/room/+/humidity/{number}", number % 100),
                2 => format!("site/{}/{number}/#", number % 100),
                _ => format!("+/{number}/status"),
            };
            trie.insert(&TopicFilter::new(text).expect("valid"), number);
        }
        for (name, topic) in
            [("exact", "site/4/room/4/temperature"), ("wildcard", "x/7/status"), ("none", "other/topic")]
        {
            group.bench_function(BenchmarkId::new(name, filters), |bencher| {
                bencher.iter(|| {
                    let mut found = 0usize;
                    trie.for_each_match(black_box(topic), |_| found += 1);
                    found
                });
            });
        }
    }
    group.finish();
}

fn codec(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("codec");
    for (name, version) in [("3.1.1", Version::V311), ("5", Version::V5)] {
        for payload_bytes in [64, 4096] {
            let topic = TopicName::new("site/4/room/4/temperature").expect("valid");
            let message = Message::new(topic, vec![b'x'; payload_bytes]).with_qos(QoS::AtLeastOnce);
            let header = PublishHeader {
                qos: QoS::AtLeastOnce,
                retain: false,
                packet_id: NonZeroU16::new(7),
                subscription_identifiers: &[],
                expiry_seconds: None,
                duplicate: false,
                alias: None,
            };
            let mut encoder = Encoder::new(version, None);
            let mut out = BytesMut::with_capacity(1 << 20);
            group.throughput(Throughput::Elements(1));
            group.bench_function(BenchmarkId::new(format!("encode {name}"), payload_bytes), |bencher| {
                bencher.iter(|| {
                    out.clear();
                    encoder.publish(&mut out, black_box(&message), header).expect("encodes");
                });
            });
            const BATCH: usize = 100;
            let batch = out.repeat(BATCH);
            group.throughput(Throughput::Elements(BATCH as u64));
            group.bench_function(
                BenchmarkId::new(format!("decode 100, {name}"), payload_bytes),
                |bencher| {
                    bencher.iter_batched(
                        || (Decoder::with_version(version, 1 << 20), BytesMut::from(&batch[..])),
                        |(mut decoder, mut source)| {
                            let mut packets = 0;
                            while let Some(packet) = decoder.decode(&mut source).expect("decodes") {
                                packets += usize::from(matches!(packet, Packet::Publish(_)));
                            }
                            assert_eq!(packets, BATCH);
                        },
                        BatchSize::SmallInput,
                    );
                },
            );
        }
    }
    group.finish();
}

/// Gives a message another topic, another payload and a property more.
struct Rewrite;

impl PublishHook for Rewrite {
    fn on_publish(&self, publishing: &mut Publishing<'_>) -> Verdict {
        let message = publishing.message();
        let topic = TopicName::new(format!("new/{}", message.topic().as_str())).expect("valid");
        let mut payload = message.payload().to_vec();
        payload.push(b'!');
        let mut properties = message.properties().cloned().unwrap_or_default();
        properties.user.push(("by".into(), "hook".into()));
        let new = message.clone().with_topic(topic).with_payload(payload).with_properties(properties);
        Verdict::Rewrite(new)
    }
}

struct Forward;

impl PublishHook for Forward {
    fn on_publish(&self, _: &mut Publishing<'_>) -> Verdict {
        Verdict::Forward
    }
}

fn hooks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hooks");
    let forward: fn() -> Arc<dyn PublishHook> = || Arc::new(Forward);
    let rewrite: fn() -> Arc<dyn PublishHook> = || Arc::new(Rewrite);
    for (name, hook, count) in
        [("none", forward, 0), ("forward", forward, 1), ("rewrite", rewrite, 1), ("rewrite", rewrite, 4)]
    {
        let hooks = Hooks { publish: (0..count).map(|_| hook()).collect(), ..Hooks::default() };
        let storage = Arc::new(MemoryStorage::default());
        let broker = Broker::open(BrokerConfig::default(), hooks, storage).expect("an empty store");
        let origin = Origin::Node { source: "bench".into(), depth: 0, requester: None };
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new(name, count), |bencher| {
            let topic = TopicName::new("site/4/room/4/temperature").expect("valid");
            let message = Message::new(topic, vec![b'x'; 64]);
            bencher.iter(|| broker.publish(&origin, black_box(message.clone())));
        });
    }
    group.finish();
}

criterion_group!(benches, trie, codec, hooks);
criterion_main!(benches);
