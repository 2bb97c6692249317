//! Texts of CommonJS modules as ES modules.
//!
//! A CommonJS module becomes an ES module that exports a function, which runs it once and gives its `module.exports`.
//! Function declarations exist before the modules run, so cycles end as in Node.js: a module that is still running gives
//! the exports that it has so far. An ES module imports a CommonJS module through a facade that calls this function.

use std::collections::BTreeSet;
use std::fmt::Write;

use oxc::span::Span;

use super::scan::{Scanned, Wants};
use crate::Module;

/// The path of [`RUNTIME`].
pub(super) const RUNTIME_PATH: &str = "edgefaas:commonjs.js";

/// The lines before a file's own text in the module: one in a CommonJS module.
pub(crate) fn lines_before(module: &Module) -> u32 {
    let common_js = module.imports.iter().any(|(_, path)| path == RUNTIME_PATH);
    u32::from(common_js && !module.path.starts_with("edgefaas:"))
}

/// Functions that all CommonJS modules of a function share.
pub(super) const RUNTIME: &str = include_str!("commonjs.js");

/// The `default` that an ES module imports from a CommonJS module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Interop {
    /// As Node.js: `module.exports`. For importers that are ES modules by their extension or `"type": "module"`.
    Node,
    /// As Babel: `module.exports.default` if `__esModule` is set. For others, which are compiled for bundlers.
    Babel,
}

/// The path of the facade of a CommonJS module.
pub(super) fn facade_path(path: &str, interop: Interop) -> String {
    match interop {
        Interop::Node => format!("edgefaas:import-node/{path}.js"),
        Interop::Babel => format!("edgefaas:import/{path}.js"),
    }
}

/// The specifier with which a facade imports its module.
pub(super) const FACADE_TARGET: &str = "edgefaas:target";

/// The facade of a CommonJS module, with the names that are imported from it.
pub(super) fn facade(names: &BTreeSet<String>, interop: Interop) -> String {
    let target = quoted(FACADE_TARGET);
    let runtime = quoted(RUNTIME_PATH);
    let default = match interop {
        Interop::Node => "exported",
        Interop::Babel => "imported(exported)",
    };
    let mut text = format!(
        "import {{ $commonjs }} from {target};\nimport {{ imported }} from {runtime};\n\
         const exported = $commonjs();\nconst members = exported ?? {{}};\nexport default {default};\n"
    );
    for (index, name) in names.iter().filter(|name| *name != "default").enumerate() {
        let name = quoted(name);
        let _ = writeln!(text, "const e{index} = members[{name}];\nexport {{ e{index} as {name} }};");
    }
    text
}

/// A module that a `require` names.
pub(super) enum Required {
    CommonJs,
    Module,
    Json,
}

/// The specifier with which a CommonJS module imports its requirement at `index`.
pub(super) fn requirement(index: usize) -> String {
    format!("edgefaas:require/{index}")
}

/// Modules that stand for globals of Node.js, where a CommonJS module mentions them: global, module, member.
pub(super) const GLOBALS: [(&str, &str, Option<&str>); 4] = [
    ("process", "process", None),
    ("Buffer", "buffer", Some("Buffer")),
    ("setImmediate", "timers", Some("setImmediate")),
    ("clearImmediate", "timers", Some("clearImmediate")),
];

/// The globals of Node.js that a package's ES module would fail without.
pub(super) fn demanded(scanned: &Scanned) -> impl Iterator<Item = (&'static str, String, &'static str)> {
    let globals = GLOBALS
        .iter()
        .filter(|(name, ..)| scanned.globals.contains(name) && !scanned.optional.contains(name));
    globals.map(|(name, module, member)| (*name, format!("node:{module}"), member.unwrap_or("default")))
}

/// Imports of these globals, for the end of a module's text, where they move no line.
pub(super) fn demands(scanned: &Scanned) -> String {
    let imports = demanded(scanned).map(|(name, specifier, member)| {
        format!("\nimport {{ {member} as {name} }} from {};", quoted(&specifier))
    });
    imports.collect()
}

