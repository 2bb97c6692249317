//! What is deployed on the node that is attacked: two functions of healthy users, and what hostile ones bring.

use std::path::Path;

const MANIFEST: &str = r#"app = "hostile"

[functions.small]
main = "small.js"

[functions.hungry]
main = "hungry.js"
limits = { memory = "64MiB", timeout = "10s", concurrency = 64 }

[functions.large]
main = "large.js"
limits = { reply = "8MiB", concurrency = 64 }

[functions.spin]
main = "spin.js"
limits = { timeout = "2s", concurrency = 64 }

[functions.regex]
main = "regex.js"
limits = { timeout = "2s", concurrency = 64 }

[functions.dead]
main = "dead.js"
limits = { timeout = "2s", concurrency = 600 }
permissions = { http = ["127.0.0.1"] }

[workflows]
files = ["*.yaml"]
"#;

const FILES: [(&str, &str); 12] = [
    ("small.js", "export default (event) => event.text();\n"),
    (
        "hungry.js",
        "export default () => {\n  const all = [];\n  for (let n = 0; n < 40; n++) all.push(new Uint8Array(1 << 20).fill(1));\n  return `${all.length}`;\n};\n",
    ),
    ("large.js", "export default () => new Uint8Array((8 << 20) - 1024);\n"),
    ("spin.js", "export default () => { for (;;); };\n"),
    ("regex.js", "export default () => /^(a+)+$/.test(\"a\".repeat(40) + \"b\");\n"),
    ("dead.js", "export default async (event) => (await fetch(`http://${event.text()}/`)).status;\n"),
    (
        "bomb.yaml",
        "document: { dsl: '1.0.3', namespace: hostile, name: bomb, version: '1.0.0' }
do:
  - both:
      fork:
        branches:
          - left: { call: bomb }
          - right: { call: bomb }
",
    ),
    (
        "turns.yaml",
        "document: { dsl: '1.0.3', namespace: hostile, name: turns, version: '1.0.0' }
timeout: { after: { seconds: 2 } }
do:
  - a:
      set: { n: '${ (.n // 0) + 1 }' }
      export: { as: '{ l: (($context.l // []) + [\"0123456789\" * 100]) }' }
      then: b
  - b: { set: '${ . }', then: a }
",
    ),
    (
        "heavy.yaml",
        "document: { dsl: '1.0.3', namespace: hostile, name: heavy, version: '1.0.0' }
do:
  - one: { set: { n: '${ [range(1; 1000000000)] | length }' } }
",
    ),
    (
        "filter.yaml",
        "document: { dsl: '1.0.3', namespace: hostile, name: filter, version: '1.0.0' }
do:
  - hear:
      listen:
        to:
          one:
            with: { type: mqtt.publish, subject: hostile/filter, data: '${ [range(1; 1000000000)] | length == 0 }' }
",
    ),
    (
        "durable.yaml",
        "document: { dsl: '1.0.3', namespace: hostile, name: durable, version: '1.0.0', metadata: { durable: true } }
do:
  - hear:
      listen:
        to:
          any:
            - with: { type: mqtt.publish, subject: hostile/durable }
          until: '${ false }'
",
    ),
    (
        "steps.yaml",
        "document: { dsl: '1.0.3', namespace: hostile, name: steps, version: '1.0.0' }
do:
  - ask: { call: small, with: { text: hello } }
  - note: { set: { answer: '${ . }' } }
  - ask-again: { call: small, with: { text: again } }
",
    ),
];

/// Writes the app to a folder.
pub fn write(folder: &Path) -> std::io::Result<()> {
    std::fs::write(folder.join("edgefaas.toml"), MANIFEST)?;
    FILES.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text))
}
