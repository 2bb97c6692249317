//! Events from the difference between two looks at the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::events::{Happened, Kind};
use crate::cluster::Presence;

/// Characters of a revision that name it.
const SHORT_REVISION: usize = 12;
/// Dead letters whose functions are looked at, and functions that an event names.
pub const LAST_DEAD: usize = 20;
const NAMED_FUNCTIONS: usize = 3;

/// What can change between two looks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Live revisions by app.
    pub apps: BTreeMap<String, String>,
    /// The other members of the cluster.
    pub members: BTreeMap<String, Presence>,
    /// Bridges, and whether they are connected, with the URL or the last error.
    pub bridges: BTreeMap<String, BridgeSeen>,
    /// Durable invocations that became dead letters since the start.
    pub dead: u64,
    /// The functions of the last dead letters, the last one first; [`LAST_DEAD`] at most.
    pub last_dead: Vec<Arc<str>>,
}

/// The state of a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeSeen {
    /// True while it is connected.
    pub is_connected: bool,
    /// The URL of the other broker.
    pub url: String,
    /// The last error; empty if there is none.
    pub last_error: String,
}

/// What has happened between two looks.
pub fn changes(before: &Seen, now: &Seen) -> Vec<Happened> {
    let mut happened = app_changes(&before.apps, &now.apps);
    happened.extend(member_changes(&before.members, &now.members));
    happened.extend(bridge_changes(&before.bridges, &now.bridges));
    if let Some(dead) = now.dead.checked_sub(before.dead).filter(|dead| *dead > 0) {
        happened.push(dead_letters(dead, &now.last_dead));
    }
    happened
}

/// Durable invocations that became dead letters, with the functions of the last ones.
fn dead_letters(dead: u64, last: &[Arc<str>]) -> Happened {
    let new = &last[..last.len().min(usize::try_from(dead).unwrap_or(usize::MAX))];
    let functions: BTreeSet<_> = new.iter().map(|name| &**name).collect();
    let named: Vec<_> = functions.iter().take(NAMED_FUNCTIONS).map(|name| format!("`{name}`")).collect();
    let subject = match &functions.iter().collect::<Vec<_>>()[..] {
        [only] => (**only).to_owned(),
        _ => String::new(),
    };
    let all = match (named.is_empty(), functions.len() > NAMED_FUNCTIONS) {
        (true, _) => String::new(),
        (false, false) => format!(" of {}", named.join(", ")),
        (false, true) => format!(" of {} and others", named.join(", ")),
    };
    // Of more than are remembered only the last ones are known.
    let (of, last) = match dead > new.len() as u64 && !all.is_empty() {
        true => (String::new(), format!(", the last ones{all}")),
        false => (all, String::new()),
    };
    let text = match dead {
        1 => format!("a durable invocation{of} became a dead letter"),
        _ => format!("{dead} durable invocations{of} became dead letters{last}"),
    };
    Happened { kind: Kind::Dead, subject, text }
}

