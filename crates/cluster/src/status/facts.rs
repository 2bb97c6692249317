//! Facts of a node that change seldom: its place in the cluster, and its apps.

use std::collections::HashSet;

use bytes::Bytes;
use edgefaas_platform::is_label;
use prost::Message as _;

use super::wire::{AppWire, FactsWire};
use super::{MAX_FACTS_BYTES, StatusError, at_most, check_length};
use crate::wire::APP_BYTES;

/// Maximum number of labels of a node.
pub const MAX_LABELS: usize = 32;
/// Maximum length of the reason of a failure, in bytes.
pub const MAX_REASON_BYTES: usize = 200;
/// Maximum number of schedules that are reported of an app. During a deploy of an app with more, an occurrence of the others may
/// fire on a node of each revision.
pub const MAX_SCHEDULES: usize = 64;
/// Maximum length of a software version, in bytes.
const MAX_SOFTWARE_BYTES: usize = 64;
/// More apps do not fit.
const MAX_APPS: usize = 4_096;
/// Length of the tag and of the length of an app in the facts.
const APP_HEADER_BYTES: usize = 4;
/// Reserved for `apps_omitted`.
const OMITTED_BYTES: usize = 8;

/// Facts of a node, as it reports them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The zone; `None` if it is unknown.
    pub zone: Option<Zone>,
    /// The labels: at most [`MAX_LABELS`], each valid by [`is_label`].
    pub labels: Vec<String>,
    /// The software version, for people to read.
    pub software: String,
    /// The apps.
    pub apps: Vec<AppFact>,
    /// Number of apps that did not fit.
    pub apps_omitted: u32,
    /// The placement policies; `None` if the node has none.
    pub policy: Option<PolicyFact>,
}

/// The zone of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    /// The name; valid by [`is_label`].
    pub name: String,
    /// Its source.
    pub source: ZoneSource,
}

/// The source of a node's zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneSource {
    /// The configuration.
    Configured,
    /// Round-trip times between the nodes.
    Measured,
}

/// An app on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppFact {
    /// The app's name.
    pub app: String,
    /// The live revision; `None` if the app is not live there.
    pub live: Option<LiveRevision>,
    /// The decision of the cluster that the node has not carried out yet.
    pub next: Option<NextRevision>,
    /// True while objects of its functions have not arrived from the other members. False from nodes of older versions.
    pub lacks_objects: bool,
    /// Digests of the schedules of the live revision, see [`schedule_digest`](crate::occurrences::schedule_digest); at most
    /// [`MAX_SCHEDULES`]. None from nodes of older versions.
    pub schedules: Vec<u32>,
}

/// A revision that is live on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveRevision {
    /// Its digest.
    pub revision: [u8; 32],
    /// The nodes that run its functions.
    pub runs: Runs,
    /// The number of the decision of the cluster that the node has carried out, or that a deploy to it alone overrides; 0 for
    /// none.
    pub number: u64,
}

/// The nodes that run the functions of a live app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// This one, as the cluster has decided.
    Here,
    /// Other ones: this node knows its manifest.
    Elsewhere,
    /// This one, to which alone it was deployed.
    HereAlone,
}

/// A revision that is to become live on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NextRevision {
    /// Its digest; `None` for the removal of the app.
    pub revision: Option<[u8; 32]>,
    /// Its state.
    pub state: NextState,
}

/// The state of a revision that is to become live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextState {
    /// It is being fetched.
    Fetching {
        /// The part that has arrived, in permille.
        permille: u16,
    },
    /// It could not be made live; the node tries again.
    Failed {
        /// The cause; at most [`MAX_REASON_BYTES`].
        reason: String,
    },
}

/// The newest placement policies that a node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyFact {
    /// BLAKE3 digest of their text.
    pub digest: [u8; 32],
    /// The reason why they are not in force on the node; at most [`MAX_REASON_BYTES`].
    pub refused: Option<String>,
}

