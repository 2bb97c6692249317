//! The settings in force, each with the place that it comes from.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::Value;
use toml_edit::{Document, Item, TableLike};

use crate::config::NodeConfig;

/// The value of a setting that nobody may see.
const HIDDEN: &str = "***";

/// A setting in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// As in the file, with dots: `broker.max_packet`, `bridges[0].url`.
    pub key: String,
    /// As TOML; empty if it is not set: the feature is off, or the node chooses.
    pub value: String,
    /// The place that it comes from.
    pub origin: SettingOrigin,
}

/// Where a setting comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingOrigin {
    /// The program.
    Default,
    /// This line of the file, from 1.
    File {
        /// The line.
        line: u32,
    },
    /// The command line.
    Option,
}

/// A configuration file as it was read at the start.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// Its path.
    pub path: PathBuf,
    /// Its text.
    pub text: String,
}

/// The settings of a node, in the order of their keys.
#[derive(Debug, Clone, Default)]
pub struct SettingsList {
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// The settings.
    pub settings: Vec<Setting>,
}

impl SettingsList {
    /// The settings of a configuration.
    pub fn of(config: &NodeConfig) -> Self {
        let lines = config.file.as_ref().map(lines_of).unwrap_or_default();
        let read = config.file.as_ref().and_then(|file| NodeConfig::parse(&file.path, &file.text).ok());
        let before = flattened(&read.unwrap_or_default());
        let setting = |(key, value): (String, String)| {
            let origin = match (before.get(&key) == Some(&value), line_of(&lines, &key)) {
                (false, _) => SettingOrigin::Option,
                (true, Some(line)) => SettingOrigin::File { line },
                (true, None) => SettingOrigin::Default,
            };
            let value = if is_secret(&key) && !value.is_empty() { HIDDEN.to_owned() } else { value };
            Setting { key, value, origin }
        };
        Self {
            file: config.file.as_ref().map(|file| file.path.clone()),
            settings: flattened(config).into_iter().map(setting).collect(),
        }
    }
}

/// The values by key. Numbers, texts, truths and lists of them are values; tables are not. What is not set is empty.
fn flattened(config: &NodeConfig) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    // This cannot fail: all keys are texts.
    add(String::new(), &serde_json::to_value(config).unwrap_or_default(), &mut values);
    values
}

fn add(key: String, value: &Value, values: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(table) => {
            for (name, value) in table {
                let key = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                add(key, value, values);
            }
        }
        Value::Array(tables) if tables.iter().any(Value::is_object) => {
            for (number, table) in tables.iter().enumerate() {
                add(format!("{key}[{number}]"), table, values);
            }
        }
        Value::Null => drop(values.insert(key, String::new())),
        // JSON and TOML write these the same way.
        value => drop(values.insert(key, value.to_string())),
    }
}

/// A password may be written into a bridge's URL only as a file's name, but a name that sounds like a secret is not shown.
fn is_secret(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or(key);
    ["password", "token", "secret"].contains(&name) && !key.starts_with("access.jwt")
}

/// The line of a setting: its own, or that of the value that has it.
fn line_of(lines: &BTreeMap<String, u32>, key: &str) -> Option<u32> {
    let mut key = key;
    loop {
        if let Some(line) = lines.get(key) {
            return Some(*line);
        }
        key = key.rsplit_once('.')?.0;
    }
}

/// The lines of the keys of a file, from 1.
fn lines_of(file: &ConfigFile) -> BTreeMap<String, u32> {
    let mut lines = BTreeMap::new();
    if let Ok(document) = Document::parse(&file.text) {
        add_lines("", document.as_table(), &file.text, &mut lines);
    }
    lines
}

fn add_lines(around: &str, table: &dyn TableLike, text: &str, lines: &mut BTreeMap<String, u32>) {
    for (name, item) in table.iter() {
        let key = if around.is_empty() { name.to_owned() } else { format!("{around}.{name}") };
        if let Some(tables) = item.as_array_of_tables() {
            for (number, table) in tables.iter().enumerate() {
                add_lines(&format!("{key}[{number}]"), table, text, lines);
            }
        } else if let Some(table) = item.as_table_like() {
            add_lines(&key, table, text, lines);
        } else if let Some(span) = item.as_value().and_then(|_| Item::span(item)) {
            let before = text.get(..span.start).unwrap_or_default();
            lines.insert(key, 1 + before.matches('\n').count() as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_setting_has_the_place_that_it_comes_from() {
        let text = "http = \"127.0.0.1:9\"\n\n[broker]\nmax_packet = \"1MiB\"\n\n[[bridges]]\nname = \"up\"\n\
                    url = \"mqtt://h\"\ntopics = [{ filter = \"a/#\", direction = \"out\" }]\n";
        let file = ConfigFile { path: "/etc/e.toml".into(), text: text.to_owned() };
        let mut config = NodeConfig::parse(&file.path, text).unwrap();
        config.file = Some(file);
        config.mqtt = "127.0.0.1:7".parse().unwrap();
        let list = SettingsList::of(&config);
        let origin =
            |key: &str| list.settings.iter().find(|setting| setting.key == key).map(|found| found.origin);
        let value =
            |key: &str| list.settings.iter().find(|setting| setting.key == key).map(|found| &*found.value);
        assert_eq!(origin("http"), Some(SettingOrigin::File { line: 1 }));
        assert_eq!(origin("broker.max_packet"), Some(SettingOrigin::File { line: 4 }));
        assert_eq!(origin("bridges[0].name"), Some(SettingOrigin::File { line: 7 }));
        assert_eq!(origin("mqtt"), Some(SettingOrigin::Option));
        assert_eq!(origin("control"), Some(SettingOrigin::Default));
        assert_eq!((value("mqtts"), origin("mqtts")), (Some(""), Some(SettingOrigin::Default)));
        assert_eq!(value("http"), Some("\"127.0.0.1:9\""));
        assert_eq!(value("bridges[0].name"), Some("\"up\""));
        assert_eq!(list.file.as_deref(), Some(Path::new("/etc/e.toml")));
        assert!(list.settings.len() > 60, "{}", list.settings.len());
    }
}