/// Deploys and removals.
pub fn app_changes(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<Happened> {
    let mut happened = Vec::new();
    for (app, revision) in now {
        let text = match before.get(app) {
            Some(earlier) if earlier == revision => continue,
            Some(earlier) => {
                format!("app `{app}` runs revision {} in place of {}", short(revision), short(earlier))
            }
            None => format!("app `{app}` runs revision {}", short(revision)),
        };
        happened.push(Happened { kind: Kind::Deploy, subject: app.clone(), text });
    }
    for (app, revision) in before.iter().filter(|(app, _)| !now.contains_key(*app)) {
        let text = format!("app `{app}` was removed; it ran revision {}", short(revision));
        happened.push(Happened { kind: Kind::Remove, subject: app.clone(), text });
    }
    happened
}

/// Members that came and went. One that did both between two looks is told by the end of its channel.
fn member_changes(before: &BTreeMap<String, Presence>, now: &BTreeMap<String, Presence>) -> Vec<Happened> {
    let mut happened = Vec::new();
    for (member, presence) in now {
        let before = before.get(member).copied().unwrap_or(Presence::Away { since: None });
        let connected = || Happened {
            kind: Kind::Member,
            subject: member.clone(),
            text: format!("member `{member}` is connected"),
        };
        let away = || Happened {
            kind: Kind::MemberAway,
            subject: member.clone(),
            text: format!("member `{member}` is not connected any more"),
        };
        match (before, *presence) {
            (Presence::Away { .. }, Presence::Connected) => happened.push(connected()),
            (Presence::Connected, Presence::Away { .. }) => happened.push(away()),
            (Presence::Away { since: before }, Presence::Away { since: Some(now) })
                if before != Some(now) =>
            {
                happened.extend([connected(), away()]);
            }
            _ => {}
        }
    }
    for member in before.keys().filter(|member| !now.contains_key(*member)) {
        let text = format!("`{member}` is no member of the cluster any more");
        happened.push(Happened { kind: Kind::MemberAway, subject: member.clone(), text });
    }
    happened
}

fn bridge_changes(
    before: &BTreeMap<String, BridgeSeen>,
    now: &BTreeMap<String, BridgeSeen>,
) -> Vec<Happened> {
    let mut happened = Vec::new();
    for (bridge, state) in now {
        let was_connected = before.get(bridge).is_some_and(|before| before.is_connected);
        let (kind, text) = match (was_connected, state) {
            (false, BridgeSeen { is_connected: true, url, .. }) => {
                (Kind::Bridge, format!("bridge `{bridge}` is connected to {url}"))
            }
            (true, BridgeSeen { is_connected: false, url, last_error }) => {
                let reason = if last_error.is_empty() { String::new() } else { format!(": {last_error}") };
                (Kind::BridgeAway, format!("bridge `{bridge}` is not connected to {url} any more{reason}"))
            }
            _ => continue,
        };
        happened.push(Happened { kind, subject: bridge.clone(), text });
    }
    happened
}

fn short(revision: &str) -> &str {
    revision.get(..SHORT_REVISION).unwrap_or(revision)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn kinds(before: &Seen, now: &Seen) -> Vec<(Kind, String, String)> {
        changes(before, now).into_iter().map(|event| (event.kind, event.subject, event.text)).collect()
    }

    #[test]
    fn apps_that_change_are_events() {
        let seen = |apps: &[(&str, &str)]| Seen {
            apps: apps.iter().map(|(app, revision)| ((*app).to_owned(), (*revision).to_owned())).collect(),
            ..Seen::default()
        };
        let before = seen(&[("a", "0123456789abcdef"), ("b", "2"), ("c", "3")]);
        assert_eq!(kinds(&before, &before), []);
        let found = kinds(&before, &seen(&[("a", "fedcba9876543210"), ("b", "2"), ("d", "4")]));
        let found: Vec<_> =
            found.iter().map(|(kind, app, text)| (*kind, app.as_str(), text.as_str())).collect();
        assert_eq!(
            found,
            [
                (Kind::Deploy, "a", "app `a` runs revision fedcba987654 in place of 0123456789ab"),
                (Kind::Deploy, "d", "app `d` runs revision 4"),
                (Kind::Remove, "c", "app `c` was removed; it ran revision 3"),
            ]
        );
    }

    #[test]
    fn members_and_bridges_that_come_and_go_are_events() {
        let seen = |hall: Option<Presence>, is_connected| {
            let bridge = BridgeSeen { is_connected, url: "mqtt://hub".into(), last_error: "closed".into() };
            Seen {
                members: hall.into_iter().map(|hall| ("hall".to_owned(), hall)).collect(),
                bridges: [("cloud".to_owned(), bridge)].into(),
                ..Seen::default()
            }
        };
        let of = |before: Seen, now: Seen| {
            changes(&before, &now).into_iter().map(|event| event.kind).collect::<Vec<_>>()
        };
        let (connected, never) = (Some(Presence::Connected), Some(Presence::Away { since: None }));
        let left = Instant::now();
        let away = |since| Some(Presence::Away { since: Some(since) });
        assert_eq!(of(Seen::default(), seen(never, false)), [], "at the start they are not connected yet");
        assert_eq!(of(Seen::default(), seen(connected, true)), [Kind::Member, Kind::Bridge]);
        assert_eq!(
            of(seen(connected, true), seen(away(left), false)),
            [Kind::MemberAway, Kind::BridgeAway]
        );
        assert_eq!(of(seen(connected, true), seen(None, true)), [Kind::MemberAway]);
        assert_eq!(
            of(seen(never, true), seen(away(left), true)),
            [Kind::Member, Kind::MemberAway],
            "it came and went between two looks"
        );
        assert_eq!(of(seen(away(left), true), seen(away(left), true)), []);
        let later = left + Duration::from_secs(1);
        assert_eq!(
            of(seen(away(left), true), seen(away(later), true)),
            [Kind::Member, Kind::MemberAway],
            "it was back for a moment"
        );
        let away = changes(&seen(None, true), &seen(None, false));
        assert_eq!(away[0].text, "bridge `cloud` is not connected to mqtt://hub any more: closed");
    }

    #[test]
    fn dead_letters_are_counted_and_their_functions_named() {
        let seen = |dead, functions: &[&str]| Seen {
            dead,
            last_dead: functions.iter().map(|name| Arc::from(*name)).collect(),
            ..Seen::default()
        };
        let text = |before: &Seen, now: &Seen| {
            let event = changes(before, now).remove(0);
            (event.subject, event.text)
        };
        let of = |subject: &str, text: &str| (subject.to_owned(), text.to_owned());
        let before = seen(2, &["old"]);
        assert_eq!(
            text(&before, &seen(3, &["pay", "old"])),
            of("pay", "a durable invocation of `pay` became a dead letter")
        );
        assert_eq!(
            text(&before, &seen(5, &["b", "a", "b", "old"])),
            of("", "3 durable invocations of `a`, `b` became dead letters")
        );
        assert_eq!(
            text(&before, &seen(6, &["d", "c", "b", "a", "old"])),
            of("", "4 durable invocations of `a`, `b`, `c` and others became dead letters")
        );
        assert_eq!(
            text(&before, &seen(9, &["a", "a"])),
            of("a", "7 durable invocations became dead letters, the last ones of `a`")
        );
        // Retried or given up meanwhile.
        assert_eq!(text(&before, &seen(3, &[])), of("", "a durable invocation became a dead letter"));
        assert_eq!(changes(&before, &before), []);
    }
}