impl Facts {
    /// The bytes for [`Handle::set_facts`](crate::Handle::set_facts). Keeps to the limits: apps that do not fit into
    /// [`MAX_FACTS_BYTES`] are omitted and counted, those at the end first; long reasons are cut; surplus labels are omitted.
    pub fn encode(&self) -> Bytes {
        let mut wire = FactsWire {
            zone: self.zone.as_ref().map(|zone| zone.name.clone()).unwrap_or_default(),
            zone_is_measured: self.zone.as_ref().is_some_and(|zone| zone.source == ZoneSource::Measured),
            labels: self.labels.iter().take(MAX_LABELS).cloned().collect(),
            software: cut(&self.software, MAX_SOFTWARE_BYTES).to_owned(),
            apps: Vec::new(),
            apps_omitted: self.apps_omitted,
            policy: self.policy.as_ref().map_or_else(Bytes::new, |policy| digest_bytes(&policy.digest)),
            policy_refused: self.policy.as_ref().is_some_and(|policy| policy.refused.is_some()),
            policy_reason: match self.policy.as_ref().and_then(|policy| policy.refused.as_deref()) {
                Some(reason) => cut(reason, MAX_REASON_BYTES).to_owned(),
                None => String::new(),
            },
        };
        let mut bytes = wire.encoded_len() + OMITTED_BYTES;
        for (index, app) in self.apps.iter().enumerate() {
            let encoded = app.to_wire();
            bytes += encoded.encoded_len() + APP_HEADER_BYTES;
            if bytes > MAX_FACTS_BYTES || index >= MAX_APPS {
                let omitted = u32::try_from(self.apps.len() - index).unwrap_or(u32::MAX);
                wire.apps_omitted = wire.apps_omitted.saturating_add(omitted);
                break;
            }
            wire.apps.push(encoded);
        }
        wire.encode_to_vec().into()
    }

    /// Reads the facts of a peer. Apps in a state that only newer versions know are counted as omitted.
    ///
    /// # Errors
    /// `StatusError` if they are too long, no protocol buffers, over a limit, or have an invalid name or number.
    pub fn decode(bytes: &[u8]) -> Result<Self, StatusError> {
        check_length(bytes, MAX_FACTS_BYTES)?;
        let wire = FactsWire::decode(bytes)?;
        at_most("labels", wire.labels.len(), MAX_LABELS)?;
        at_most("software", wire.software.len(), MAX_SOFTWARE_BYTES)?;
        at_most("apps", wire.apps.len(), MAX_APPS)?;
        if !wire.labels.iter().all(|label| is_label(label)) {
            return Err(StatusError::Invalid { field: "labels" });
        }
        if wire.software.chars().any(char::is_control) {
            return Err(StatusError::Invalid { field: "software" });
        }
        let source = if wire.zone_is_measured { ZoneSource::Measured } else { ZoneSource::Configured };
        let zone = match wire.zone {
            name if name.is_empty() => None,
            name if is_label(&name) => Some(Zone { name, source }),
            _ => return Err(StatusError::Invalid { field: "zone" }),
        };
        at_most("policy_reason", wire.policy_reason.len(), MAX_REASON_BYTES)?;
        let policy = digest(&wire.policy, "policy")?.map(|digest| PolicyFact {
            digest,
            refused: wire.policy_refused.then_some(wire.policy_reason),
        });
        let mut facts = Self {
            zone,
            labels: wire.labels,
            software: wire.software,
            apps: Vec::with_capacity(wire.apps.len()),
            apps_omitted: wire.apps_omitted,
            policy,
        };
        let mut names = HashSet::with_capacity(wire.apps.len());
        for app in wire.apps {
            if !names.insert(app.app.clone()) {
                return Err(StatusError::Invalid { field: "apps" });
            }
            match AppFact::from_wire(app)? {
                Some(app) => facts.apps.push(app),
                None => facts.apps_omitted = facts.apps_omitted.saturating_add(1),
            }
        }
        Ok(facts)
    }
}

impl AppFact {
    fn to_wire(&self) -> AppWire {
        let runs = match self.live.map(|live| live.runs) {
            None | Some(Runs::Here) => 0,
            Some(Runs::Elsewhere) => 1,
            Some(Runs::HereAlone) => 2,
        };
        let (state, permille, reason) = match self.next.as_ref().map(|next| &next.state) {
            None => (0, 0, ""),
            Some(NextState::Fetching { permille }) => (1, *permille, ""),
            Some(NextState::Failed { reason }) => (2, 0, cut(reason, MAX_REASON_BYTES)),
        };
        let next = self.next.as_ref().and_then(|next| next.revision.as_ref());
        AppWire {
            app: self.app.clone(),
            live: self.live.map_or_else(Bytes::new, |live| digest_bytes(&live.revision)),
            runs,
            number: self.live.map_or(0, |live| live.number),
            next: next.map_or_else(Bytes::new, digest_bytes),
            state,
            permille: permille.into(),
            reason: reason.to_owned(),
            lacks_objects: self.lacks_objects,
            schedules: self.schedules.iter().take(MAX_SCHEDULES).copied().collect(),
        }
    }

