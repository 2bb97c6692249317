//! Keeps text away from the parser that it would need too much stack for.
//!
//! Parser, checks and printer descend once for each level of the tree that they build. A look at the text
//! alone bounds how many levels that can be: brackets, and within each the words and signs since a `,` or
//! `;` ended what was there. The bound is far above what people and bundlers write, and the
//! [large stack](on_large_stack) above what the bound lets pass. Whether a `/` begins a regular expression is
//! told by the token before it, which is a guess after `}` and a few others.

use std::thread;

/// How deep brackets may be nested.
const MAX_BRACKETS: usize = 500;

/// How many words and signs may be open, over all brackets around a place.
const MAX_LINKS: usize = 50_000;

/// The stack for what passes: address space, of which only what is used becomes memory. 5 KiB for each
/// link, more than any needs.
const STACK_BYTES: usize = 256 << 20;

/// Words that an expression follows, so that a `/` after them begins a regular expression.
const BEFORE_EXPRESSION: [&[u8]; 15] = [
    b"await",
    b"case",
    b"delete",
    b"do",
    b"else",
    b"extends",
    b"in",
    b"instanceof",
    b"new",
    b"of",
    b"return",
    b"throw",
    b"typeof",
    b"void",
    b"yield",
];

/// Runs `work` on a thread of its own with room for deep recursion, and waits for it.
///
/// The error says why the thread could not be started, or that it panicked.
pub fn on_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("parse".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread with a stack of {STACK_BYTES} bytes: {error}"))?;
        thread.join().map_err(|_| "it panicked".to_owned())
    })
}

/// Text that would be nested too deeply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooDeep {
    /// Where it becomes too much, in bytes.
    pub offset: usize,
    /// Which limit it hits.
    pub message: String,
}

/// Looks through JavaScript or TypeScript once, without recursion.
pub fn check(source: &str) -> Result<(), TooDeep> {
    Scan { text: source.as_bytes(), at: 0, open: vec![Level::default()], links: 0, value: false }.run()
}

/// What is open between a bracket and the place.
#[derive(Default)]
struct Level {
    /// Links since the last `,` or `;`.
    links: usize,
    /// The most links at once in this statement, for an `else` that goes on with it.
    statement_links: usize,
    /// Links that only the statement's end ends: of what came before an `else`, and of `<` without `>`.
    lasting_links: usize,
    /// Whether the bracket holds the condition of `if`, `for`, `while` or `with`.
    condition: bool,
    /// Whether it is the `${` of a template.
    in_template: bool,
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    open: Vec<Level>,
    /// Over all of `open`.
    links: usize,
    /// Whether the last token ends a value, so that a `/` divides it.
    value: bool,
}

