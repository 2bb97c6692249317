//! Topic filters of rules: `%u` and `%c` in them stand for the client's user name and its id.
//!
//! A filter with a placeholder applies only to a client that has the name, and only if the name is part of a single
//! topic level: a user called `#` or `a/b` gains no permission by it.

use edgefaas_broker::topic::{TopicFilterError, validate_filter};

/// Names of the client that a rule is checked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientNames<'a> {
    /// The user; `None` for an anonymous client.
    pub user: Option<&'a str>,
    /// The client id; `None` over HTTP.
    pub client_id: Option<&'a str>,
}

/// A parsed filter of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleFilter {
    levels: Box<[Level]>,
    /// The filter contains `%u`.
    needs_user: bool,
    needs_client: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Level {
    /// `+`
    One,
    /// `#`
    Rest,
    /// A literal level.
    Text(Box<str>),
    /// A level with `%u` or `%c`.
    Named(Box<[Part]>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    User,
    Client,
}

impl RuleFilter {
    /// Parses a topic filter with the placeholders `%u` and `%c`.
    ///
    /// # Errors
    /// The text is not a valid topic filter.
    pub fn new(text: &str) -> Result<Self, TopicFilterError> {
        validate_filter(text)?;
        let levels: Box<[Level]> = text.split('/').map(level).collect();
        let has = |expected: &Part| {
            levels.iter().any(|level| matches!(level, Level::Named(parts) if parts.contains(expected)))
        };
        Ok(Self { needs_user: has(&Part::User), needs_client: has(&Part::Client), levels })
    }

    /// True if `topic` matches the filter with the names of this client (MQTT 5, section 4.7).
    pub fn matches(&self, names: ClientNames<'_>, topic: &str) -> bool {
        if !self.applies_to(names) || (topic.starts_with('$') && self.starts_with_wildcard()) {
            return false;
        }
        let mut levels = topic.split('/');
        for expected in &self.levels {
            if *expected == Level::Rest {
                return true;
            }
            match levels.next() {
                Some(level) if *expected == Level::One || expected.is(names, level) => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }

    /// True if every topic that matches `filter` matches this filter too.
    pub fn covers(&self, names: ClientNames<'_>, filter: &str) -> bool {
        if !self.applies_to(names) || (filter.starts_with('$') && self.starts_with_wildcard()) {
            return false;
        }
        // Every topic has a first level, so both filters match the same topics.
        if filter == "#" && *self.levels == [Level::One, Level::Rest] {
            return true;
        }
        let mut levels = filter.split('/');
        for expected in &self.levels {
            if *expected == Level::Rest {
                return true;
            }
            match levels.next() {
                // `a/#` matches `a`, which has no further level.
                None | Some("#") => return false,
                Some("+") if *expected == Level::One => {}
                Some("+") => return false,
                Some(level) if *expected == Level::One || expected.is(names, level) => {}
                Some(_) => return false,
            }
        }
        levels.next().is_none()
    }

    /// True if some topic matches both this filter and `filter`.
    pub fn overlaps(&self, names: ClientNames<'_>, filter: &str) -> bool {
        if !self.applies_to(names)
            || (filter.starts_with('$') && self.starts_with_wildcard())
            || (filter.starts_with(['+', '#']) && self.starts_with_dollar(names))
        {
            return false;
        }
        let mut levels = filter.split('/');
        for expected in &self.levels {
            if *expected == Level::Rest {
                return true;
            }
            match levels.next() {
                Some("#") => return true,
                Some("+") => {}
                Some(level) if *expected == Level::One || expected.is(names, level) => {}
                _ => return false,
            }
        }
        matches!(levels.next(), None | Some("#"))
    }

    /// True if the client has the needed names, and each is part of a single level.
    fn applies_to(&self, names: ClientNames<'_>) -> bool {
        let fits = |name: Option<&str>| {
            name.is_some_and(|name| !name.is_empty() && !name.contains(['/', '+', '#', '\0']))
        };
        (!self.needs_user || fits(names.user))
            && (!self.needs_client || fits(names.client_id))
            // Topics with `$` belong to the broker, unless the rule itself begins with `$`.
            && !(self.starts_with_name() && self.starts_with_dollar(names))
    }

    fn starts_with_wildcard(&self) -> bool {
        matches!(self.levels.first(), Some(Level::One | Level::Rest))
    }

    fn starts_with_name(&self) -> bool {
        match self.levels.first() {
            Some(Level::Named(parts)) => matches!(parts.first(), Some(Part::User | Part::Client)),
            _ => false,
        }
    }

    fn starts_with_dollar(&self, names: ClientNames<'_>) -> bool {
        match self.levels.first() {
            Some(Level::Text(text)) => text.starts_with('$'),
            Some(Level::Named(parts)) => {
                parts.first().is_some_and(|part| part.text(names).starts_with('$'))
            }
            _ => false,
        }
    }
}

impl Level {
    fn is(&self, names: ClientNames<'_>, level: &str) -> bool {
        match self {
            Self::One | Self::Rest => false,
            Self::Text(text) => **text == *level,
            Self::Named(parts) => {
                let rest = parts.iter().try_fold(level, |rest, part| rest.strip_prefix(part.text(names)));
                rest == Some("")
            }
        }
    }
}

impl Part {
    fn text<'a>(&'a self, names: ClientNames<'a>) -> &'a str {
        match self {
            Self::Text(text) => text,
            Self::User => names.user.unwrap_or_default(),
            Self::Client => names.client_id.unwrap_or_default(),
        }
    }
}

fn level(text: &str) -> Level {
    match text {
        "+" => Level::One,
        "#" => Level::Rest,
        text => {
            let parts = parts(text);
            if parts.iter().all(|part| matches!(part, Part::Text(_))) {
                Level::Text(text.into())
            } else {
                Level::Named(parts.into())
            }
        }
    }
}

fn parts(mut text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    while !text.is_empty() {
        let found = [("%u", Part::User), ("%c", Part::Client)];
        let first = found.into_iter().filter_map(|(name, part)| Some((text.find(name)?, part)));
        let Some((at, part)) = first.min_by_key(|(at, _)| *at) else {
            parts.push(Part::Text(text.into()));
            break;
        };
        if at > 0 {
            parts.push(Part::Text(text[..at].into()));
        }
        parts.push(part);
        text = &text[at + 2..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use edgefaas_broker::TopicFilter;
    use proptest::prelude::*;

    use super::*;

    const ADA: ClientNames<'_> = ClientNames { user: Some("ada"), client_id: Some("pump-1") };

    fn filter(text: &str) -> RuleFilter {
        RuleFilter::new(text).unwrap()
    }

    #[test]
    fn placeholders_stand_for_parts_of_a_level() {
        for (text, topic, expected) in [
            ("sensors/%u/#", "sensors/ada/t", true),
            ("sensors/%u/#", "sensors/bob/t", false),
            ("sensors/%u/#", "sensors/%u/t", false),
            ("%c", "pump-1", true),
            ("x/%u-%c-y", "x/ada-pump-1-y", true),
            ("x/%u-%c-y", "x/ada-pump-1", false),
            ("x/%u%u", "x/adaada", true),
            ("100%", "100%", true),
        ] {
            assert_eq!(filter(text).matches(ADA, topic), expected, "{text} {topic}");
        }
    }

    #[test]
    fn a_name_with_separators_or_wildcards_gains_no_permission() {
        for name in ["#", "+", "a/b", "", "a\0b"] {
            for names in
                [ClientNames { user: Some(name), ..ADA }, ClientNames { client_id: Some(name), ..ADA }]
            {
                let rule = filter("x/%u/%c");
                for topic in ["x/ada/pump-1", "x/a/b/pump-1", "x/ada/a/b", "x//pump-1", "x/ada/", "x/+/+"] {
                    assert!(!rule.matches(names, topic), "{name} {topic}");
                    assert!(!rule.covers(names, topic), "{name} {topic}");
                    assert!(!rule.overlaps(names, topic), "{name} {topic}");
                }
            }
        }
        let nobody = ClientNames { user: None, client_id: None };
        assert!(!filter("x/%u").matches(nobody, "x/"));
        assert!(!filter("x/%c").matches(nobody, "x/"));
        let crafty = ClientNames { user: Some("$SYS"), client_id: Some("$SYS") };
        assert!(!filter("%u/#").matches(crafty, "$SYS/broker/uptime"));
        assert!(!filter("%c/#").covers(crafty, "$SYS/#"));
        assert!(filter("x/%c").matches(crafty, "x/$SYS"), "inside a topic the name has no special meaning");
    }

    #[test]
    fn covers_by_example() {
        for (rule, asked, expected) in [
            ("#", "#", true),
            ("#", "a/+", true),
            ("#", "$SYS/#", false),
            ("+/#", "#", true),
            ("+/a", "$x/a", false),
            ("$SYS/#", "$SYS/broker/+", true),
            ("a/#", "a", true),
            ("a/#", "a/+/#", true),
            ("a/+", "a/#", false),
            ("a/+/#", "a/#", false),
            ("a/+", "a/b", true),
            ("a/b", "a/+", false),
            ("sensors/%u/#", "sensors/ada/+", true),
            ("sensors/%u/#", "sensors/+/t", false),
        ] {
            assert_eq!(filter(rule).covers(ADA, asked), expected, "{rule} {asked}");
        }
    }

    const LEVELS: [&str; 4] = ["", "a", "b", "$x"];

    /// All topics of up to four of these levels, which is deeper than the filters, with a level that no filter
    /// contains. The empty topic is invalid, but its presence simplifies the comparison.
    fn topics() -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        let mut last: Vec<String> = vec![String::new()];
        for depth in 0..4 {
            let mut next = Vec::new();
            for topic in &last {
                for level in LEVELS.into_iter().chain(["z"]) {
                    next.push(if depth == 0 { level.to_owned() } else { format!("{topic}/{level}") });
                }
            }
            all.extend(next.iter().cloned());
            last = next;
        }
        all
    }

    fn any_filter() -> impl Strategy<Value = String> {
        let level = prop_oneof![Just("+"), prop::sample::select(&LEVELS[..])];
        let levels = (prop::collection::vec(level, 0..3), any::<bool>());
        levels.prop_filter_map("a filter", |(mut levels, rest)| {
            if rest {
                levels.push("#");
            }
            let text = levels.join("/");
            validate_filter(&text).is_ok().then_some(text)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn agrees_with_matching_all_topics(rule in any_filter(), asked in any_filter()) {
            let topics = topics();
            let oracle = TopicFilter::new(rule.as_str()).unwrap();
            let asked_filter = TopicFilter::new(asked.as_str()).unwrap();
            let rule = filter(&rule);
            for topic in &topics {
                prop_assert_eq!(rule.matches(ADA, topic), oracle.matches(topic), "{}", topic);
            }
            let mut both = topics.iter().filter(|topic| asked_filter.matches(topic));
            prop_assert_eq!(rule.covers(ADA, &asked), both.clone().all(|topic| oracle.matches(topic)));
            prop_assert_eq!(rule.overlaps(ADA, &asked), both.any(|topic| oracle.matches(topic)));
        }

        #[test]
        fn never_panics(rule in ".{0,20}", asked in ".{0,20}", name in ".{0,5}") {
            let names = ClientNames { user: Some(&name), client_id: Some(&name) };
            if let (Ok(rule), Ok(())) = (RuleFilter::new(&rule), validate_filter(&asked)) {
                let (covers, overlaps) = (rule.covers(names, &asked), rule.overlaps(names, &asked));
                prop_assert!(overlaps || !covers);
            }
        }
    }
}
