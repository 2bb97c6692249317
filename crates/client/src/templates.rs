//! The files of a new app.

use crate::args::{Language, Template};
use crate::sdk_sources::{self, Part};

/// The folder of an app with the SDK of the program that made it.
const SDK_FOLDER: &str = "vendor/edgefaas-sdk";

/// Manifest of an app; in all texts `{{name}}` is the app's name.
fn manifest(template: Template) -> &'static str {
    match template {
        Template::Http => include_str!("../templates/manifests/http.toml"),
        Template::Mqtt => include_str!("../templates/manifests/mqtt.toml"),
        Template::Cron => include_str!("../templates/manifests/cron.toml"),
        Template::Workflow => include_str!("../templates/manifests/workflow.toml"),
        Template::Hono => include_str!("../templates/manifests/hono.toml"),
    }
}

/// The function of an app: its path in the app folder, and its text. `None` if the language has no such template.
fn function(language: Language, template: Template) -> Option<(&'static str, &'static str)> {
    macro_rules! text {
        ($file:literal) => {
            include_str!(concat!("../templates/", $file))
        };
    }
    let text = match (language, template) {
        (Language::Js, Template::Http) => text!("js/http.js"),
        (Language::Js, Template::Mqtt) => text!("js/mqtt.js"),
        (Language::Js, Template::Cron) => text!("js/cron.js"),
        (Language::Js, Template::Workflow) => text!("js/workflow.js"),
        (Language::Js, Template::Hono) => text!("js/hono.js"),
        (Language::Ts, Template::Http) => text!("ts/http.ts"),
        (Language::Ts, Template::Mqtt) => text!("ts/mqtt.ts"),
        (Language::Ts, Template::Cron) => text!("ts/cron.ts"),
        (Language::Ts, Template::Workflow) => text!("ts/workflow.ts"),
        (Language::Ts, Template::Hono) => text!("ts/hono.ts"),
        (Language::Rust, Template::Http) => text!("rust/http.rs"),
        (Language::Rust, Template::Mqtt) => text!("rust/mqtt.rs"),
        (Language::Rust, Template::Cron) => text!("rust/cron.rs"),
        (Language::Rust, Template::Workflow) => text!("rust/workflow.rs"),
        (Language::Python, Template::Http) => text!("python/http.py"),
        (Language::Python, Template::Mqtt) => text!("python/mqtt.py"),
        (Language::Python, Template::Cron) => text!("python/cron.py"),
        (Language::Python, Template::Workflow) => text!("python/workflow.py"),
        (Language::Rust | Language::Python, Template::Hono) => return None,
    };
    let path = match language {
        Language::Js => "functions/{{name}}.js",
        Language::Ts => "functions/{{name}}.ts",
        Language::Rust => "src/lib.rs",
        Language::Python => "app.py",
    };
    Some((path, text))
}

/// Files that all apps of a language have: path and text.
fn shared(language: Language) -> &'static [(&'static str, &'static str)] {
    match language {
        Language::Js => &[
            ("package.json", include_str!("../templates/js/package.json")),
            ("jsconfig.json", include_str!("../templates/js/jsconfig.json")),
            ("README.md", include_str!("../templates/js/README.md")),
            (".gitignore", include_str!("../templates/js/gitignore")),
        ],
        Language::Ts => &[
            ("package.json", include_str!("../templates/js/package.json")),
            ("tsconfig.json", include_str!("../templates/ts/tsconfig.json")),
            ("README.md", include_str!("../templates/ts/README.md")),
            (".gitignore", include_str!("../templates/ts/gitignore")),
        ],
        Language::Rust => &[
            ("Cargo.toml", include_str!("../templates/rust/Cargo.toml")),
            ("README.md", include_str!("../templates/rust/README.md")),
            (".gitignore", include_str!("../templates/rust/gitignore")),
        ],
        Language::Python => &[
            ("README.md", include_str!("../templates/python/README.md")),
            (".gitignore", include_str!("../templates/python/gitignore")),
        ],
    }
}

