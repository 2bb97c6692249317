//! Texts of a secret that are masked: its value, the parts of it that stand alone, and their usual encodings.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::Value;

/// Shorter texts are not masked: they would match too much.
pub const MIN_MASKED_BYTES: usize = 4;
/// Shorter texts inside of a secret that is JSON are not masked.
const MIN_INNER_BYTES: usize = 8;
/// The replacement for a masked text.
const MASK: &str = "***";
/// Ends a text that was cut.
const CUT: &str = "…";
/// Maximum length of the start of a secret that is recognised before a [`CUT`], in bytes.
const MAX_START_BYTES: usize = 4096;

/// The texts that mask one secret.
pub(super) struct Masked {
    /// The longest first: a text may contain a shorter one.
    texts: Vec<String>,
}

impl Masked {
    pub fn of(secret: &str) -> Self {
        let mut texts = Vec::new();
        add_encoded(&mut texts, secret);
        if secret.contains('\n') {
            // Output is logged line by line.
            secret.lines().for_each(|line| add_escaped(&mut texts, line));
        }
        if let Ok(json @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(secret) {
            add_inner(&mut texts, &json);
        }
        texts.retain(|text| text.len() >= MIN_MASKED_BYTES);
        texts.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        Self { texts }
    }
}

/// Replaces the texts of these secrets.
pub(super) fn replace<'s>(secrets: impl Iterator<Item = &'s Masked>, text: String) -> String {
    let mut texts: Vec<&str> = secrets.flat_map(|one| &one.texts).map(String::as_str).collect();
    texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    let mut masked = text;
    for text in &texts {
        if text.len() <= masked.len() && masked.contains(text) {
            masked = masked.replace(text, MASK);
        }
    }
    if masked.contains(CUT) {
        for text in texts {
            masked = replace_cut(text, masked);
        }
    }
    masked
}

/// Replaces the start of `secret` where the text was cut inside of it.
fn replace_cut(secret: &str, text: String) -> String {
    let Some(start) = secret.get(..secret.ceil_char_boundary(MIN_MASKED_BYTES)) else { return text };
    let (mut masked, mut from) = (String::new(), 0);
    let mut search = 0;
    while let Some(found) = text.get(search..).and_then(|rest| rest.find(start)) {
        let at = search + found;
        let pairs = text.as_bytes().iter().skip(at).zip(secret.as_bytes()).take(MAX_START_BYTES);
        let common = pairs.take_while(|(a, b)| a == b).count();
        let end = text.floor_char_boundary(at + common);
        if text.get(end..).is_some_and(|rest| rest.starts_with(CUT)) {
            masked.push_str(&text[from..at]);
            masked.push_str(MASK);
            (from, search) = (end, end);
        } else {
            search = text.ceil_char_boundary(at + 1);
        }
    }
    if from == 0 {
        return text;
    }
    masked.push_str(&text[from..]);
    masked
}

/// Adds a text as it is and as JSON strings show it, also JSON inside of JSON.
fn add_escaped(texts: &mut Vec<String>, text: &str) {
    let escaped = |text: &str| {
        let quoted = Value::from(text).to_string();
        quoted[1..quoted.len() - 1].to_owned()
    };
    let once = escaped(text);
    if once != text {
        texts.push(escaped(&once));
        texts.push(once);
    }
    texts.push(text.to_owned());
}

fn add_encoded(texts: &mut Vec<String>, text: &str) {
    if text.len() < MIN_MASKED_BYTES {
        return;
    }
    add_escaped(texts, text);
    add_url_encoded(texts, text);
    add_base64(texts, text);
}

/// Adds the encodings of forms and of URLs.
fn add_url_encoded(texts: &mut Vec<String>, text: &str) {
    let form: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
    if form != text {
        texts.push(form.replace('+', "%20").replace('*', "%2A").replace("%7E", "~"));
        texts.push(form);
    }
}

