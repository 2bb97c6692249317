//! Section 4.7: topic names and filters.

use crate::client::{Client, refused};
use crate::encode::{Message, subscribe, unsubscribe};
use crate::server::Server;

#[tokio::test]
async fn filters_match_what_they_should_and_nothing_else() {
    covers!("MQTT-3.3.2-3", "MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.2-1", "MQTT-4.7.3-1", "MQTT-4.7.3-4");
    let topics = [
        "a", "a/b", "a/b/c", "/a", "a/", "/", "//", "a//b", "A", "A/b", "a b", " a", "é", "e\u{301}", "$a",
        "$a/b", "b", "b/c", "ａ", "a/b/", "/b",
    ];
    let cases: &[(&str, &[&str])] = &[
        ("a", &["a"]),
        ("A", &["A"]),
        ("a/b", &["a/b"]),
        ("+", &["a", "A", "a b", " a", "é", "e\u{301}", "b", "ａ"]),
        ("a/+", &["a/b", "a/"]),
        ("+/b", &["a/b", "A/b", "/b"]),
        ("/+", &["/a", "/", "/b"]),
        ("+/+", &["a/b", "/a", "a/", "/", "A/b", "b/c", "/b"]),
        ("a/#", &["a", "a/b", "a/b/c", "a/", "a//b", "a/b/"]),
        ("a/+/#", &["a/b", "a/b/c", "a/", "a//b", "a/b/"]),
        ("+/+/c", &["a/b/c"]),
        ("+/b/#", &["a/b", "a/b/c", "A/b", "a/b/", "/b"]),
        ("a/+/b", &["a//b"]),
        ("/#", &["/a", "/", "//", "/b"]),
        ("/", &["/"]),
        ("//", &["//"]),
        ("é", &["é"]),
        ("$a", &["$a"]),
        ("$a/#", &["$a", "$a/b"]),
        ("$a/+", &["$a/b"]),
        ("+/b/+", &["a/b/c", "a/b/"]),
        ("c/#", &[]),
    ];
    let server = Server::start().await;
    for level in [4, 5] {
        let mut publisher = Client::new(&server, level, "publisher").await;
        let mut all = Client::new(&server, level, "all").await;
        all.subscribe("#", 0).await;
        for (filter, matching) in cases {
            let mut client = Client::new(&server, level, "client").await;
            client.subscribe(filter, 0).await;
            for topic in topics {
                publisher.send(&Message::new(topic, topic).bytes(level)).await;
            }
            publisher.ping().await;
            let expected: Vec<&str> = topics.into_iter().filter(|topic| matching.contains(topic)).collect();
            assert_eq!(expected.len(), matching.len(), "the topics of {filter} are published");
            for topic in expected {
                let got = client.message().await;
                assert_eq!((&got.topic[..], got.text()), (topic, topic), "for {filter}");
            }
            client.quiet().await;
        }
        for topic in topics.into_iter().filter(|topic| !topic.starts_with('$')) {
            assert_eq!(all.text().await, topic);
        }
    }
}

#[tokio::test]
async fn filters_that_are_not_valid_are_refused() {
    covers!("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.7.3-1");
    let server = Server::start().await;
    for filter in
        ["a#", "#/a", "a/#/b", "a/b#", "##", "#/", "a+", "+a", "a/+b", "a/b+/c", "++", "+/a+/b", ""]
    {
        for level in [4, 5] {
            let packets = [subscribe(level, 1, &[], &[(filter, 0)]), unsubscribe(level, 1, &[filter])];
            for bytes in packets {
                let reason = refused(&server, level, &bytes).await;
                let expected: &[u8] = match (level, filter) {
                    (4, _) => &[0],
                    (_, "") => &[0x81, 0x82, 0x8f],
                    _ => &[0x8f],
                };
                assert!(expected.contains(&reason), "{reason:#x} for {filter}");
            }
        }
    }
}

#[tokio::test]
async fn topics_up_to_the_longest_pass() {
    covers!("MQTT-4.7.3-3");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    for bytes in [1, 127, 128, 65_534, 65_535] {
        let topic = "t".repeat(bytes);
        client.subscribe(&topic, 1).await;
        client.say(&topic, "x").await;
        let got = client.message().await;
        assert_eq!(got.topic, topic);
        client.finish(&got).await;
    }
}

#[tokio::test]
async fn a_leading_dollar_is_for_the_server() {
    covers!("MQTT-4.7.2-1");
    let server = Server::start().await;
    let mut client = Client::v5(&server, "client").await;
    client.subscribe("$other/#", 0).await;
    client.say("$other/t", "by its name").await;
    assert_eq!(client.text().await, "by its name");
    for filter in ["#", "+/t", "+/#"] {
        let mut wild = Client::v5(&server, "wild").await;
        client.publish(Message::new("$other/t", "kept").retain().qos(1, 0)).await;
        assert_eq!(client.text().await, "kept");
        wild.subscribe(filter, 0).await;
        client.say("$other/t", "live").await;
        assert_eq!(client.text().await, "live");
        wild.quiet().await;
    }
}