/// The value of `main` in the manifest.
fn main_of(language: Language) -> &'static str {
    match language {
        Language::Js => "functions/{{name}}.js",
        Language::Ts => "functions/{{name}}.ts",
        Language::Rust => ".",
        Language::Python => "app.wasm",
    }
}

/// A command that runs the function, for the README.
fn example(template: Template) -> &'static str {
    match template {
        Template::Http => "curl http://127.0.0.1:8080/{{name}} -d Ada",
        Template::Mqtt => r#"mosquitto_pub -t {{name}}/north/reading -m '{"celsius": 41}'"#,
        Template::Cron => "mosquitto_sub -t {{name}}/tick",
        Template::Workflow => r#"curl http://127.0.0.1:8080/workflows/{{name}} -d '{"pieces": 6}'"#,
        Template::Hono => "curl http://127.0.0.1:8080/{{name}}/hello/Ada",
    }
}

/// The templates of a language.
pub fn templates(language: Language) -> impl Iterator<Item = Template> {
    Template::ALL.into_iter().filter(move |template| function(language, *template).is_some())
}

/// A new app.
pub struct NewApp {
    /// Its files: path and text.
    pub files: Vec<(String, String)>,
    /// The files of the SDK in it: path and text.
    pub sdk: Vec<(String, String)>,
    /// The folder of those.
    pub sdk_folder: &'static str,
}

/// The files of a new app; `None` if the language has no such template.
///
/// # Errors
/// This binary is damaged.
pub fn app(name: &str, language: Language, template: Template) -> anyhow::Result<Option<NewApp>> {
    let Some(function) = function(language, template) else { return Ok(None) };
    let (dependencies, first) = match template {
        Template::Hono => ("\n    \"hono\": \"^4.6.0\"\n  ", "npm install\n"),
        _ => ("", ""),
    };
    let fill = |text: &str| {
        text.replace("{{main}}", main_of(language))
            .replace("{{try}}", example(template))
            .replace("{{first}}", first)
            .replace("{{dependencies}}", dependencies)
            .replace("{{name}}", name)
    };
    let mut files = vec![(fill("edgefaas.toml"), fill(manifest(template)))];
    files.push((fill(function.0), fill(function.1)));
    if template == Template::Workflow {
        files.push((fill("workflows/{{name}}.yaml"), fill(include_str!("../templates/workflow.yaml"))));
    }
    files.extend(shared(language).iter().map(|(path, text)| (fill(path), fill(text))));
    let (part, sdk_folder) = match language {
        Language::Rust => (Part::Rust, SDK_FOLDER),
        Language::Js | Language::Ts => (Part::Js, SDK_FOLDER),
        Language::Python => (Part::Wit, "wit"),
    };
    let sdk = sdk_sources::files(part)?;
    let sdk = sdk.into_iter().map(|(path, text)| (format!("{sdk_folder}/{path}"), text)).collect();
    Ok(Some(NewApp { files, sdk, sdk_folder }))
}

#[cfg(test)]
mod tests {
    use edgefaas_manifest::Manifest;

    use super::*;

    #[test]
    fn the_templates_are_filled_and_their_manifests_are_valid() {
        for language in [Language::Rust, Language::Js, Language::Ts, Language::Python] {
            for template in templates(language) {
                let NewApp { files, .. } = app("my-app", language, template).unwrap().unwrap();
                for (path, text) in &files {
                    assert!(!path.contains("{{") && !text.contains("{{"), "{path}:\n{text}");
                    if path.ends_with(".json") {
                        serde_json::from_str::<serde_json::Value>(text).expect(path);
                    }
                    if path.ends_with(".yaml") {
                        edgefaas_workflow::compile_for_deploy(text, path).expect(path);
                    }
                }
                let (_, manifest) = files.iter().find(|(path, _)| path == "edgefaas.toml").unwrap();
                let manifest = Manifest::parse(manifest, "edgefaas.toml").unwrap();
                assert_eq!(manifest.app, "my-app");
                let main = &manifest.functions.values().next().unwrap().main;
                let is_made =
                    main == "." || main == "app.wasm" || files.iter().any(|(path, _)| path == main);
                assert!(is_made, "{language:?} {template:?}: {main}");
            }
        }
    }
}
