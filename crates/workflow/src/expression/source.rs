//! Parses text within limits that keep the parser's recursion within the stack.

use jaq_core::load::Lexer;
use jaq_core::load::lex::{StrPart, Tok, Token};
use jaq_core::load::parse::{Parser, Term};

/// The maximum length of a text, in bytes.
pub(super) const TEXT_BYTES: usize = 64 << 10;
/// The maximum nesting of brackets and strings.
const NESTING: usize = 64;
/// The maximum of tokens. One of them may be one level of the parser's recursion.
const TOKENS: usize = 8_192;
/// Maximum number of tokens that are parsed on the current thread.
const FEW_TOKENS: usize = 128;
/// The stack of the thread that parses a longer text, in bytes.
const STACK_BYTES: usize = 64 << 20;
/// The maximum depth of the tree. Its evaluation recurses to the same depth.
const DEPTH: usize = 128;

/// A fault, and its position in the text.
pub(super) struct Wrong {
    pub(super) message: String,
    pub(super) offset: usize,
}

/// Parses `text` and returns the result of `make` for the tree.
pub(super) fn parse<T: Send>(
    text: &str,
    make: impl FnOnce(Term<&str>) -> Result<T, Wrong> + Send,
) -> Result<T, Wrong> {
    let wrong = |offset, message: String| Err(Wrong { message, offset });
    if text.len() > TEXT_BYTES {
        return wrong(0, format!("it has {} bytes of at most {TEXT_BYTES}", text.len()));
    }
    if let Some(offset) = too_nested(text) {
        return wrong(offset, format!("more than {NESTING} brackets and strings are within each other"));
    }
    let tokens = match Lexer::new(text).lex() {
        Ok(tokens) => tokens,
        Err(errors) => {
            let (expected, rest) = match errors.into_iter().next() {
                Some((expected, rest)) => (expected.as_str(), rest),
                None => ("something else", ""),
            };
            return wrong(text.len() - rest.len(), format!("expected {expected} here"));
        }
    };
    let first = tokens.first().map_or("", |token| token.0);
    if matches!(first, "import" | "include" | "module") {
        return wrong(0, format!("there is no `{first}`: there are no modules"));
    }
    match count(&tokens) {
        0 => wrong(0, "it is empty".into()),
        few if few <= FEW_TOKENS => tree(text, &tokens, make),
        many if many > TOKENS => wrong(0, format!("it has {many} words and signs of at most {TOKENS}")),
        // The tree is created and dropped on a thread with a large stack. The result of `make` is small or flat.
        _ => std::thread::scope(|scope| {
            let room = std::thread::Builder::new().stack_size(STACK_BYTES);
            match room.spawn_scoped(scope, || tree(text, &tokens, make)).map(|thread| thread.join()) {
                Ok(Ok(result)) => result,
                _ => wrong(0, "there is no memory to parse it".into()),
            }
        }),
    }
}

fn tree<'s, T>(
    text: &'s str,
    tokens: &[Token<&'s str>],
    make: impl FnOnce(Term<&str>) -> Result<T, Wrong>,
) -> Result<T, Wrong> {
    match Parser::new(tokens).parse(|parser| parser.term()) {
        Ok(term) => {
            let depth = super::tree::depth(&term);
            if depth > DEPTH {
                let message =
                    format!("its parts are {depth} deep of at most {DEPTH}; write it in smaller parts");
                return Err(Wrong { message, offset: 0 });
            }
            make(term)
        }
        Err(errors) => {
            let (message, found) = match errors.into_iter().next() {
                Some((expected, Some(Token(found, _)))) => {
                    let found = *found;
                    let start = found.get(..found.floor_char_boundary(20)).unwrap_or_default();
                    (format!("expected {} instead of `{start}`", expected.as_str()), Some(found))
                }
                Some((expected, None)) => (format!("expected {} at the end", expected.as_str()), None),
                None => ("it is not jq".into(), None),
            };
            let offset =
                found.and_then(|found| offset_of(text, found.as_ptr().addr())).unwrap_or(text.len());
            Err(Wrong { message, offset })
        }
    }
}

/// The offset of `address` in `text`, in bytes; `None` if it is outside.
pub(super) fn offset_of(text: &str, address: usize) -> Option<usize> {
    address.checked_sub(text.as_ptr().addr()).filter(|offset| *offset <= text.len())
}

/// The position at which brackets and strings nest too deep, if they do. `"\(` starts jq text within a string.
fn too_nested(text: &str) -> Option<usize> {
    let mut open: Vec<u8> = Vec::new();
    let mut comment = false;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        let in_string = open.last() == Some(&b'"');
        match byte {
            b'\n' if comment => comment = false,
            _ if comment => {}
            b'\\' if in_string => {
                if let Some((_, b'(')) = bytes.next() {
                    open.push(b'(');
                }
            }
            b'"' if in_string => {
                open.pop();
            }
            _ if in_string => {}
            b'#' => comment = true,
            b'(' | b'[' | b'{' | b'"' => open.push(byte),
            b')' | b']' | b'}' => {
                open.pop();
            }
            _ => {}
        }
        if open.len() > NESTING {
            return Some(at);
        }
    }
    None
}

/// The number of tokens, including nested ones.
fn count(tokens: &[Token<&str>]) -> usize {
    let inner = |token: &Token<&str>| match &token.1 {
        Tok::Block(tokens) => count(tokens),
        Tok::Str(parts) => parts
            .iter()
            .map(|part| match part {
                StrPart::Term(token) => count(std::slice::from_ref(token)),
                _ => 1,
            })
            .sum(),
        _ => 0,
    };
    tokens.iter().map(|token| 1 + inner(token)).sum()
}
