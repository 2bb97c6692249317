//! What a reader has done before the commands of a page.

use crate::languages;

/// A page whose commands are run.
pub struct Page {
    /// Its file in the repository.
    pub file: &'static str,
    /// Programs that it needs beside a shell, curl and mosquitto's clients.
    pub needs: &'static [&'static str],
    /// Files of its first fenced block of a language.
    pub files: &'static [(&'static str, &'static str)],
    /// Commands before those of the page.
    pub before: &'static str,
    /// Commands before a fence, by its index.
    pub between: &'static [(usize, &'static str)],
    /// Commands before each fence.
    pub each: &'static str,
    /// Gives commands after the last fence, of the text of the page.
    pub after: fn(&str) -> String,
}

const PLAIN: Page =
    Page { file: "", needs: &[], files: &[], before: "", between: &[], each: "", after: |_| String::new() };

/// A node with the default addresses.
const NODE: &str = "edgefaas run >~/node.log 2>&1 & until_true is_ready 7070";

/// Pages that other tests run.
pub const ELSEWHERE: &[(&str, &str)] =
    &[("examples/two-sites/README.md", "node: two_sites_go_on_while_their_link_is_cut")];

pub const PAGES: &[Page] = &[
    Page { file: "README.md", needs: &["cargo"], between: &[(3, "stop_all")], ..PLAIN },
    Page { file: "docs/bridges.md", before: NODE, ..PLAIN },
    Page { file: "docs/broker.md", before: NODE, ..PLAIN },
    Page {
        file: "docs/cli.md",
        needs: &["cargo"],
        before: NODE,
        between: &[(1, "edgefaas deploy examples/greenhouse; edgefaas deploy examples/people-counter")],
        ..PLAIN
    },
    Page { file: "docs/cluster.md", ..PLAIN },
    Page {
        file: "docs/components.md",
        needs: &["cargo", "npm", "componentize-py", "wit-bindgen", "clang", "go"],
        before: languages::BEFORE,
        each: "cd ~/work",
        after: languages::calls,
        ..PLAIN
    },
    Page { file: "docs/javascript.md", needs: &["npm"], before: NODE, ..PLAIN },
    Page {
        file: "docs/manifest.md",
        before: "edgefaas run >~/node.log 2>&1 & until_true is_ready 7070
edgefaas new hello --lang js; cd hello",
        ..PLAIN
    },
    Page {
        file: "docs/objects.md",
        before: r#"edgefaas run >~/node.log 2>&1 & until_true is_ready 7070
cat >rooms.js <<'END'
export default async (event, context) => {
  const room = context.object("room-7");
  await room.counter("people").add(5);
  await room.map("doors").map("north").register("last").set("08:15");
  await room.set("badges").add("K-1204");
  await room.json("plan").set({ walls: 3 });
};
END
edgefaas deploy rooms.js --allow 'objects=room-*'
edgefaas invoke rooms"#,
        ..PLAIN
    },
    Page {
        file: "docs/operations.md",
        before: "edgefaas run >~/node.log 2>&1 & until_true is_ready 7070
edgefaas new hello --lang js; edgefaas deploy hello",
        ..PLAIN
    },
    Page {
        file: "docs/placement.md",
        before: r#"edgefaas run --label camera >~/node.log 2>&1 & until_true is_ready 7070
edgefaas cluster init
mkdir detect; echo 'export default () => "seen"' >detect/detect.js
cat >detect/edgefaas.toml <<'END'
app = "detect"
[functions.detect]
main = "detect.js"
placement = "sensor"
END
edgefaas deploy detect"#,
        ..PLAIN
    },
    Page {
        file: "docs/security.md",
        before: "edgefaas run >~/node.log 2>&1 & until_true is_ready 7070
exec <<<'correct horse battery staple'",
        ..PLAIN
    },
    Page { file: "docs/testing.md", ..PLAIN },
    Page { file: "docs/workflows.md", files: &[("yaml", "greet.yaml")], before: NODE, ..PLAIN },
    Page { file: "crates/sdk/README.md", needs: &["cargo"], before: NODE, ..PLAIN },
    Page { file: "examples/field-kit/README.md", ..PLAIN },
    Page { file: "examples/greenhouse/README.md", needs: &["cargo"], ..PLAIN },
    Page { file: "examples/hono/README.md", needs: &["npm"], ..PLAIN },
    Page { file: "examples/map-reduce/README.md", before: NODE, ..PLAIN },
    Page { file: "examples/people-counter/README.md", ..PLAIN },
    Page { file: "examples/saga/README.md", before: NODE, ..PLAIN },
    Page { file: "examples/silence/README.md", before: NODE, ..PLAIN },
];