impl Scan<'_> {
    fn run(mut self) -> Result<(), TooDeep> {
        let (mut condition, mut after_dot) = (false, false);
        while let Some(&byte) = self.text.get(self.at) {
            let start = self.at;
            self.at += 1;
            let (was_condition, was_after_dot) = (condition, after_dot);
            if !byte.is_ascii_whitespace() {
                (condition, after_dot) = (false, byte == b'.');
            }
            match byte {
                _ if byte.is_ascii_whitespace() => {}
                b'/' if self.text.get(self.at) == Some(&b'/') => {
                    (condition, after_dot) = (was_condition, was_after_dot);
                    self.skip_to(|rest| rest.starts_with(b"\n"));
                }
                b'/' if self.text.get(self.at) == Some(&b'*') => {
                    (condition, after_dot) = (was_condition, was_after_dot);
                    self.at += 1;
                    self.skip_to(|rest| rest.starts_with(b"*/"));
                    self.at = (self.at + 2).min(self.text.len());
                }
                b'/' => {
                    self.link(start)?;
                    match self.regexp_end().filter(|_| !self.value) {
                        Some(end) => (self.at, self.value) = (end, true),
                        None => self.value = false,
                    }
                }
                b'"' | b'\'' => {
                    self.link(start)?;
                    self.string(byte);
                    self.value = true;
                }
                b'`' => {
                    self.link(start)?;
                    self.template(start)?;
                }
                b'(' | b'[' | b'{' => self.bracket(start, was_condition, false)?,
                b')' | b']' | b'}' => self.close(byte, start)?,
                b',' | b';' => self.separate(byte),
                b'<' => {
                    self.lasting_link(start, 1)?;
                    self.value = false;
                }
                b'>' => {
                    let level = self.level();
                    if level.lasting_links > 0 {
                        level.lasting_links -= 1;
                        self.links -= 1;
                    }
                    self.link(start)?;
                    self.value = false;
                }
                _ if is_word(byte) => {
                    self.skip_to(|rest| !is_word(rest[0]));
                    let word = &self.text[start..self.at];
                    self.value = was_after_dot || !BEFORE_EXPRESSION.contains(&word);
                    condition = !was_after_dot && matches!(word, b"if" | b"for" | b"while" | b"with");
                    // `for await (`
                    condition |= was_condition && word == b"await";
                    if matches!(word, b"else" | b"while") {
                        let level = self.level();
                        let forgotten = level.statement_links.saturating_sub(level.links);
                        level.statement_links = level.links;
                        self.lasting_link(start, forgotten + 1)?;
                    } else {
                        self.link(start)?;
                    }
                }
                _ => {
                    // `a++ / b`; a regular expression is never counted up.
                    let twice = matches!(byte, b'+' | b'-') && self.text.get(self.at) == Some(&byte);
                    self.at += usize::from(twice);
                    self.value &= twice;
                    self.link(start)?;
                }
            }
        }
        Ok(())
    }

    fn level(&mut self) -> &mut Level {
        if self.open.is_empty() {
            self.open.push(Level::default());
        }
        let last = self.open.len() - 1;
        &mut self.open[last]
    }

    fn link(&mut self, offset: usize) -> Result<(), TooDeep> {
        let level = self.level();
        level.links += 1;
        level.statement_links = level.statement_links.max(level.links);
        self.links += 1;
        self.within_limit(offset)
    }

    fn lasting_link(&mut self, offset: usize, links: usize) -> Result<(), TooDeep> {
        self.level().lasting_links += links;
        self.links += links;
        self.within_limit(offset)
    }

    fn within_limit(&self, offset: usize) -> Result<(), TooDeep> {
        if self.links <= MAX_LINKS {
            return Ok(());
        }
        let message = format!(
            "an expression or statement of more than {MAX_LINKS} parts; break it up, or end statements with ;"
        );
        Err(TooDeep { offset, message })
    }

    fn bracket(&mut self, offset: usize, condition: bool, in_template: bool) -> Result<(), TooDeep> {
        self.link(offset)?;
        self.open.push(Level { condition, in_template, ..Level::default() });
        self.value = false;
        if self.open.len() > MAX_BRACKETS + 1 {
            let message = format!("brackets are nested more than {MAX_BRACKETS} deep; break it up");
            return Err(TooDeep { offset, message });
        }
        Ok(())
    }

    fn close(&mut self, byte: u8, offset: usize) -> Result<(), TooDeep> {
        // One that nothing opened is the parser's to report.
        if self.open.len() < 2 {
            return Ok(());
        }
        let Some(level) = self.open.pop() else { return Ok(()) };
        self.links -= level.links + level.lasting_links;
        if byte == b'}' && level.in_template {
            return self.template(offset);
        }
        // After a block a regular expression is likelier than a division of an object.
        self.value = byte != b'}' && !level.condition;
        Ok(())
    }

    fn separate(&mut self, byte: u8) {
        let level = self.level();
        let ended = std::mem::take(&mut level.links);
        self.links -= ended;
        self.value = false;
        // What follows may belong to the same statement still: an `else`, the `while` of a `do`.
        if byte == b';' {
            let rest = &self.text[self.at..];
            let blank = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            let rest = &rest[blank..];
            let goes_on = [&b"else"[..], b"while", b"/"].iter().any(|word| rest.starts_with(word));
            if !goes_on {
                let level = self.level();
                level.statement_links = 0;
                let ended = std::mem::take(&mut level.lasting_links);
                self.links -= ended;
            }
        }
    }

    fn skip_to(&mut self, end: impl Fn(&[u8]) -> bool) {
        while self.at < self.text.len() && !end(&self.text[self.at..]) {
            self.at += 1;
        }
    }

    fn string(&mut self, quote: u8) {
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b'\\' => self.at += 1,
                // A string that does not end is the parser's to report.
                b'\n' => return,
                _ => {}
            }
            self.at += 1;
            if byte == quote {
                return;
            }
        }
    }

    /// Goes on in a template until it ends or holds an expression.
    fn template(&mut self, offset: usize) -> Result<(), TooDeep> {
        while let Some(&byte) = self.text.get(self.at) {
            self.at += 1;
            match byte {
                b'\\' => self.at += 1,
                b'`' => break,
                b'$' if self.text.get(self.at) == Some(&b'{') => {
                    self.at += 1;
                    return self.bracket(offset, false, true);
                }
                _ => {}
            }
        }
        self.value = true;
        Ok(())
    }

    /// Behind the regular expression that begins before `at`, if one ends on this line.
    fn regexp_end(&self) -> Option<usize> {
        let (mut at, mut in_class) = (self.at, false);
        loop {
            match self.text.get(at)? {
                b'\n' => return None,
                b'\\' => at += 1,
                b'[' => in_class = true,
                b']' => in_class = false,
                b'/' if !in_class => return Some(at + 1),
                _ => {}
            }
            at += 1;
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'#') || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_passes() {
        let long = "const a = f(1, [2, 3], { b: `x${y({ z: `${1}` })}` }); // ((((\n".repeat(50_000);
        check(&long).unwrap();
        let opaque =
            "x = '((('; y = \"[[[\"; z = /[(/]((\\//g; w = `{{{`; /* ((( */ if (a) /((/.test(b);\n";
        check(&opaque.repeat(2000)).unwrap();
        check(&"function f() { return a / 2 + (b) / 3 }\n".repeat(5000)).unwrap();
        check(&"if (a) { b } else if (c) d; else e;\n".repeat(5000)).unwrap();
    }

    #[test]
    fn brackets_are_counted() {
        check(&"[".repeat(500)).unwrap();
        let error = check(&"[".repeat(501)).unwrap_err();
        assert_eq!(error.offset, 500);
        assert!(error.message.contains("500 deep"), "{}", error.message);
        for nested in ["(", "{a:", "f(1, ", "`${", "a / b; [", "'(' + ["] {
            check(&nested.repeat(600)).unwrap_err();
        }
    }

    #[test]
    fn chains_are_counted() {
        for chain in [
            "1-",
            "!",
            "a=>",
            "if(1)",
            "a?b:",
            "typeof ",
            "a.b",
            "a()",
            "a[0]",
            "else if(a)x,y;",
            "else if(a)do x;while(y);",
            "A<B,",
            "label:",
            "a='x'+",
            "a`` ",
        ] {
            check(&chain.repeat(100)).unwrap();
            let error = check(&chain.repeat(60_000)).unwrap_err();
            assert!(error.message.contains("parts"), "{chain}: {}", error.message);
        }
    }

    #[test]
    fn unbalanced_text_is_left_to_the_parser() {
        for text in [")))", "}", "`${", "'", "/", "/*", "\\", "`\\", "\"\\", "é", ""] {
            check(text).unwrap();
        }
    }

    #[test]
    fn a_panic_is_an_error() {
        assert_eq!(on_large_stack(|| 5), Ok(5));
        let panicking = on_large_stack(|| assert!(check("a").is_err(), "on purpose"));
        assert_eq!(panicking, Err("it panicked".to_owned()));
    }
}
