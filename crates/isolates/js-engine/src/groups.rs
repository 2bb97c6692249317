//! Groups of globals that few functions use.

use edgefaas_js_abi::Source;

/// A file of `libraries` that is evaluated when one of its globals is asked for. The node has its text, so that it takes no
/// room in the snapshots of other functions.
struct Group {
    name: &'static str,
    globals: &'static [&'static str],
    /// What else in a module's text tells that the group will be needed.
    hints: &'static [&'static str],
    /// A word that is there as well if this group is meant; empty if the others mean nothing else.
    with: &'static str,
}

static GROUPS: &[Group] = &[
    Group { name: "inspect", globals: &[], hints: &["console", ".log"], with: "" },
    Group { name: "console", globals: &[], hints: &["console", ".log"], with: "" },
    Group {
        name: "events",
        globals: &["Event", "CustomEvent", "EventTarget", "AbortSignal", "AbortController"],
        hints: &[".signal"],
        with: "",
    },
    Group {
        name: "streams",
        globals: &[
            "ReadableStream",
            "ReadableStreamDefaultReader",
            "ReadableStreamDefaultController",
            "CountQueuingStrategy",
            "ByteLengthQueuingStrategy",
        ],
        hints: &[".body", ".stream"],
        with: "",
    },
    Group {
        name: "writable",
        globals: &["WritableStream", "WritableStreamDefaultWriter", "WritableStreamDefaultController"],
        hints: &[".pipeTo", ".pipeThrough"],
        with: "",
    },
    Group {
        name: "transform",
        globals: &[
            "TransformStream",
            "TransformStreamDefaultController",
            "TextEncoderStream",
            "TextDecoderStream",
        ],
        hints: &[],
        with: "",
    },
    Group {
        name: "compression",
        globals: &["CompressionStream", "DecompressionStream"],
        hints: &[],
        with: "",
    },
    Group {
        name: "blob",
        globals: &["Blob", "File", "FormData"],
        hints: &[".formData", ".blob"],
        with: "",
    },
    Group { name: "subtle", globals: &["CryptoKey", "SubtleCrypto"], hints: &[".subtle"], with: "" },
    Group {
        name: "encodings",
        globals: &[],
        hints: &["utf-16le", "latin1", "iso-8859-1"],
        with: "TextDecoder",
    },
    Group {
        name: "intl",
        globals: &["Intl"],
        hints: &[".localeCompare", ".toLocaleString", ".toLocaleDateString", ".toLocaleTimeString"],
        with: "",
    },
    Group {
        name: "intl_number",
        globals: &[],
        hints: &[".NumberFormat", ".PluralRules", ".toLocaleString"],
        with: "",
    },
    Group {
        name: "intl_date",
        globals: &[],
        hints: &[".DateTimeFormat", ".toLocaleString", ".toLocaleDateString", ".toLocaleTimeString"],
        with: "",
    },
    // Asked for by `intl_date` alone.
    Group { name: "intl_zones", globals: &[], hints: &["timeZoneName"], with: "" },
    Group { name: "intl_text", globals: &[], hints: &[".ListFormat", ".RelativeTimeFormat"], with: "" },
    Group { name: "intl_collator", globals: &[], hints: &[".Collator", ".localeCompare"], with: "" },
    Group {
        name: "objects",
        globals: &[],
        hints: &[
            ".gCounter",
            ".boundedCounter",
            ".mvRegister",
            ".gSet",
            ".set",
            ".map",
            ".flag",
            ".ewFlag",
            ".dwFlag",
            ".list",
            ".text",
            ".json",
        ],
        // `context.object(…)` or `const { object } = env`.
        with: "object",
    },
];

/// Each group's name and globals.
pub fn names() -> Vec<Vec<&'static str>> {
    GROUPS.iter().map(|group| [&[group.name], group.globals].concat()).collect()
}

/// The groups that the modules mention.
pub fn mentioned(modules: &[Source<'_>]) -> Vec<&'static str> {
    GROUPS.iter().filter(|group| group.is_mentioned_in(modules)).map(|group| group.name).collect()
}

impl Group {
    /// Whether the modules mention it. It need not be right: what is missed is evaluated when it is used, which takes an
    /// invocation a millisecond, and what is evaluated in vain costs invocations nothing.
    fn is_mentioned_in(&self, modules: &[Source<'_>]) -> bool {
        let mentioned = |word: &str| modules.iter().any(|module| mentions(module.code, word));
        (self.with.is_empty() || mentioned(self.with))
            && self.globals.iter().chain(self.hints).any(|word| mentioned(word))
    }
}

fn mentions(code: &str, word: &str) -> bool {
    let in_word =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    code.match_indices(word).any(|(at, _)| {
        let starts = word.starts_with('.') || !in_word(code.as_bytes()[..at].last());
        starts && !in_word(code.as_bytes().get(at + word.len()))
    })
}
