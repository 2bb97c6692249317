//! What Web APIs ask for that is better done natively: URLs, forms.

use rquickjs::prelude::Opt;
use rquickjs::{Array, Ctx, IntoJs, String as JsString, TypedArray, Value};
use url::Position;

use crate::boundary::{Utf8, copy_view};
use crate::{convert, natives};

/// The parts of a body of multipart/form-data: `[head, start, end, …]`. None if it is cut short or malformed.
pub fn split_form<'js>(
    ctx: Ctx<'js>,
    body: TypedArray<'js, u8>,
    boundary: String,
) -> rquickjs::Result<Option<Array<'js>>> {
    let body = copy_view(&body);
    let Some(parts) = form_parts(&body, boundary.as_bytes()) else { return Ok(None) };
    let flat = Array::new(ctx.clone())?;
    for (index, (head, start, end)) in parts.into_iter().enumerate() {
        flat.set(3 * index, head)?;
        flat.set(3 * index + 1, start as u32)?;
        flat.set(3 * index + 2, end as u32)?;
    }
    Ok(Some(flat))
}

fn form_parts(body: &[u8], boundary: &[u8]) -> Option<Vec<(String, usize, usize)>> {
    let delimiter = [b"\r\n--", boundary].concat();
    let mut parts = Vec::new();
    // The first delimiter may have no line before it.
    let mut at = match body.strip_prefix(&delimiter[2..]) {
        Some(_) => delimiter.len() - 2,
        None => find(body, &delimiter, 0)? + delimiter.len(),
    };
    loop {
        let rest = &body[at..];
        if rest.starts_with(b"--") {
            return Some(parts);
        }
        // White space may follow the delimiter.
        let line = find(rest, b"\r\n", 0)?;
        if !rest[..line].iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return None;
        }
        let head_at = at + line + 2;
        // A part without a head begins with the empty line.
        let (head, start) = match body[head_at..].strip_prefix(b"\r\n") {
            Some(_) => ("", head_at + 2),
            None => {
                let end = find(body, b"\r\n\r\n", head_at)?;
                (std::str::from_utf8(&body[head_at..end]).ok()?, end + 4)
            }
        };
        let end = find(body, &delimiter, start)?;
        parts.push((head.to_owned(), start, end));
        at = end + delimiter.len();
    }
}

/// Where `needle` begins in `bytes`, from `from` on.
fn find(bytes: &[u8], needle: &[u8], from: usize) -> Option<usize> {
    let (first, rest) = needle.split_first()?;
    let mut at = from;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| byte == first)?;
        if bytes[at + 1..].starts_with(rest) {
            return Some(at);
        }
        at += 1;
    }
}

/// A header's name in lower case; undefined if it is none.
pub fn header_name<'js>(ctx: Ctx<'js>, name: JsString<'js>) -> rquickjs::Result<Option<JsString<'js>>> {
    // A text with a lone surrogate is no name either.
    let Ok(text) = Utf8::of(name.clone()) else { return Ok(None) };
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_token) {
        return Ok(None);
    }
    if !text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Ok(Some(name));
    }
    JsString::from_str(ctx, &text.to_ascii_lowercase()).map(Some)
}

/// A header's value without white space around it; true if it has a line break or a NUL, false if it has a character
/// outside of Latin-1.
pub fn header_value<'js>(ctx: Ctx<'js>, value: JsString<'js>) -> rquickjs::Result<Value<'js>> {
    let Ok(text) = Utf8::of(value.clone()) else { return false.into_js(&ctx) };
    let trimmed = text.trim_matches(['\t', '\n', '\r', ' ']);
    if trimmed.bytes().any(|byte| matches!(byte, 0 | b'\n' | b'\r')) {
        return true.into_js(&ctx);
    }
    if trimmed.chars().any(|character| character > '\u{ff}') {
        return false.into_js(&ctx);
    }
    if trimmed.len() == text.len() {
        return Ok(value.into_value());
    }
    trimmed.into_js(&ctx)
}

