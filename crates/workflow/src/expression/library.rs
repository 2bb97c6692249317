//! The functions that jq text may call: jaq's functions, with step counting, and functions that access the internals
//! of values.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use jaq_core::box_iter::box_once;
use jaq_core::load::parse::Def;
use jaq_core::native::{Fun, bome, run, unary, v};
use jaq_core::{Bind, Cv, DataT, Error, Exn, Lut, Native, ValR, ValX};

use super::access::ended;
use super::instrument::{self, REGEX_COST, TICK, TICK_CHAIN};
use super::meter::{self, Stop};
use super::regex_cost;
use super::tree;
use super::value::{self, V};
use crate::data::Num;

/// Configures jaq to use this module's values.
pub(super) struct JaqData;

impl DataT for JaqData {
    type V<'a> = V;
    type Data<'a> = &'a Lut<Self>;
}

/// Functions that are excluded on purpose, with the reason.
pub(super) const REFUSED: [(&str, &str); 14] = [
    ("env", "an expression sees no environment"),
    ("input", "an expression has one input, `.`"),
    ("inputs", "an expression has one input, `.`"),
    ("input_filename", "an expression reads no files"),
    ("input_line_number", "an expression reads no files"),
    ("debug", "an expression has no terminal"),
    ("stderr", "an expression has no terminal"),
    ("halt", "`error` ends an expression"),
    ("halt_error", "`error` ends an expression"),
    ("import", "there are no modules"),
    ("include", "there are no modules"),
    ("module", "there are no modules"),
    ("get_search_list", "there are no modules"),
    ("modulemeta", "there are no modules"),
];

/// Functions of jaq that are not available: they access the environment, or are internal parts of excluded functions.
const DROPPED: [&str; 11] = [
    "env",
    "now",
    "halt",
    "debug_empty",
    "stderr_empty",
    "explode",
    "sort",
    "sort_by",
    "group_by",
    "min_by_or_empty",
    "max_by_or_empty",
];

/// Functions of jq that jaq lacks.
const MORE: &str = r#"
def toarray: if isarray then . else [.] end;
def leaf_paths: paths(scalars);
def IN(list): . as $wanted | any(list; . == $wanted);
def IN(list; wanted): any(list; IN(wanted));
def INDEX(list; key): reduce list as $item ({}; . + {($item | key | tostring): $item});
def INDEX(key): INDEX(.[]; key);
"#;

/// The definitions, in jq, of the functions that `called` needs, in order.
pub(super) fn definitions(called: &BTreeSet<String>) -> Vec<Def<&'static str>> {
    let all = all();
    let mut wanted: BTreeSet<&str> = called.iter().map(String::as_str).collect();
    let mut kept = Vec::new();
    // A definition calls only itself and earlier definitions.
    for (def, calls) in all.iter().rev() {
        if wanted.contains(def.name) {
            wanted.extend(calls.iter().map(String::as_str));
            kept.push(def.clone());
        }
    }
    kept.reverse();
    kept
}

/// The names of all functions.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let defined = all().iter().map(|(def, _)| def.name);
    defined.chain(natives().map(|(name, ..)| name)).filter(|name| !name.starts_with('!'))
}

fn all() -> &'static [(Def<&'static str>, BTreeSet<String>)] {
    static ALL: OnceLock<Vec<(Def<&'static str>, BTreeSet<String>)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let more = jaq_core::load::parse(MORE, |parser| parser.defs()).unwrap_or_default();
        let jaq = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs());
        let refused = |name: &str| REFUSED.iter().any(|(refused, _)| *refused == name);
        let guarded = jaq.chain(more).filter(|def| !refused(def.name)).map(instrument::definition);
        let regex = instrument::REGEX.into_iter().map(|(from, to)| instrument::regex(from, to));
        regex
            .chain(guarded)
            .map(|def| (tree::calls(&def.body), def))
            .map(|(calls, def)| (def, calls))
            .collect()
    })
}

/// The functions in Rust.
pub(super) fn natives() -> impl Iterator<Item = Fun<JaqData>> {
    let jaq = jaq_core::funs().chain(jaq_std::funs());
    jaq.filter(|(name, ..)| !DROPPED.contains(name)).chain(ours())
}

fn counted<'a>(passed: Result<(), Stop>) -> Result<(), Exn<'a, V>> {
    // `try` can catch an error. The halt cannot be caught.
    passed.map_err(|_| Exn::halt(1))
}

