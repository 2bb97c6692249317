//! `edgefaas store`

use edgefaas_node::config::NodeConfig;
use edgefaas_state::store::{self, CheckReport, SpaceReport};
use serde_json::json;

use crate::args::{Store, StoreCheck};
use crate::data_owner::act_as_owner;
use edgefaas_client::args::{Format, Global};
use edgefaas_client::exit::{Exit, Failure};
use edgefaas_client::output;

pub fn run(args: &Store, global: &Global) -> anyhow::Result<()> {
    match args {
        Store::Check(args) => check(args, global),
    }
}

fn check(args: &StoreCheck, global: &Global) -> anyhow::Result<()> {
    let config = NodeConfig::load(args.config.as_deref())
        .map_err(|error| Failure::new(Exit::Invalid, error.to_string()))?;
    let data_dir = global.data_dir.clone().unwrap_or(config.data_dir);
    // The engine writes when it opens a store.
    act_as_owner(&data_dir)?;
    let report = store::check(&data_dir)?;
    match global.output {
        Format::Json => output::json(&as_json(&report))?,
        Format::Table => output::text(&as_text(&report))?,
    }
    if report.is_sound() {
        return Ok(());
    }
    let message = format!(
        "the store in {} is damaged; restore the data directory from a backup, or start once with `edgefaas run --accept-loss` to continue \
         without the lost data",
        report.store.display()
    );
    Err(Failure::new(Exit::Failed, message))
}

fn as_json(report: &CheckReport) -> serde_json::Value {
    let space = |space: &SpaceReport| {
        json!({
            "name": space.name,
            "entries": space.entries,
            "tables": space.tables,
            "bytes": space.bytes,
            "unreadable": space.unreadable,
        })
    };
    json!({
        "store": report.store,
        "exists": report.exists,
        "sound": report.is_sound(),
        "damage": report.damage.iter().map(|damage| json!({ "file": damage.path, "problem": damage.to_string() })).collect::<Vec<_>>(),
        "manifests": report.manifests,
        "torn_bytes": report.torn_bytes,
        "spaces": report.spaces.iter().map(space).collect::<Vec<_>>(),
    })
}

fn as_text(report: &CheckReport) -> String {
    if !report.exists && report.damage.is_empty() {
        return format!("{}: there is no store yet\n", report.store.display());
    }
    let mut text = format!("{:<24} {:>10} {:>7} {:>10}\n", "KEY SPACE", "ENTRIES", "TABLES", "SIZE");
    for space in &report.spaces {
        let entries = space.entries.map_or_else(|| "-".to_owned(), |entries| entries.to_string());
        let size = output::size(space.bytes);
        text += &format!("{:<24} {entries:>10} {:>7} {size:>10}\n", space.name, space.tables);
    }
    for manifest in &report.manifests {
        text += &format!("note: {} is missing or damaged; a start writes it again\n", manifest.display());
    }
    if report.torn_bytes > 0 {
        text += &format!(
            "note: the last {} bytes of the store journal are an incomplete change, as after a power cut; a start cuts them off\n",
            report.torn_bytes
        );
    }
    for damage in &report.damage {
        text += &format!("damage: {damage}\n");
    }
    for space in &report.spaces {
        if let Some(problem) = &space.unreadable {
            text += &format!("damage: the key space `{}` cannot be read: {problem}\n", space.name);
        }
    }
    if report.is_sound() {
        text += "the store is sound\n";
    }
    text
}
