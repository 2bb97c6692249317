//! Commands to paste into a terminal that run an app's functions.

use edgefaas_manifest::{Manifest, Trigger};
use edgefaas_node::Addresses;

/// One line for each trigger of each function.
pub fn hints(manifest: &Manifest, addresses: &Addresses) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let gateway = addresses.http_url();
    // Beyond loopback, the certificate is the node's own and a request needs a token.
    let curl = if addresses.http_tls { "curl -k -H 'authorization: Bearer TOKEN'" } else { "curl" };
    for (name, function) in &manifest.functions {
        for trigger in &function.triggers {
            let line = match trigger {
                Trigger::Mqtt { filter, example, .. } => format!(
                    "mosquitto_pub -h {} -p {} -t '{}' -m '{}'",
                    addresses.mqtt.ip(),
                    addresses.mqtt.port(),
                    example_topic(filter),
                    // Within single quotes of a shell.
                    example.as_deref().unwrap_or("{}").replace('\'', r"'\''")
                ),
                Trigger::Http { path, methods, .. } => {
                    let method = match methods.first().map(String::as_str) {
                        None | Some("GET") => String::new(),
                        Some(method) => format!("-X {method} "),
                    };
                    format!("{curl} {method}'{gateway}{}'", example_path(path))
                }
                Trigger::Cron { schedule } => format!("# {name} runs on schedule: {schedule}"),
                Trigger::Object { object, .. } => format!("# {name} runs when object {object} changes"),
            };
            // Functions may share a filter, of which one has an example.
            let topic = line.split(" -m ").next().unwrap_or_default();
            if !lines.iter().any(|known| known.split(" -m ").next() == Some(topic)) {
                lines.push(line);
            }
        }
        if function.triggers.is_empty() {
            lines.push(format!("{curl} -d '{{}}' '{gateway}/fn/{name}'"));
        }
    }
    lines
}

/// A topic that a filter matches.
fn example_topic(filter: &str) -> String {
    let levels = filter.split('/').map(|level| match level {
        "+" | "#" => "1",
        level => level,
    });
    levels.collect::<Vec<_>>().join("/")
}

/// A path that a route matches.
fn example_path(path: &str) -> String {
    let segments = path.split('/').map(|segment| match segment.split_once('{') {
        Some((before, rest)) => format!("{before}1{}", rest.split_once('}').map_or("", |(_, after)| after)),
        None => segment.to_owned(),
    });
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trigger_has_a_line() {
        let manifest = Manifest::parse(
            r#"
            app = "a"
            [functions.f]
            main = "f.js"
            triggers = [
                { mqtt = "a/+/b/#", example = "it's" },
                { http = "/a/{room}/x" },
                { http = "/b", methods = ["POST"] },
                { cron = "* * * * *" },
            ]
            [functions.g]
            main = "g.js"
            [functions.h]
            main = "h.js"
            triggers = [{ mqtt = "a/+/b/#" }]
            "#,
            "f",
        )
        .unwrap();
        let addresses = Addresses {
            http: "127.0.0.1:8080".parse().unwrap(),
            http_tls: false,
            mqtt: "127.0.0.1:1884".parse().unwrap(),
            mqtts: None,
            control: "127.0.0.1:7070".parse().unwrap(),
            control_tls: false,
            has_dashboard: true,
        };
        assert_eq!(
            hints(&manifest, &addresses),
            [
                "mosquitto_pub -h 127.0.0.1 -p 1884 -t 'a/1/b/1' -m 'it'\\''s'",
                "curl 'http://127.0.0.1:8080/a/1/x'",
                "curl -X POST 'http://127.0.0.1:8080/b'",
                "# f runs on schedule: * * * * *",
                "curl -d '{}' 'http://127.0.0.1:8080/fn/g'",
            ]
        );
    }
}