fn ours() -> impl Iterator<Item = Fun<JaqData>> {
    // Through functions, since a native function is a pointer to one and holds nothing.
    macro_rules! native {
        ($tick:path) => {
            Native::<JaqData>::new(|cv| box_once(counted($tick()).map(|()| cv.1)))
                .with_paths(|cv| {
                    // Values are not deeper, so longer paths lead only through null.
                    let passed = match cv.1.1.iter().nth(meter::DEPTH as usize) {
                        Some(_) => Err(meter::stop(Stop::Depth)),
                        None => $tick(),
                    };
                    box_once(counted(passed).map(|()| cv.1))
                })
                .with_update(|cv, update| match counted($tick()) {
                    Ok(()) => update(cv.1),
                    Err(end) => box_once(Err(end)),
                })
        };
    }
    let plain: [Fun<JaqData>; 10] = [
        run::<JaqData>(("now", v(0), |_| bome(Ok(V::from(meter::now_unix_ms() as f64 / 1_000.0))))),
        run::<JaqData>((REGEX_COST, v(1), |cv| {
            unary(cv, |text, pattern| {
                if let (V::Str(text), V::Str(pattern)) = (&text, &pattern) {
                    let cost = regex_cost::of(pattern).map_err(Error::str)?;
                    if text.len() > regex_cost::TEXT_BYTES {
                        return Err(Error::str("regular expressions take at most 256 KiB of text"));
                    }
                    meter::work(cost.saturating_mul(1 + text.len() as u64)).map_err(ended)?;
                }
                Ok(text)
            })
        })),
        run::<JaqData>(("length", v(0), |cv| bome(length(&cv.1)))),
        run::<JaqData>(("explode", v(0), |cv| bome(explode(&cv.1)))),
        run::<JaqData>(("tojson", v(0), |cv| bome(cv.1.json_text().map_err(ended)))),
        run::<JaqData>(("fromjson", v(0), |cv| bome(from_json(&cv.1)))),
        run::<JaqData>(("has", v(1), |cv| {
            unary(cv, |value, key| value.index_opt(&key).map(|found| V::Bool(found.is_some())))
        })),
        run::<JaqData>(("contains", v(1), |cv| {
            unary(cv, |value, part| contains(&value, &part).map(V::Bool))
        })),
        run::<JaqData>(("indices", v(1), |cv| unary(cv, |value, wanted| value.indices(&wanted)))),
        run::<JaqData>(("bsearch", v(1), |cv| {
            unary(cv, |value, wanted| match value.items() {
                Some(items) => Ok(V::from(search(items, &wanted).map_err(ended)?)),
                None => Err(Error::typ(value, "array")),
            })
        })),
    ];
    plain
        .into_iter()
        .chain(sorting())
        .chain([(TICK, v(0), native!(meter::tick)), (TICK_CHAIN, v(0), native!(meter::tick_chain))])
}

/// Like jaq's functions. jaq's own functions continue to compare after the steps are used up.
fn sorting() -> [Fun<JaqData>; 5] {
    let by = || -> Box<[Bind]> { Box::new([Bind::Fun(())]) };
    [
        run::<JaqData>(("sort", v(0), |cv| {
            let items = items_of(&cv.1);
            let sorted = items.and_then(|items| value::sort(items, V::order).map_err(ended));
            bome(sorted.and_then(|items| V::array(items).map_err(ended)))
        })),
        run::<JaqData>(("sort_by", by(), |cv| {
            box_once(keyed(cv).and_then(|items| {
                let items = items.into_iter().map(|(_, item)| item).collect();
                Ok(V::array(items).map_err(ended)?)
            }))
        })),
        run::<JaqData>(("group_by", by(), |cv| box_once(keyed(cv).and_then(grouped)))),
        run::<JaqData>(("min_by_or_empty", by(), |cv| {
            first(keyed(cv).map(|items| items.into_iter().next()))
        })),
        run::<JaqData>(("max_by_or_empty", by(), |cv| {
            first(keyed(cv).map(|items| items.into_iter().next_back()))
        })),
    ]
}

fn first<'a>(found: Result<Option<(Vec<V>, V)>, Exn<'a, V>>) -> jaq_core::ValXs<'a, V> {
    match found {
        Ok(None) => Box::new(std::iter::empty()),
        Ok(Some((_, item))) => box_once(Ok(item)),
        Err(error) => box_once(Err(error)),
    }
}

fn items_of(value: &V) -> Result<Vec<V>, Error<V>> {
    match value.items() {
        Some(items) => {
            meter::allocate(32 * items.len() as u64).map_err(ended)?;
            Ok(items.iter().cloned().collect())
        }
        None => Err(Error::typ(value.clone(), "array")),
    }
}

