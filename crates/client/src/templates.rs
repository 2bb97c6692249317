//! The files of a new app.

use std::path::Path;

use crate::args::Language;

/// Pairs of a path inside the new folder and a text, in which `{{name}}` is the app's name and
/// `{{sdk_dependency}}` the value of `edgefaas-sdk =` in Cargo.toml.
const RUST: [(&str, &str); 5] = [
    ("edgefaas.toml", include_str!("../templates/rust/edgefaas.toml")),
    ("Cargo.toml", include_str!("../templates/rust/Cargo.toml")),
    ("src/lib.rs", include_str!("../templates/rust/src/lib.rs")),
    ("README.md", include_str!("../templates/rust/README.md")),
    (".gitignore", include_str!("../templates/rust/gitignore")),
];
const JS: [(&str, &str); 4] = [
    ("edgefaas.toml", include_str!("../templates/js/edgefaas.toml")),
    ("functions/{{name}}.js", include_str!("../templates/js/function.js")),
    ("README.md", include_str!("../templates/js/README.md")),
    (".gitignore", include_str!("../templates/js/gitignore")),
];

/// The files of a new app: path and text.
pub fn files(name: &str, language: Language) -> Vec<(String, String)> {
    let template: &[(&str, &str)] = match language {
        Language::Rust => &RUST,
        Language::Js => &JS,
    };
    let sdk = sdk_dependency();
    let fill = |text: &str| text.replace("{{name}}", name).replace("{{sdk_dependency}}", &sdk);
    template.iter().map(|(path, text)| (fill(path), fill(text))).collect()
}

/// The SDK of the checkout that built this binary, while it exists; otherwise the published SDK of the same
/// version.
fn sdk_dependency() -> String {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("sdk");
    match checkout.join("Cargo.toml").exists() {
        true => format!("{{ path = {} }}", serde_json::Value::from(checkout.to_string_lossy())),
        false => format!("\"{}\"", env!("CARGO_PKG_VERSION")),
    }
}

#[cfg(test)]
mod tests {
    use edgefaas_manifest::Manifest;

    use super::*;

    #[test]
    fn the_templates_are_filled_and_their_manifests_are_valid() {
        for language in [Language::Rust, Language::Js] {
            let files = files("my-app", language);
            for (path, text) in &files {
                assert!(!path.contains("{{") && !text.contains("{{"), "{path}:\n{text}");
            }
            let (_, manifest) = files.iter().find(|(path, _)| path == "edgefaas.toml").unwrap();
            let manifest = Manifest::parse(manifest, "edgefaas.toml").unwrap();
            assert_eq!(manifest.app, "my-app");
        }
    }
}