/// Adds the base64 of a text, of both alphabets: alone, and the characters that only it determines where other text stands
/// around it, as in `user:password`.
fn add_base64(texts: &mut Vec<String>, text: &str) {
    for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
        let alone = engine.encode(text);
        texts.push(format!("{alone}{}", "=".repeat((4 - alone.len() % 4) % 4)));
        texts.push(alone);
        for before in 0..3 {
            let mut bytes = vec![0; before];
            bytes.extend_from_slice(text.as_bytes());
            let encoded = engine.encode(&bytes);
            let (first, last) = ((before * 8).div_ceil(6), bytes.len() * 8 / 6);
            // Four characters would match too much.
            texts.extend(encoded.get(first..last).filter(|part| part.len() > 4).map(str::to_owned));
        }
    }
}

/// Adds the strings inside of a JSON secret, with their encodings. A web address is no secret by itself.
fn add_inner(texts: &mut Vec<String>, json: &Value) {
    match json {
        Value::String(text) => {
            let is_address = ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme));
            if text.len() >= MIN_INNER_BYTES && !is_address {
                add_encoded(texts, text);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_inner(texts, item)),
        Value::Object(fields) => fields.values().for_each(|value| add_inner(texts, value)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(secret: &str, text: &str) -> String {
        replace([Masked::of(secret)].iter(), text.to_owned())
    }

    #[test]
    fn a_secret_is_recognised_in_its_usual_encodings() {
        let secret = "pass/word ~\"ü\"+1";
        let standard = base64::engine::general_purpose::STANDARD.encode(secret);
        let json = Value::from(secret).to_string();
        for text in [
            secret.to_owned(),
            json.clone(),
            Value::from(json).to_string(),
            standard.clone(),
            standard.trim_end_matches('=').to_owned(),
            base64::engine::general_purpose::URL_SAFE.encode(secret),
            "pass%2Fword%20~%22%C3%BC%22%2B1".to_owned(),
            "pass%2Fword+%7E%22%C3%BC%22%2B1".to_owned(),
        ] {
            let shown = masked(secret, &format!("<{text}>"));
            let rest = shown.replace(['<', '>', '"', '\\'], "");
            assert_eq!(rest, "***", "{text}");
        }
        assert_eq!(masked("abc", "abc YWJj"), "abc YWJj", "too short");
        assert_eq!(masked(secret, "pass/word"), "pass/word", "a part is not recognised");
    }

    #[test]
    fn a_secret_is_recognised_in_the_base64_of_a_longer_text() {
        let secret = "s3cret-key-of-the-shop";
        for before in ["u:", "us:", "use:", "user:"] {
            for after in ["", "x", "xy", "xyz"] {
                let encoded = STANDARD_NO_PAD.encode(format!("{before}{secret}{after}"));
                let shown = masked(secret, &encoded);
                assert!(shown.contains("***"), "{before} {after}: {shown}");
                let kept = (before.len() + after.len()) * 8 / 6 + 4;
                assert!(shown.len() <= kept + MASK.len(), "{before} {after}: {shown}");
            }
        }
    }

    #[test]
    fn the_start_of_a_secret_is_recognised_where_a_text_was_cut() {
        let secret = "ünique-\"value\"-of-a-secret";
        assert_eq!(
            masked(secret, "cannot parse ünique-\"va… as a number"),
            "cannot parse ***… as a number"
        );
        assert_eq!(masked(secret, "[ünique-\\\"value\\… ünique-…"), "[***… ***…");
        assert_eq!(masked(secret, "ünique- and ün…"), "ünique- and ün…", "not cut, or too short");
        assert_eq!(masked("aaaaaaaa", "aaaaaa…"), "***…");
    }

    #[test]
    fn lines_and_json_strings_of_a_secret_are_recognised() {
        assert_eq!(masked("first line\nsecond", "second, first line"), "***, ***");
        let secret =
            r#"{"authority": "https://login.example", "client": {"id": "shop", "secret": "pass-word"}}"#;
        let text = "https://login.example shop pass-word";
        assert_eq!(masked(secret, text), "https://login.example shop ***");
    }
}
