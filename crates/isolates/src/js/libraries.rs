//! Texts of rare globals, which an isolate asks for when a function uses one of them.

/// Name and text of each library. The engine's `groups.rs` says which globals they define.
static LIBRARIES: &[(&str, &str)] = &[
    ("inspect", include_str!("../../js-engine/src/libraries/inspect.js")),
    ("console", include_str!("../../js-engine/src/libraries/console.js")),
    ("events", include_str!("../../js-engine/src/libraries/events.js")),
    ("streams", include_str!("../../js-engine/src/libraries/streams.js")),
    ("writable", include_str!("../../js-engine/src/libraries/writable.js")),
    ("transform", include_str!("../../js-engine/src/libraries/transform.js")),
    ("compression", include_str!("../../js-engine/src/libraries/compression.js")),
    ("blob", include_str!("../../js-engine/src/libraries/blob.js")),
    ("subtle", include_str!("../../js-engine/src/libraries/subtle.js")),
    ("subtle_public", include_str!("../../js-engine/src/libraries/subtle_public.js")),
    ("subtle_secret", include_str!("../../js-engine/src/libraries/subtle_secret.js")),
    ("encodings", include_str!("../../js-engine/src/libraries/encodings.js")),
    ("intl", include_str!("../../js-engine/src/libraries/intl.js")),
    ("intl_number", include_str!("../../js-engine/src/libraries/intl_number.js")),
    ("intl_date", include_str!("../../js-engine/src/libraries/intl_date.js")),
    ("intl_text", include_str!("../../js-engine/src/libraries/intl_text.js")),
    ("intl_collator", include_str!("../../js-engine/src/libraries/intl_collator.js")),
    ("intl_zones", include_str!("../../js-engine/src/libraries/intl_zones.js")),
    ("objects", include_str!("../../js-engine/src/libraries/objects.js")),
];

/// The text of a library. None if there is none of that name.
pub fn text(name: &str) -> Option<&'static str> {
    LIBRARIES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Digest of all texts, which snapshots depend on.
pub fn digest() -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for (name, text) in LIBRARIES {
        hasher.update(name.as_bytes()).update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.finalize()
}
