//! `wasi:cli/environment`: the function's config and secrets as environment variables.

use wasmtime_wasi::p2::bindings::cli::environment;

use super::state::ComponentState;
use crate::host::Host;

impl environment::Host for ComponentState {
    fn get_environment(&mut self) -> wasmtime::Result<Vec<(String, String)>> {
        Ok(variables(self.host()))
    }

    fn get_arguments(&mut self) -> wasmtime::Result<Vec<String>> {
        Ok(vec![self.function.clone()])
    }

    fn initial_cwd(&mut self) -> wasmtime::Result<Option<String>> {
        Ok(None)
    }
}

/// Config first, then secrets; where two have one name, the later one is kept.
fn variables(host: &mut dyn Host) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    let mut set = |name: String, value: String| match all.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known = value,
        None => all.push((name, value)),
    };
    for key in host.config_keys() {
        if let Some(json) = host.config(&key) {
            set(variable_name(&key), plain(json));
        }
    }
    for name in host.secret_names() {
        if let Some(value) = host.secret(&name) {
            set(variable_name(&name), value);
        }
    }
    all
}

/// Upper case, `_` for what is neither a letter nor a digit of ASCII, and not a digit first (POSIX, section 8.1).
fn variable_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 1);
    if key.starts_with(|first: char| first.is_ascii_digit()) {
        name.push('_');
    }
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.extend(key.chars().map(allowed));
    name
}

/// Text as it is, anything else as JSON. The C library ends a value at its first NUL.
fn plain(json: String) -> String {
    serde_json::from_str(&json).unwrap_or(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_a_shell_could_use() {
        for (key, name) in [
            ("target_c", "TARGET_C"),
            ("API_KEY", "API_KEY"),
            ("a.b-c", "A_B_C"),
            ("2nd", "_2ND"),
            ("ü", "_"),
        ] {
            assert_eq!(variable_name(key), name);
        }
    }

    #[test]
    fn text_is_plain_and_the_rest_is_json() {
        for (json, value) in
            [("\"a \\\"b\\\"\"", "a \"b\""), ("24.5", "24.5"), ("[1,2]", "[1,2]"), ("null", "null")]
        {
            assert_eq!(plain(json.to_owned()), value);
        }
    }
}
