//! Estimated cost of an expression. A cheap expression is evaluated on the thread that needs the value, all others on a
//! compute thread. The estimate is conservative. It selects the thread and never changes the result.

use jaq_core::load::parse::{BinaryOp, Term};
use jaq_core::ops::Math;
use jaq_core::path::{Part, Path};

use super::tree;

/// The size of data, in bytes, with which an expression without iterations takes less than a millisecond.
pub(crate) const LINEAR_BYTES: u64 = 256 << 10;
/// The same for an expression with one iteration over the data.
const ITEMS_BYTES: u64 = 32 << 10;
/// The same for an expression with nested iterations.
const PAIRS_BYTES: u64 = 4 << 10;

/// Functions whose work is linear in their input.
const PLAIN: &[&str] = &[
    "select",
    "length",
    "keys",
    "keys_unsorted",
    "has",
    "in",
    "not",
    "empty",
    "error",
    "true",
    "false",
    "null",
    "type",
    "tostring",
    "tonumber",
    "toboolean",
    "floor",
    "ceil",
    "round",
    "sqrt",
    "fabs",
    "abs",
    "ascii_downcase",
    "ascii_upcase",
    "startswith",
    "endswith",
    "ltrimstr",
    "rtrimstr",
    "trim",
    "ltrim",
    "rtrim",
    "tojson",
    "fromjson",
    "now",
    "todate",
    "fromdate",
    "first",
    "last",
    "isnumber",
    "isstring",
    "isarray",
    "isobject",
    "isboolean",
    "values",
    "nulls",
    "numbers",
    "strings",
    "arrays",
    "objects",
    "booleans",
    "scalars",
    "iterables",
    "toarray",
    "isempty",
    "@base64",
    "@base64d",
    "@uri",
    "@json",
    "@text",
    "@html",
    "@sh",
    "@csv",
    "@tsv",
    "ascii",
    "implode",
    "explode",
    "utf8bytelength",
    "gmtime",
    "mktime",
    "strftime",
    "strptime",
    "reverse",
];
/// Functions that iterate over items.
const ITERATES: &[&str] = &[
    "map",
    "add",
    "any",
    "all",
    "to_entries",
    "from_entries",
    "with_entries",
    "join",
    "min",
    "max",
    "min_by",
    "max_by",
    "sort",
    "sort_by",
    "group_by",
    "unique",
    "unique_by",
    "flatten",
    "contains",
    "inside",
    "index",
    "rindex",
    "indices",
    "map_values",
    "del",
    "split",
    "IN",
    "INDEX",
    "transpose",
    "to_array",
    "getpath",
    "setpath",
    "pick",
];

/// The size of data, in bytes, with which `term` takes at most about a millisecond; 0 if it cannot be estimated.
pub(super) fn quick_bytes(term: &Term<&str>) -> u64 {
    let mut iterations = 0;
    let mut unknown = false;
    tree::visit(term, &mut |inner| match inner {
        Term::Call(name, _) | Term::Str(Some(name), _) if PLAIN.contains(name) => {}
        Term::Call(name, _) if ITERATES.contains(name) => iterations += 1,
        Term::Call(..) | Term::Str(Some(_), _) | Term::Def(..) | Term::Label(..) | Term::Recurse => {
            unknown = true
        }
        Term::Fold(..) => iterations += 1,
        Term::Path(_, Path(parts)) => {
            iterations += parts.iter().filter(|(part, _)| matches!(part, Part::Range(None, None))).count();
        }
        // A repeated string may become large, and the difference of lists compares all items.
        Term::BinOp(left, BinaryOp::Math(Math::Mul), right) => {
            unknown |= !(is_number(left) || is_number(right))
        }
        Term::BinOp(left, BinaryOp::Math(Math::Sub), right) if !(is_number(left) || is_number(right)) => {
            iterations += 1;
        }
        _ => {}
    });
    match iterations {
        _ if unknown => 0,
        0 => LINEAR_BYTES,
        1 => ITEMS_BYTES,
        2 => PAIRS_BYTES,
        _ => 0,
    }
}

/// True for a number up to 1,000, and for a term that can only be such a number.
fn is_number(term: &Term<&str>) -> bool {
    match term {
        Term::Num(text) => text.parse::<f64>().is_ok_and(|number| number <= 1_000.0),
        Term::Neg(inner) => is_number(inner),
        Term::Call(name, _) => matches!(*name, "length" | "tonumber" | "floor" | "round" | "ceil" | "now"),
        _ => false,
    }
}