    /// `None` for a state of a newer version.
    fn from_wire(wire: AppWire) -> Result<Option<Self>, StatusError> {
        at_most("app", wire.app.len(), APP_BYTES)?;
        at_most("permille", wire.permille as usize, 1_000)?;
        at_most("reason", wire.reason.len(), MAX_REASON_BYTES)?;
        at_most("schedules", wire.schedules.len(), MAX_SCHEDULES)?;
        if wire.app.is_empty() || wire.app.chars().any(char::is_control) {
            return Err(StatusError::Invalid { field: "app" });
        }
        let runs = match wire.runs {
            0 => Runs::Here,
            1 => Runs::Elsewhere,
            2 => Runs::HereAlone,
            _ => return Ok(None),
        };
        let live = digest(&wire.live, "live")?.map(|revision| LiveRevision {
            revision,
            runs,
            number: wire.number,
        });
        let state = match wire.state {
            0 => None,
            1 => Some(NextState::Fetching { permille: wire.permille as u16 }),
            2 => Some(NextState::Failed { reason: wire.reason }),
            _ => return Ok(None),
        };
        let revision = digest(&wire.next, "next")?;
        let next = state.map(|state| NextRevision { revision, state });
        Ok(Some(Self {
            app: wire.app,
            live,
            next,
            lacks_objects: wire.lacks_objects,
            schedules: wire.schedules,
        }))
    }
}

fn digest_bytes(digest: &[u8; 32]) -> Bytes {
    Bytes::copy_from_slice(digest)
}

/// A digest, or none if the field is empty.
fn digest(bytes: &[u8], field: &'static str) -> Result<Option<[u8; 32]>, StatusError> {
    match bytes {
        [] => Ok(None),
        bytes => bytes.try_into().map(Some).map_err(|_| StatusError::Invalid { field }),
    }
}