/// The items with their sort keys, sorted by key.
fn keyed<'a>(mut cv: Cv<'a, JaqData>) -> Result<Vec<(Vec<V>, V)>, Exn<'a, V>> {
    let (by, context) = cv.0.pop_fun();
    let mut keyed = Vec::new();
    for item in items_of(&cv.1).map_err(Exn::from)? {
        let key: Vec<V> = by.run((context.clone(), item.clone())).collect::<Result<_, _>>()?;
        counted(meter::allocate(32 * (2 + key.len() as u64)))?;
        keyed.push((key, item));
    }
    value::sort(keyed, |(left, _), (right, _)| same_or(left, right)).map_err(|_| Exn::halt(1))
}

/// The order of two sort keys, each with several values.
fn same_or(left: &[V], right: &[V]) -> Result<std::cmp::Ordering, Stop> {
    for (left, right) in left.iter().zip(right) {
        let order = left.order(right)?;
        if order.is_ne() {
            return Ok(order);
        }
    }
    Ok(left.len().cmp(&right.len()))
}

fn grouped<'a>(items: Vec<(Vec<V>, V)>) -> ValX<'a, V> {
    let mut groups = Vec::new();
    let mut group: Vec<V> = Vec::new();
    let mut key: Option<Vec<V>> = None;
    for (next, item) in items {
        let same = match &key {
            Some(key) => same_or(key, &next).map_err(ended)?.is_eq(),
            None => true,
        };
        if !same {
            groups.push(V::array(std::mem::take(&mut group)).map_err(ended)?);
        }
        key = Some(next);
        group.push(item);
    }
    if !group.is_empty() {
        groups.push(V::array(group).map_err(ended)?);
    }
    Ok(V::array(groups).map_err(ended)?)
}

/// The index of `wanted` in sorted items. If it does not exist, -1 minus the index at which it would be inserted.
fn search(items: &crate::data::List, wanted: &V) -> Result<isize, Stop> {
    let (mut from, mut upto) = (0, items.len());
    while from < upto {
        let middle = from + (upto - from) / 2;
        let Some(item) = items.get(middle) else { break };
        match item.order(wanted)? {
            std::cmp::Ordering::Equal => return Ok(middle as isize),
            std::cmp::Ordering::Less => from = middle + 1,
            std::cmp::Ordering::Greater => upto = middle,
        }
    }
    Ok(-1 - from as isize)
}

pub(super) fn length(value: &V) -> ValR<V> {
    match value {
        V::Null => Ok(V::from(0usize)),
        V::Num(number) => Ok(V::Num(number.abs())),
        V::Str(text) => {
            meter::work(text.len() as u64).map_err(ended)?;
            Ok(V::from(text.chars().count()))
        }
        V::Arr(array) => Ok(V::from(array.items().len())),
        V::Obj(object) => Ok(V::from(object.fields().len())),
        V::Bool(_) => Err(Error::str(format_args!("{value} has no length"))),
    }
}

/// Like jaq's function, which creates all items before any is counted.
fn explode(value: &V) -> ValR<V> {
    let V::Str(text) = value else { return Err(Error::typ(value.clone(), "string")) };
    let len = text.chars().count();
    if len > meter::ITEMS {
        return Err(ended(meter::stop(Stop::Items)));
    }
    V::array(text.chars().map(|c| V::Num(Num::Int(u32::from(c).into()))).collect()).map_err(ended)
}

fn from_json(value: &V) -> ValR<V> {
    let V::Str(text) = value else { return Err(Error::typ(value.clone(), "string")) };
    meter::allocate(4 * text.len() as u64).map_err(ended)?;
    match serde_json::from_str::<V>(text) {
        Ok(json) => meter::value(json.bytes()).map(|()| json).map_err(ended),
        Err(error) => match text.trim() {
            "NaN" | "nan" => Ok(V::Num(Num::Float(f64::NAN))),
            _ => Err(Error::str(format_args!("{value} is not JSON: {error}"))),
        },
    }
}

fn contains(value: &V, part: &V) -> ValR<bool, V> {
    meter::work(64).map_err(ended)?;
    match (value, part) {
        (V::Str(text), V::Str(part)) => {
            meter::work(text.len() as u64).map_err(ended)?;
            Ok(text.contains(&**part))
        }
        (V::Arr(items), V::Arr(parts)) => {
            for wanted in parts.items().iter() {
                let mut found = false;
                for item in items.items().iter() {
                    if contains(item, wanted)? {
                        found = true;
                        break;
                    }
                }
                if !found {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (V::Obj(object), V::Obj(part)) => {
            for (key, wanted) in part.fields().iter() {
                match object.fields().get(key) {
                    Some(found) if contains(found, wanted)? => {}
                    _ => return Ok(false),
                }
            }
            Ok(true)
        }
        _ => Ok(value == part),
    }
}
