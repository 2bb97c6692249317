//! `edgefaas new NAME --lang LANG [--template TEMPLATE]`

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use edgefaas_manifest::{Manifest, is_name};
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
    let Some(app) = templates::app(name, args.lang, args.template)? else {
        let there: Vec<_> = templates::templates(args.lang).map(word).collect();
        let message = format!(
            "there is no template {} in {}; choose one of {}, or --lang js",
            word(args.template),
            word(args.lang),
            there.join(", ")
        );
        return Err(Failure::new(Exit::Usage, message));
    };
    for (path, text) in &app.files {
        // A long name, or one that no workflow may have.
        if path == edgefaas_manifest::FILE_NAME {
            Manifest::parse(text, path)?;
        } else if path.ends_with(".yaml") {
            edgefaas_workflow::compile_for_deploy(text, path)?;
        }
    }
    let folder = Path::new(name);
    if folder.exists() {
        let message = format!("`{name}` exists already; choose another name or go to another folder");
        return Err(Failure::new(Exit::Failed, message));
    }
    for (path, text) in app.files.iter().chain(&app.sdk) {
        let path = folder.join(path);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(&path, text)
        };
        write().with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if global.output == Format::Json {
        let paths: Vec<_> = app.files.iter().chain(&app.sdk).map(|(path, _)| path).collect();
        return output::json(&json!({ "app": name, "folder": name, "files": paths }));
    }
    let mut text = String::new();
    for (path, _) in &app.files {
        text.push_str(&format!("wrote {name}/{path}\n"));
    }
    text.push_str(&format!("wrote {name}/{} ({} files)\n", app.sdk_folder, app.sdk.len()));
    match args.lang {
        Language::Python => text.push_str(&format!("next: see {name}/README.md\n")),
        _ => text.push_str(&format!("next: edgefaas dev {name}\n")),
    }
    output::text(&text)
}

/// A value as it is written on the command line.
fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