/// A CommonJS module as an ES module. `required` are the specifiers of its `require`s, without those that name no module; their
/// modules are imported by [`requirement`].
pub(super) fn common_js(
    path: &str,
    source: &str,
    scanned: &Scanned,
    required: &[(String, Required)],
) -> String {
    let mut text = format!("import{{run as $run,namespace as $namespace}}from{};", quoted(RUNTIME_PATH));
    let mut cases = String::new();
    for (index, (specifier, kind)) in required.iter().enumerate() {
        let (from, case) = (quoted(&requirement(index)), quoted(specifier));
        let _ = match kind {
            Required::CommonJs => {
                let _ = write!(text, "import{{$commonjs as $r{index}}}from{from};");
                write!(cases, "case{case}:return $r{index}();")
            }
            Required::Module => {
                let _ = write!(text, "import*as $r{index} from{from};");
                write!(cases, "case{case}:return $namespace($r{index});")
            }
            Required::Json => {
                let _ = write!(text, "import $r{index} from{from};");
                write!(cases, "case{case}:return $r{index};")
            }
        };
    }
    let mut parameters = "exports,require,module,__filename,__dirname".to_owned();
    let mut values = String::new();
    if scanned.globals.contains("global") {
        parameters.push_str(",global");
        values.push_str(",globalThis");
    }
    for (name, module, member) in GLOBALS.iter().filter(|(name, ..)| scanned.globals.contains(name)) {
        let _ = write!(parameters, ",{name}");
        let _ = write!(values, ",$require({})", quoted(&format!("node:{module}")));
        if let Some(member) = member {
            let _ = write!(values, ".{member}");
        }
    }
    let _ = writeln!(
        text,
        "var $module;function $require(id){{switch(id){{{cases}}}return $run}}\
         export function $commonjs(){{return $module?$module.exports:$run({},$require,(module)=>$module=module,\
         (exports,require,module,file,folder)=>$body.call(exports,exports,require,module,file,folder{values}))}}\
         function $body({parameters}){{",
        quoted(path)
    );
    text.push_str(&edited(source, &scanned.edits));
    text.push_str("\n}\n");
    text
}

/// The statement without the names that `keep` does not hold for; none if no name is left.
pub(super) fn trimmed(source: &str, span: Span, wants: &Wants, keep: &[bool], specifier: &str) -> String {
    let statement = &source[span.start as usize..span.end as usize];
    let mut text = match wants {
        Wants::Reexported(names) if keep.iter().any(|keep| *keep) => {
            let kept = names.iter().zip(keep).filter(|(_, keep)| **keep).map(|((local, exported), _)| {
                let (local, exported) = (name(local), name(exported));
                if local == exported { local } else { format!("{local} as {exported}") }
            });
            format!("export{{{}}}from{};", kept.collect::<Vec<_>>().join(","), quoted(specifier))
        }
        _ => String::new(),
    };
    // Lines and, on the last line, columns stay where they were, if the new text fits.
    let lines = statement.matches('\n').count();
    let width = statement.len().saturating_sub(lines + text.len());
    if !text.is_empty() || !statement.is_empty() {
        text.extend(std::iter::repeat_n(' ', width));
        text.extend(std::iter::repeat_n('\n', lines));
    }
    text
}

/// A name in an export clause: an identifier as it is, others as a string.
fn name(name: &str) -> String {
    let mut chars = name.chars();
    let starts =
        chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_' || first == '$');
    if starts && chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$') {
        name.to_owned()
    } else {
        quoted(name)
    }
}

/// `source` with replacements of spans that do not overlap.
pub(super) fn edited(source: &str, edits: &[(Span, String)]) -> String {
    let mut edits: Vec<_> = edits.iter().collect();
    edits.sort_by_key(|(span, _)| span.start);
    let mut text = String::with_capacity(source.len());
    let mut at = 0;
    for (span, replacement) in edits {
        text.push_str(&source[at..span.start as usize]);
        text.push_str(replacement);
        at = span.end as usize;
    }
    text.push_str(&source[at..]);
    text
}

/// A string literal.
fn quoted(text: &str) -> String {
    // JSON is JavaScript since ECMAScript 2019.
    serde_json::Value::from(text).to_string()
}
