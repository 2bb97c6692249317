//! Mapping between local and remote topics.

use edgefaas_broker::TopicFilter;

use super::config::TopicSection;

/// Topic mapping of a bridge.
#[derive(Debug)]
pub struct Topics {
    outgoing: Vec<Rule>,
    incoming: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    from: Side,
    to: Side,
}

/// One side of a mapping rule: filter with the prefix, and the prefix.
#[derive(Debug)]
struct Side {
    filter: TopicFilter,
    prefix: String,
}

impl Side {
    fn local(section: &TopicSection) -> Option<Self> {
        let filter = TopicFilter::new(section.local_filter()).ok()?;
        Some(Self { filter, prefix: section.local_prefix.clone() })
    }

    fn remote(section: &TopicSection) -> Option<Self> {
        let filter = TopicFilter::new(section.remote_filter()).ok()?;
        Some(Self { filter, prefix: section.remote_prefix.clone() })
    }
}

impl Topics {
    /// Creates the mapping. Entries with an invalid filter are ignored; the validated configuration has none.
    pub fn new(sections: &[TopicSection]) -> Self {
        let outgoing = sections
            .iter()
            .filter(|section| section.direction.is_out())
            .filter_map(|section| Some(Rule { from: Side::local(section)?, to: Side::remote(section)? }));
        let incoming = sections
            .iter()
            .filter(|section| section.direction.is_in())
            .filter_map(|section| Some(Rule { from: Side::remote(section)?, to: Side::local(section)? }));
        Self { outgoing: outgoing.collect(), incoming: incoming.collect() }
    }

    /// Maps a local topic to the remote one, by the first entry that matches on both sides; `None` if no entry matches.
    pub fn to_remote(&self, topic: &str) -> Option<String> {
        translate(&self.outgoing, topic)
    }

    /// Maps a remote topic to the local one, in the same way.
    pub fn to_local(&self, topic: &str) -> Option<String> {
        translate(&self.incoming, topic)
    }
}

fn translate(rules: &[Rule], topic: &str) -> Option<String> {
    rules.iter().find_map(|rule| {
        let rest = rule.from.filter.matches(topic).then(|| topic.strip_prefix(&rule.from.prefix))??;
        let topic = format!("{}{rest}", rule.to.prefix);
        // `prefix/#` also matches `prefix`, which may map to an empty topic. A topic below a prefix may map to a topic that
        // begins with `$`, such as the call topics under `$faas`: the filter of the other side must match it, and `#` does
        // not match topics that begin with `$`.
        (!topic.is_empty() && rule.to.filter.matches(&topic)).then_some(topic)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::config::{BridgeQoS, Direction};

    #[test]
    fn prefixes_are_replaced() {
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

    #[test]
    fn wildcards_do_not_map_to_topics_that_begin_with_a_dollar_sign() {
        let section = |filter: &str, local: &str, remote: &str| TopicSection {
            filter: filter.into(),
            direction: Direction::Both,
            qos: BridgeQoS::default(),
            local_prefix: local.into(),
            remote_prefix: remote.into(),
        };
        let topics = Topics::new(&[
            section("#", "", "sites/7/"),
            section("+/fn/#", "", "other/"),
            section("$faas/fn/f/invoke", "", "calls/"),
        ]);
        assert_eq!(topics.to_local("sites/7/a").as_deref(), Some("a"));
        assert_eq!(topics.to_local("sites/7/$faas/fn/f/invoke"), None);
        assert_eq!(topics.to_local("sites/7/$SYS/x"), None);
        assert_eq!(topics.to_local("other/$faas/fn/f/invoke"), None);
        assert_eq!(topics.to_remote("$SYS/x"), None);
        // An entry that names `$` explicitly covers such topics.
        assert_eq!(topics.to_local("calls/$faas/fn/f/invoke").as_deref(), Some("$faas/fn/f/invoke"));
        let topics = Topics::new(&[section("#", "sites/7/", "")]);
        assert_eq!(topics.to_remote("sites/7/$SYS/x"), None);
    }
}
