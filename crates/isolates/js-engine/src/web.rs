//! What Web APIs ask for that is better done natively: URLs, forms.

use rquickjs::prelude::Opt;
use rquickjs::{Array, Ctx, TypedArray};

use crate::boundary::copy_view;

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

/// The parts of a URL as the `URL` class names them; undefined if it does not parse.
pub fn parse_url(text: String, base: Opt<Option<String>>) -> Option<Vec<String>> {
    let base = match base.0.flatten() {
        Some(base) => Some(url::Url::parse(&base).ok()?),
        None => None,
    };
    let url = url::Url::options().base_url(base.as_ref()).parse(&text).ok()?;
    Some(url_parts(&url))
}

/// The parts after one of them was set; setters of the URL standard ignore what does not fit.
pub fn set_url(href: String, part: String, value: String) -> Option<Vec<String>> {
    use url::quirks;
    let mut url = url::Url::parse(&href).ok()?;
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
    Some(url_parts(&url))
}

fn url_parts(url: &url::Url) -> Vec<String> {
    use url::quirks;
    [
        quirks::href(url),
        &quirks::origin(url),
        quirks::protocol(url),
        quirks::username(url),
        quirks::password(url),
        quirks::host(url),
        quirks::hostname(url),
        quirks::port(url),
        quirks::pathname(url),
        quirks::search(url),
        quirks::hash(url),
    ]
    .map(str::to_owned)
    .to_vec()
}
