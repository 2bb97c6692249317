//! Topic validation and the trie, against straightforward implementations.

use edgefaas_broker::topic::{TopicFilterError, TopicNameError, validate_filter, validate_name};
use edgefaas_broker::{FilterTrie, TopicFilter, TopicName};
use proptest::prelude::*;

/// Levels from a small alphabet, so that filters and topics meet.
fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", "a", "b", "aa", "é", "$s", " "])
}

fn topic() -> impl Strategy<Value = String> {
    let topics = prop::collection::vec(level(), 1..6).prop_map(|levels| levels.join("/"));
    topics.prop_filter("not empty", |topic| !topic.is_empty())
}

fn filter() -> impl Strategy<Value = String> {
    let part = prop_oneof![3 => level(), 2 => Just("+")];
    let filters = (prop::collection::vec(part, 0..5), any::<bool>()).prop_map(|(mut levels, hash)| {
        if hash {
            levels.push("#");
        }
        levels.join("/")
    });
    filters.prop_filter("not empty", |filter| !filter.is_empty())
}

/// Section 4.7 of MQTT 5, literally.
fn matches(filter: &[&str], topic: &[&str]) -> bool {
    match (filter, topic) {
        (["#"], _) => true,
        ([], []) => true,
        ([part, filter @ ..], [level, topic @ ..]) => {
            (*part == "+" || part == level) && matches(filter, topic)
        }
        _ => false,
    }
}

fn naive_match(filter: &str, topic: &str) -> bool {
    let wild_start = filter.starts_with('+') || filter.starts_with('#');
    let (filter, levels): (Vec<_>, Vec<_>) = (filter.split('/').collect(), topic.split('/').collect());
    !(wild_start && topic.starts_with('$')) && matches(&filter, &levels)
}

fn naive_valid_filter(filter: &str) -> bool {
    let levels: Vec<&str> = filter.split('/').collect();
    !filter.is_empty()
        && filter.len() <= 65_535
        && levels.len() <= 200
        && !filter.contains('\0')
        && levels.iter().all(|level| matches!(*level, "+" | "#") || !level.contains(['+', '#']))
        && levels[..levels.len() - 1].iter().all(|level| *level != "#")
}

fn found(trie: &FilterTrie<usize>, topic: &str) -> Vec<usize> {
    let mut found = Vec::new();
    trie.for_each_match(topic, |&value| found.push(value));
    found.sort_unstable();
    found
}

proptest! {
    #[test]
    fn the_trie_finds_what_matches(
        filters in prop::collection::vec(filter(), 0..40),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        topics in prop::collection::vec(topic(), 1..20),
    ) {
        let mut trie = FilterTrie::new();
        let mut there: Vec<Option<TopicFilter>> = Vec::new();
        for (value, text) in filters.iter().enumerate() {
            let filter = TopicFilter::new(text.as_str()).expect("valid");
            trie.insert(&filter, value);
            there.push(Some(filter));
        }
        for index in removed {
            if there.is_empty() {
                break;
            }
            let value = index.index(there.len());
            if let Some(filter) = there[value].take() {
                prop_assert_eq!(trie.remove(&filter, |&candidate| candidate == value), Some(value));
                prop_assert_eq!(trie.remove(&filter, |&candidate| candidate == value), None);
            }
        }
        prop_assert_eq!(trie.len(), there.iter().flatten().count());
        for topic in topics {
            let expected: Vec<usize> = (0..there.len())
                .filter(|&value| there[value].as_ref().is_some_and(|filter| naive_match(filter.as_str(), &topic)))
                .collect();
            prop_assert_eq!(found(&trie, &topic), expected, "topic {}", topic);
        }
        for (value, filter) in there.iter().enumerate() {
            if let Some(filter) = filter {
                let moved = trie.update(filter, |&candidate| candidate == value, |value| *value += 1000);
                prop_assert!(moved);
                prop_assert_eq!(trie.remove(filter, |&candidate| candidate == value + 1000), Some(value + 1000));
            }
        }
        prop_assert!(trie.is_empty());
    }

    #[test]
    fn one_filter_matches_as_the_standard_says(filter in filter(), topic in topic()) {
        let typed = TopicFilter::new(filter.as_str()).expect("valid");
        let expected = naive_match(&filter, &topic);
        prop_assert_eq!(typed.matches(&topic), expected);
        prop_assert!(!expected || topic.starts_with(typed.literal_prefix()));
    }

    #[test]
    fn filters_are_valid_as_the_standard_says(filter in "[ab/+#\\x00é]{0,12}") {
        prop_assert_eq!(validate_filter(&filter).is_ok(), naive_valid_filter(&filter));
    }

    #[test]
    fn names_are_valid_as_the_standard_says(topic in "[ab/+#$\\x00é]{0,12}") {
        prop_assert_eq!(validate_name(&topic).is_ok(), !topic.is_empty() && !topic.contains(['+', '#', '\0']));
    }
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    assert_eq!(validate_filter("a/#/b"), Err(TopicFilterError::HashNotLast { at: 2 }));
    assert_eq!(validate_filter("é/b+"), Err(TopicFilterError::WildcardNotAlone { wildcard: '+', at: 4 }));
    assert_eq!(validate_filter(""), Err(TopicFilterError::Empty));
    assert_eq!(validate_filter("a\0"), Err(TopicFilterError::Null { at: 1 }));
    assert_eq!(validate_filter(&"/".repeat(200)), Err(TopicFilterError::TooManyLevels { levels: 201 }));
    assert_eq!(validate_filter(&"a".repeat(65_536)), Err(TopicFilterError::TooLong { bytes: 65_536 }));
    assert_eq!(validate_name("a/+"), Err(TopicNameError::Wildcard { wildcard: '+', at: 2 }));
    assert_eq!(validate_name(&"/".repeat(200)), Err(TopicNameError::TooManyLevels { levels: 201 }));
    assert_eq!(
        TopicName::new("a#").expect_err("a wildcard").to_string(),
        "the topic has the wildcard '#' at byte 1; wildcards are for subscriptions only"
    );
}

#[test]
fn the_deepest_topic_and_filter_match() {
    let topic = "a/".repeat(199) + "a";
    let filter = TopicFilter::new("+/".repeat(199) + "#").expect("as deep as allowed");
    let mut trie = FilterTrie::new();
    trie.insert(&filter, 1);
    assert_eq!(found(&trie, &topic), [1]);
    assert!(filter.matches(&topic));
}