/// The beginning of a text, in at most `limit_bytes`.
fn cut(text: &str, limit_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(limit_bytes)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn runs() -> impl Strategy<Value = Runs> {
        prop_oneof![Just(Runs::Here), Just(Runs::Elsewhere), Just(Runs::HereAlone)]
    }

    fn states() -> impl Strategy<Value = NextState> {
        prop_oneof![
            (0_u16..=1_000).prop_map(|permille| NextState::Fetching { permille }),
            "[a-zé]{0,90}".prop_map(|reason| NextState::Failed { reason }),
        ]
    }

    prop_compose! {
        fn app()(
            live in prop::option::of((any::<[u8; 32]>(), runs(), any::<u64>())),
            next in prop::option::of((any::<Option<[u8; 32]>>(), states())),
            lacks_objects in any::<bool>(),
            schedules in vec(any::<u32>(), 0..=MAX_SCHEDULES),
        ) -> AppFact {
            let live = live.map(|(revision, runs, number)| LiveRevision { revision, runs, number });
            let next = next.map(|(revision, state)| NextRevision { revision, state });
            AppFact { app: String::new(), live, next, lacks_objects, schedules }
        }
    }

    prop_compose! {
        fn facts()(
            zone in prop::option::of(("[a-z0-9._=-]{1,63}", any::<bool>())),
            labels in vec("[A-Za-z0-9._=-]{1,63}", 0..=MAX_LABELS),
            software in "[0-9.]{0,20}",
            apps in prop::collection::btree_map("[a-z-]{1,40}", app(), 0..40),
            apps_omitted in any::<u32>(),
            policy in prop::option::of((any::<[u8; 32]>(), prop::option::of("[a-zé]{0,90}"))),
        ) -> Facts {
            let source = |measured| if measured { ZoneSource::Measured } else { ZoneSource::Configured };
            let apps = apps.into_iter();
            Facts {
                zone: zone.map(|(name, measured)| Zone { name, source: source(measured) }),
                labels, software, apps_omitted,
                apps: apps.map(|(app, fact)| AppFact { app, ..fact }).collect(),
                policy: policy.map(|(digest, refused)| PolicyFact { digest, refused }),
            }
        }
    }

    proptest! {
        #[test]
        fn facts_come_out_as_they_went_in(facts in facts()) {
            prop_assert_eq!(Facts::decode(&facts.encode()), Ok(facts));
        }

        #[test]
        fn any_bytes_are_facts_or_refused(bytes in vec(any::<u8>(), 0..300)) {
            if let Ok(facts) = Facts::decode(&bytes) {
                prop_assert_eq!(Facts::decode(&facts.encode()), Ok(facts));
            }
        }

        #[test]
        fn altered_facts_are_facts_or_refused(facts in facts(), at in any::<prop::sample::Index>(), byte: u8) {
            let mut bytes = facts.encode().to_vec();
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
                if let Ok(facts) = Facts::decode(&bytes) {
                    prop_assert_eq!(Facts::decode(&facts.encode()), Ok(facts));
                }
            }
        }
    }

    #[test]
    fn apps_that_do_not_fit_are_counted() {
        let reason = "é".repeat(MAX_REASON_BYTES);
        let app = |number: usize| AppFact {
            app: format!("{number:0>200}"),
            live: None,
            next: Some(NextRevision {
                revision: Some([7; 32]),
                state: NextState::Failed { reason: reason.clone() },
            }),
            lacks_objects: false,
            schedules: Vec::new(),
        };
        let facts = Facts { apps: (0..1_000).map(app).collect(), ..Facts::default() };
        let bytes = facts.encode();
        assert!(bytes.len() <= MAX_FACTS_BYTES && bytes.len() > MAX_FACTS_BYTES - 1_000, "{}", bytes.len());
        let decoded = Facts::decode(&bytes).unwrap();
        assert_eq!(decoded.apps.len() + decoded.apps_omitted as usize, 1_000);
        let state = NextState::Failed { reason: "é".repeat(MAX_REASON_BYTES / 2) };
        assert_eq!(decoded.apps[0].next.as_ref().unwrap().state, state);
    }

    #[test]
    fn invalid_facts_are_refused() {
        let app = |app: &str| AppWire { app: app.into(), live: vec![1; 32].into(), ..AppWire::default() };
        let cases = [
            (FactsWire { zone: "a b".into(), ..FactsWire::default() }, "zone"),
            (FactsWire { labels: vec![String::new()], ..FactsWire::default() }, "labels"),
            (FactsWire { labels: vec!["a".into(); 33], ..FactsWire::default() }, "labels"),
            (FactsWire { software: "\u{1b}[2J".into(), ..FactsWire::default() }, "software"),
            (FactsWire { apps: vec![app("a"), app("a")], ..FactsWire::default() }, "apps"),
            (FactsWire { apps: vec![app("a\n")], ..FactsWire::default() }, "app"),
            (FactsWire { apps: vec![app(&"a".repeat(256))], ..FactsWire::default() }, "app"),
            (
                FactsWire {
                    apps: vec![AppWire { live: vec![1; 31].into(), ..app("a") }],
                    ..FactsWire::default()
                },
                "live",
            ),
            (FactsWire { policy: vec![1; 31].into(), ..FactsWire::default() }, "policy"),
            (
                FactsWire { apps: vec![AppWire { permille: 1_001, ..app("a") }], ..FactsWire::default() },
                "permille",
            ),
        ];
        for (wire, wrong) in cases {
            match Facts::decode(&wire.encode_to_vec()) {
                Err(StatusError::Invalid { field } | StatusError::TooMany { field, .. }) => {
                    assert_eq!(field, wrong);
                }
                decoded => panic!("{wrong}: {decoded:?}"),
            }
        }
        let newer = FactsWire { apps: vec![AppWire { state: 9, ..app("a") }], ..FactsWire::default() };
        let decoded = Facts::decode(&newer.encode_to_vec()).unwrap();
        assert_eq!((decoded.apps.len(), decoded.apps_omitted), (0, 1));
    }
}