/// Names and values of a query, which may begin with "?": `[name, value, …]`.
pub fn parse_query<'js>(ctx: Ctx<'js>, query: Value<'js>) -> rquickjs::Result<Value<'js>> {
    let query = convert::text(&ctx, &query)?;
    let pairs = url::form_urlencoded::parse(query.strip_prefix('?').unwrap_or(&query).as_bytes());
    let pairs: Vec<_> = pairs.collect();
    natives::flat(&ctx, &pairs.iter().map(|(name, value)| (&**name, &**value)).collect::<Vec<_>>())
}

/// The query of `[name, value, …]`.
pub fn format_query<'js>(ctx: Ctx<'js>, flat: Vec<Value<'js>>) -> rquickjs::Result<String> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for pair in flat.chunks_exact(2) {
        query.append_pair(&convert::text(&ctx, &pair[0])?, &convert::text(&ctx, &pair[1])?);
    }
    Ok(query.finish())
}

/// Where the parts of a URL lie in it, as the `URL` class reads them; undefined if it does not parse.
pub fn parse_url<'js>(
    ctx: Ctx<'js>,
    text: String,
    base: Opt<Option<String>>,
) -> rquickjs::Result<Option<Array<'js>>> {
    let base = match base.0.flatten() {
        Some(base) => match url::Url::parse(&base) {
            Ok(base) => Some(base),
            Err(_) => return Ok(None),
        },
        None => None,
    };
    match url::Url::options().base_url(base.as_ref()).parse(&text) {
        Ok(url) => url_parts(&ctx, &url).map(Some),
        Err(_) => Ok(None),
    }
}

/// The same after a part was set; setters of the URL standard ignore what does not fit.
pub fn set_url<'js>(
    ctx: Ctx<'js>,
    href: String,
    part: String,
    value: String,
) -> rquickjs::Result<Option<Array<'js>>> {
    use url::quirks;
    let Ok(mut url) = url::Url::parse(&href) else { return Ok(None) };
    match part.as_str() {
        "protocol" => drop(quirks::set_protocol(&mut url, &value)),
        "username" => drop(quirks::set_username(&mut url, &value)),
        "password" => drop(quirks::set_password(&mut url, &value)),
        "host" => drop(quirks::set_host(&mut url, &value)),
        "hostname" => drop(quirks::set_hostname(&mut url, &value)),
        "port" => drop(quirks::set_port(&mut url, &value)),
        "pathname" => quirks::set_pathname(&mut url, &value),
        "search" => quirks::set_search(&mut url, &value),
        "hash" => quirks::set_hash(&mut url, &value),
        _ => {}
    }
    url_parts(&ctx, &url).map(Some)
}

/// The origin of a URL.
pub fn url_origin(href: String) -> Option<String> {
    url::Url::parse(&href).ok().map(|url| url::quirks::origin(&url))
}

/// `[href, end of the scheme, begin and end of user name, password, host name, port and path, end of the query]`.
fn url_parts<'js>(ctx: &Ctx<'js>, url: &url::Url) -> rquickjs::Result<Array<'js>> {
    let at = |position: Position| url[..position].len();
    let (username, password) = (at(Position::BeforeUsername), at(Position::BeforePassword));
    let places = [
        url.scheme().len(),
        username,
        username + url.username().len(),
        password,
        password + url.password().map_or(0, str::len),
        at(Position::BeforeHost),
        at(Position::AfterHost),
        at(Position::BeforePort),
        at(Position::AfterPort),
        at(Position::BeforePath),
        at(Position::AfterPath),
        at(Position::AfterQuery),
    ];
    let parts = Array::new(ctx.clone())?;
    parts.set(0, url.as_str())?;
    for (index, place) in places.into_iter().enumerate() {
        parts.set(index + 1, place as u32)?;
    }
    Ok(parts)
}
