//! Access rules for publishing, subscribing and wills. `docs/security.md` describes the file.

use std::collections::HashMap;

use edgefaas_manifest::{glob_error, glob_matches};
use serde::{Deserialize, Deserializer};

use super::filter::{ClientNames, RuleFilter};

/// An action of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Publish to a topic.
    Publish,
    /// Subscribe to a filter, given without `$share/GROUP/`.
    Subscribe,
    /// Leave a will on a topic.
    Will,
}

/// The access rules.
#[derive(Debug)]
pub struct Rules {
    /// Without rules, every action is allowed that the broker itself allows.
    open: bool,
    allow: RuleSet,
    deny: RuleSet,
}

#[derive(Debug, Default)]
struct RuleSet {
    /// Rules for one user each, of which there may be many.
    by_user: HashMap<String, Vec<Rule>>,
    /// Rules for patterns of users, for all users, and for anonymous clients.
    others: Vec<Rule>,
}

#[derive(Debug)]
struct Rule {
    users: UserPattern,
    client: Option<Pattern>,
    publish: Vec<RuleFilter>,
    subscribe: Vec<RuleFilter>,
    will: Option<Vec<RuleFilter>>,
    client_ids: Vec<Pattern>,
}

#[derive(Debug)]
enum UserPattern {
    Everyone,
    Anonymous,
    User(Pattern),
}

impl Rules {
    /// No rules: every action is allowed.
    pub fn open() -> Self {
        Self { open: true, allow: RuleSet::default(), deny: RuleSet::default() }
    }

    /// Parses an `acl.toml`.
    ///
    /// # Errors
    /// The first problem, with its line.
    pub fn parse(text: &str) -> Result<Self, Box<toml::de::Error>> {
        let file: File = toml::from_str(text).map_err(Box::new)?;
        Ok(Self { open: false, allow: file.allow.into(), deny: file.deny.into() })
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        [&self.allow, &self.deny]
            .map(|set| set.others.len() + set.by_user.values().map(Vec::len).sum::<usize>())
            .into_iter()
            .sum()
    }

    /// True for an empty file, which allows no action. See [`open`](Self::open).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if the client may do this. A subscription is allowed if one allowed filter covers it, and no denied filter
    /// overlaps it.
    pub fn allows(&self, names: ClientNames<'_>, action: Action, topic: &str) -> bool {
        if self.open {
            return true;
        }
        let allowed = self.allow.any(names, |rule| match action {
            Action::Publish => rule.publish.iter().any(|filter| filter.matches(names, topic)),
            Action::Subscribe => rule.subscribe.iter().any(|filter| filter.covers(names, topic)),
            Action::Will => {
                let filters = rule.will.as_ref().unwrap_or(&rule.publish);
                filters.iter().any(|filter| filter.matches(names, topic))
            }
        });
        allowed
            && !self.deny.any(names, |rule| match action {
                Action::Publish => rule.publish.iter().any(|filter| filter.matches(names, topic)),
                Action::Subscribe => rule.subscribe.iter().any(|filter| filter.overlaps(names, topic)),
                Action::Will => {
                    let will = rule.will.iter().flatten();
                    rule.publish.iter().chain(will).any(|filter| filter.matches(names, topic))
                }
            })
    }

    /// True if the client may connect with its client identifier. Once an `[[allow]]` has `client_ids`, every client
    /// needs a matching one.
    pub fn allows_client_id(&self, names: ClientNames<'_>) -> bool {
        let has_one = |rule: &Rule| rule.client_ids.iter().any(|pattern| pattern.matches_id(names));
        let bound = self.allow.all().any(|rule| !rule.client_ids.is_empty());
        self.open || ((!bound || self.allow.any(names, has_one)) && !self.deny.any(names, has_one))
    }

    /// True if the client's message is allowed, as a publish or as its will: a client may have its will published at
    /// any time.
    pub fn allows_message(&self, names: ClientNames<'_>, topic: &str) -> bool {
        self.allows(names, Action::Publish, topic) || self.allows(names, Action::Will, topic)
    }
}

impl RuleSet {
    fn any(&self, names: ClientNames<'_>, accepts: impl Fn(&Rule) -> bool) -> bool {
        let own = names.user.and_then(|user| self.by_user.get(user));
        own.into_iter().flatten().chain(&self.others).any(|rule| rule.is_for(names) && accepts(rule))
    }
}

impl RuleSet {
    fn all(&self) -> impl Iterator<Item = &Rule> {
        self.by_user.values().flatten().chain(&self.others)
    }
}

