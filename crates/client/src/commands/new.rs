//! `edgefaas new NAME --lang rust|js`

use std::path::Path;

use anyhow::Context;
use edgefaas_manifest::is_name;
use serde_json::json;

use crate::args::{Format, Global, Language, New};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::templates;

pub fn run(args: &New, global: &Global) -> anyhow::Result<()> {
    let name = &args.name;
    if !is_name(name) {
        let message = format!(
            "`{name}` is not a name: a name has 1 to 63 of a-z, 0-9, `_` and `-`, and starts with a letter or a \
             digit"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    if args.lang == Language::Rust && name.starts_with(|first: char| first.is_ascii_digit()) {
        let message = format!("`{name}` cannot name a crate; start it with a letter");
        return Err(Failure::new(Exit::Usage, message));
    }
    let folder = Path::new(name);
    if folder.exists() {
        let message = format!("`{name}` exists already; choose another name or go to another folder");
        return Err(Failure::new(Exit::Failed, message));
    }
    let files = templates::files(name, args.lang);
    for (path, text) in &files {
        let path = folder.join(path);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(&path, text)
        };
        write().with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if global.output == Format::Json {
        let paths: Vec<_> = files.iter().map(|(path, _)| path).collect();
        return output::json(&json!({ "app": name, "folder": name, "files": paths }));
    }
    let mut text = String::new();
    for (path, _) in &files {
        text.push_str(&format!("wrote {name}/{path}\n"));
    }
    text.push_str(&format!("next: edgefaas dev {name}\n"));
    output::text(&text)
}
