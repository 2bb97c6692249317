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
    /// The apps that were deployed to the cluster.
    pub apps: Vec<AppFact>,
    /// Number of apps that did not fit.
    pub apps_omitted: u32,
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
    /// The digest of the revision that `state` is about.
    pub revision: [u8; 32],
    /// The state of the revision.
    pub state: AppState,
    /// True while objects of its functions have not arrived from the other members. False from nodes of older versions.
    pub lacks_objects: bool,
}

/// The state of a revision on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppState {
    /// It is live, and the node runs its functions.
    Live,
    /// Its manifest is known; other nodes run its functions.
    Elsewhere,
    /// It is being fetched.
    Fetching {
        /// The part that has arrived, in permille.
        permille: u16,
    },
    /// It could not be made live.
    Failed {
        /// The cause; at most [`MAX_REASON_BYTES`].
        reason: String,
    },
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
        let mut facts = Self {
            zone,
            labels: wire.labels,
            software: wire.software,
            apps: Vec::with_capacity(wire.apps.len()),
            apps_omitted: wire.apps_omitted,
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
        let (state, permille, reason) = match &self.state {
            AppState::Live => (0, 0, ""),
            AppState::Elsewhere => (1, 0, ""),
            AppState::Fetching { permille } => (2, *permille, ""),
            AppState::Failed { reason } => (3, 0, cut(reason, MAX_REASON_BYTES)),
        };
        AppWire {
            app: self.app.clone(),
            revision: Bytes::copy_from_slice(&self.revision),
            state,
            permille: permille.into(),
            reason: reason.to_owned(),
            lacks_objects: self.lacks_objects,
        }
    }

    /// `None` for a state of a newer version.
    fn from_wire(wire: AppWire) -> Result<Option<Self>, StatusError> {
        at_most("app", wire.app.len(), APP_BYTES)?;
        at_most("permille", wire.permille as usize, 1_000)?;
        at_most("reason", wire.reason.len(), MAX_REASON_BYTES)?;
        if wire.app.is_empty() || wire.app.chars().any(char::is_control) {
            return Err(StatusError::Invalid { field: "app" });
        }
        let revision =
            wire.revision.as_ref().try_into().map_err(|_| StatusError::Invalid { field: "revision" })?;
        let state = match wire.state {
            0 => AppState::Live,
            1 => AppState::Elsewhere,
            2 => AppState::Fetching { permille: wire.permille as u16 },
            3 => AppState::Failed { reason: wire.reason },
            _ => return Ok(None),
        };
        Ok(Some(Self { app: wire.app, revision, state, lacks_objects: wire.lacks_objects }))
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

    fn states() -> impl Strategy<Value = AppState> {
        prop_oneof![
            Just(AppState::Live),
            Just(AppState::Elsewhere),
            (0_u16..=1_000).prop_map(|permille| AppState::Fetching { permille }),
            "[a-zé]{0,90}".prop_map(|reason| AppState::Failed { reason }),
        ]
    }

    prop_compose! {
        fn facts()(
            zone in prop::option::of(("[a-z0-9._=-]{1,63}", any::<bool>())),
            labels in vec("[A-Za-z0-9._=-]{1,63}", 0..=MAX_LABELS),
            software in "[0-9.]{0,20}",
            apps in prop::collection::btree_map("[a-z-]{1,40}", (any::<[u8; 32]>(), states(), any::<bool>()), 0..40),
            apps_omitted in any::<u32>(),
        ) -> Facts {
            let source = |measured| if measured { ZoneSource::Measured } else { ZoneSource::Configured };
            let apps = apps.into_iter();
            Facts {
                zone: zone.map(|(name, measured)| Zone { name, source: source(measured) }),
                labels, software, apps_omitted,
                apps: apps
                    .map(|(app, (revision, state, lacks_objects))| AppFact { app, revision, state, lacks_objects })
                    .collect(),
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
            revision: [7; 32],
            state: AppState::Failed { reason: reason.clone() },
            lacks_objects: false,
        };
        let facts = Facts { apps: (0..1_000).map(app).collect(), ..Facts::default() };
        let bytes = facts.encode();
        assert!(bytes.len() <= MAX_FACTS_BYTES && bytes.len() > MAX_FACTS_BYTES - 1_000, "{}", bytes.len());
        let decoded = Facts::decode(&bytes).unwrap();
        assert_eq!(decoded.apps.len() + decoded.apps_omitted as usize, 1_000);
        assert_eq!(decoded.apps[0].state, AppState::Failed { reason: "é".repeat(MAX_REASON_BYTES / 2) });
    }

    #[test]
    fn invalid_facts_are_refused() {
        let app =
            |app: &str| AppWire { app: app.into(), revision: vec![1; 32].into(), ..AppWire::default() };
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
                    apps: vec![AppWire { revision: vec![1; 31].into(), ..app("a") }],
                    ..FactsWire::default()
                },
                "revision",
            ),
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
