//! From a topic on this node to the one on the other broker, and back.

use edgefaas_broker::TopicFilter;

use super::config::TopicSection;

/// The topics of a bridge.
#[derive(Debug)]
pub struct Topics {
    out: Vec<Rule>,
    into: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    filter: TopicFilter,
    prefix: String,
    other_prefix: String,
}

impl Topics {
    /// Of a bridge whose filters are valid.
    pub fn new(sections: &[TopicSection]) -> Self {
        let rule = |filter: String, prefix: &str, other_prefix: &str| {
            let (prefix, other_prefix) = (prefix.to_owned(), other_prefix.to_owned());
            Some(Rule { filter: TopicFilter::new(filter).ok()?, prefix, other_prefix })
        };
        let out = sections.iter().filter(|section| section.direction.is_out()).filter_map(|section| {
            rule(section.local_filter(), &section.local_prefix, &section.remote_prefix)
        });
        let into = sections.iter().filter(|section| section.direction.is_in()).filter_map(|section| {
            rule(section.remote_filter(), &section.remote_prefix, &section.local_prefix)
        });
        Self { out: out.collect(), into: into.collect() }
    }

    /// The other broker's topic for one of this node, by the first entry that matches.
    pub fn to_remote(&self, topic: &str) -> Option<String> {
        translate(&self.out, topic)
    }

    /// This node's topic for one of the other broker.
    pub fn to_local(&self, topic: &str) -> Option<String> {
        translate(&self.into, topic)
    }
}

fn translate(rules: &[Rule], topic: &str) -> Option<String> {
    let rule = rules.iter().find(|rule| rule.filter.matches(topic))?;
    let rest = topic.strip_prefix(&rule.prefix)?;
    let topic = format!("{}{rest}", rule.other_prefix);
    // `prefix/#` also matches `prefix`, of which nothing may be left.
    (!topic.is_empty()).then_some(topic)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::config::{BridgeQoS, Direction};

    #[test]
    fn prefixes_are_exchanged() {
        let section = |filter: &str, direction, local: &str, remote: &str| TopicSection {
            filter: filter.into(),
            direction,
            qos: BridgeQoS::default(),
            local_prefix: local.into(),
            remote_prefix: remote.into(),
        };
        let topics = Topics::new(&[
            section("temp/+", Direction::Out, "house/", "sites/7/"),
            section("#", Direction::Both, "cloud/", "down/"),
            section("cmd", Direction::In, "", "x/"),
        ]);
        assert_eq!(topics.to_remote("house/temp/1").as_deref(), Some("sites/7/temp/1"));
        assert_eq!(topics.to_remote("house/temp/1/2"), None);
        assert_eq!(topics.to_local("sites/7/temp/1"), None);
        assert_eq!(topics.to_local("down/a/b").as_deref(), Some("cloud/a/b"));
        assert_eq!(topics.to_remote("cloud/a/b").as_deref(), Some("down/a/b"));
        assert_eq!(topics.to_local("x/cmd").as_deref(), Some("cmd"));
        assert_eq!(topics.to_remote("cmd"), None);
    }
}