impl Pattern {
    /// True if a pattern for client identifiers matches the client's own. `%u` stands for the user name; a name with a
    /// `*`, which the subject of a token may contain, matches no identifier.
    fn matches_id(&self, names: ClientNames<'_>) -> bool {
        let Some(id) = names.client_id else { return false };
        if !self.0.contains("%u") {
            return glob_matches(&self.0, id);
        }
        let user = names.user.filter(|user| !user.is_empty() && !user.contains('*'));
        user.is_some_and(|user| glob_matches(&self.0.replace("%u", user), id))
    }
}

impl Rule {
    fn is_for(&self, names: ClientNames<'_>) -> bool {
        let user = match &self.users {
            UserPattern::Everyone => true,
            UserPattern::Anonymous => names.user.is_none(),
            UserPattern::User(pattern) => names.user.is_some_and(|user| glob_matches(&pattern.0, user)),
        };
        user && self
            .client
            .as_ref()
            .is_none_or(|pattern| names.client_id.is_some_and(|id| glob_matches(&pattern.0, id)))
    }
}

/// The contents of `acl.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    allow: Vec<Entry>,
    #[serde(default)]
    deny: Vec<Entry>,
}

/// `[[allow]]` or `[[deny]]`
#[derive(Deserialize)]
#[serde(try_from = "Keys")]
struct Entry(Rule);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    user: Option<Pattern>,
    client: Option<Pattern>,
    #[serde(default)]
    anonymous: bool,
    publish: Option<Vec<Filter>>,
    subscribe: Option<Vec<Filter>>,
    will: Option<Vec<Filter>>,
    #[serde(default)]
    client_ids: Vec<Pattern>,
}

struct Filter(RuleFilter);

/// A pattern in which `*` stands for any characters.
#[derive(Debug)]
struct Pattern(String);

impl TryFrom<Keys> for Entry {
    type Error = &'static str;

    fn try_from(keys: Keys) -> Result<Self, Self::Error> {
        let Keys { user, client, anonymous, publish, subscribe, will, client_ids } = keys;
        if publish.is_none() && subscribe.is_none() && will.is_none() && client_ids.is_empty() {
            return Err("a rule needs one of the keys `publish`, `subscribe`, `will` and `client_ids`");
        }
        let users = match (user, anonymous) {
            (Some(_), true) => return Err("a rule cannot have both `user` and `anonymous = true`"),
            (Some(pattern), false) => UserPattern::User(pattern),
            (None, true) => UserPattern::Anonymous,
            (None, false) => UserPattern::Everyone,
        };
        let filters = |given: Vec<Filter>| given.into_iter().map(|filter| filter.0).collect();
        Ok(Self(Rule {
            users,
            client,
            publish: publish.map(filters).unwrap_or_default(),
            subscribe: subscribe.map(filters).unwrap_or_default(),
            will: will.map(filters),
            client_ids,
        }))
    }
}

impl From<Vec<Entry>> for RuleSet {
    fn from(entries: Vec<Entry>) -> Self {
        let mut set = Self::default();
        for Entry(rule) in entries {
            match &rule.users {
                UserPattern::User(Pattern(name)) if !name.contains('*') => {
                    set.by_user.entry(name.clone()).or_default().push(rule);
                }
                _ => set.others.push(rule),
            }
        }
        set
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let refuse = |reason: String| serde::de::Error::custom(format!("`{text}`: {reason}"));
        if text.starts_with("$share/") {
            return Err(refuse("write the filter alone; it applies to shared subscriptions too".into()));
        }
        RuleFilter::new(&text).map(Self).map_err(|error| refuse(error.to_string()))
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match glob_error(&text) {
            Some(reason) => Err(serde::de::Error::custom(format!("the pattern `{text}`: {reason}"))),
            None => Ok(Self(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        [[allow]]
        subscribe = ["public/#"]

        [[allow]]
        user = "*"
        publish = ["users/%u/#"]
        subscribe = ["users/%u/#", "all/#"]

        [[allow]]
        user = "ada"
        client = "pump-*"
        publish = ["pumps/%c", "secret/x"]
        will = ["gone/%c"]

        [[allow]]
        anonymous = true
        publish = ["guests"]

        [[deny]]
        subscribe = ["all/secret/#"]
        publish = ["secret/#"]
    "#;

    fn names<'a>(user: Option<&'a str>, client: &'a str) -> ClientNames<'a> {
        ClientNames { user, client_id: Some(client) }
    }

    #[test]
    fn rules_allow_and_deny_actions() {
        use Action::{Publish, Subscribe, Will};
        let rules = Rules::parse(RULES).unwrap();
        assert_eq!(rules.len(), 5);
        let (pump, ada, bob) =
            (names(Some("ada"), "pump-1"), names(Some("ada"), "x"), names(Some("bob"), "pump-1"));
        let guest = names(None, "pump-1");
        for (names, action, topic, expected) in [
            (guest, Subscribe, "public/+", true),
            (bob, Subscribe, "public/a", true),
            (guest, Publish, "public/a", false),
            (guest, Publish, "guests", true),
            (bob, Publish, "guests", false),
            (bob, Publish, "users/bob/x", true),
            (bob, Publish, "users/ada/x", false),
            (bob, Will, "users/bob/x", true),
            (bob, Subscribe, "users/#", false),
            (pump, Publish, "pumps/pump-1", true),
            (ada, Publish, "pumps/x", false),
            (bob, Publish, "pumps/pump-1", false),
            (pump, Will, "gone/pump-1", true),
            (pump, Will, "pumps/pump-1", false),
            (pump, Publish, "gone/pump-1", false),
            (pump, Publish, "secret/x", false),
            (ada, Subscribe, "all/public", true),
            (ada, Subscribe, "all/secret/x", false),
            (ada, Subscribe, "all/#", false),
            (ada, Subscribe, "all/+", false),
            (ada, Subscribe, "all/+/x", false),
            (guest, Subscribe, "$SYS/#", false),
        ] {
            assert_eq!(rules.allows(names, action, topic), expected, "{names:?} {action:?} {topic}");
        }
        assert!(rules.allows_message(pump, "gone/pump-1"), "a will passes when it is published");
        assert!(!rules.allows_message(bob, "gone/pump-1"));
    }

    #[test]
    fn client_ids_are_bound_to_users() {
        let rules = |text: &str| Rules::parse(text).unwrap();
        let bound = rules(
            r#"
            [[allow]]
            user = "*"
            client_ids = ["%u", "sensor-%u-*"]

            [[allow]]
            anonymous = true
            client_ids = ["guest-*"]

            [[deny]]
            client_ids = ["sensor-*-secret"]
            "#,
        );
        for (user, id, expected) in [
            (Some("ada"), "ada", true),
            (Some("ada"), "sensor-ada-1", true),
            (Some("ada"), "sensor-bob-1", false),
            (Some("ada"), "sensor-ada-secret", false),
            (Some("ada"), "guest-1", false),
            (Some("*"), "sensor-ada-1", false),
            (None, "guest-1", true),
            (None, "ada", false),
        ] {
            assert_eq!(bound.allows_client_id(names(user, id)), expected, "{user:?} {id}");
        }
        assert!(Rules::open().allows_client_id(names(None, "x")));
        assert!(rules("").allows_client_id(names(None, "x")), "a file without the key binds none");
        let denied = rules("[[deny]]\nclient_ids = [\"node-*\"]");
        assert!(
            denied.allows_client_id(names(None, "x"))
                && !denied.allows_client_id(names(Some("ada"), "node-1"))
        );
    }

    #[test]
    fn without_a_file_all_is_allowed_and_an_empty_file_allows_nothing() {
        let anyone = names(None, "c");
        assert!(Rules::open().allows(anyone, Action::Publish, "a"));
        assert!(Rules::open().allows(anyone, Action::Subscribe, "$SYS/#"));
        let none = Rules::parse("").unwrap();
        assert!(none.is_empty() && !none.allows(anyone, Action::Publish, "a"));
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, line, words) in [
            ("[[allow]]\npubish = [\"a\"]", "line 2", "unknown field `pubish`"),
            ("[[allow]]\n\npublish = [\"a#\"]", "line 3", "`a#`"),
            ("[[allow]]\nsubscribe = \"a\"", "line 2", "sequence"),
            ("[[allow]]\nuser = \"a\"", "line 1", "needs one of the keys"),
            ("[[allow]]\nuser = \"a?\"\npublish = [\"a\"]", "line 2", "pattern `a?`"),
            ("[[deny]]\nuser = \"a\"\nanonymous = true\nwill = []", "line 1", "cannot have both"),
            ("[[allow]]\nsubscribe = [\"$share/g/a\"]", "line 2", "the filter alone"),
            ("[allow]\n", "line 1", "sequence"),
        ] {
            let error = Rules::parse(text).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(words), "{text}: {error}");
        }
    }
}
