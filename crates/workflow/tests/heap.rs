//! Estimates of the memory of values against what the allocator gives out. A process of its own, since it counts all of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use edgefaas_workflow::{Data, weight};
use serde_json::{Value, json};

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has taken and not given back.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count(bytes: isize) {
        let _ = HELD.try_with(|held| held.set(held.get() + bytes));
    }
}

#[allow(unsafe_code, reason = "an allocator is unsafe by its interface; this one only counts")]
// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        Self::count(-(layout.size() as isize));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// A value, and the bytes of the heap that it takes.
fn measured<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    let made = make();
    (made, (HELD.get() - before) as usize)
}

/// JSON texts of values whose memory is of many kinds.
fn shapes() -> Vec<(String, String)> {
    let object = |fields: usize| -> Value {
        (0..fields).map(|field| (format!("field{field}"), Value::from(field))).collect()
    };
    let mut shapes = vec![
        ("many empty arrays".to_owned(), vec![json!([]); 5_000]),
        ("many empty objects".to_owned(), vec![json!({}); 5_000]),
        ("arrays of one number".to_owned(), vec![json!([1]); 5_000]),
        ("arrays in arrays".to_owned(), vec![json!([[[[[[1.5]]]]]]); 1_000]),
        ("short strings".to_owned(), vec![json!("x"); 5_000]),
        ("empty strings".to_owned(), vec![json!(""); 5_000]),
        ("strings of 20 bytes".to_owned(), vec![json!("x".repeat(20)); 5_000]),
        ("long strings".to_owned(), vec![json!("x".repeat(100_000)); 5]),
        ("a large list of numbers".to_owned(), (0..100_000).map(Value::from).collect()),
        ("points".to_owned(), vec![json!({"x": 1, "y": 2.5, "tags": ["a", "b"], "on": true}); 1_000]),
    ];
    for fields in [1, 2, 4, 7, 8, 15, 16, 17, 20, 29, 57, 1_000] {
        shapes.push((format!("objects of {fields} fields"), vec![object(fields); 100_000 / fields / 20]));
    }
    for items in [2, 5, 20, 31, 32, 33, 49, 65, 1_000] {
        let list: Value = (0..items).collect();
        shapes.push((format!("lists of {items} numbers"), vec![list; 50_000 / items / 10]));
    }
    shapes.into_iter().map(|(what, items)| (what, Value::Array(items).to_string())).collect()
}

fn ratio(what: &str, estimate: usize, bytes: usize) -> f64 {
    let ratio = estimate as f64 / bytes as f64;
    println!("{what}: {estimate} by the estimate, {bytes} in fact, {ratio:.2} times");
    ratio
}

#[test]
fn a_value_knows_what_it_takes() {
    let mut wrong = Vec::new();
    for (what, text) in shapes() {
        let json: Value = serde_json::from_str(&text).unwrap();
        let (read, read_bytes) = measured(|| serde_json::from_str::<Data>(&text).unwrap());
        let (made, made_bytes) = measured(|| Data::from_json(&json).unwrap());
        assert_eq!(read.bytes(), made.bytes());
        for (how, value, bytes) in [("read", read, read_bytes), ("made of JSON", made, made_bytes)] {
            let what = format!("{what}, {how}");
            let ratio = ratio(&what, value.bytes() as usize, bytes);
            if !(0.9..=2.0).contains(&ratio) {
                wrong.push((what, ratio));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn json_weighs_what_it_takes() {
    let mut wrong = Vec::new();
    for (what, text) in shapes() {
        let (json, bytes) = measured(|| serde_json::from_str::<Value>(&text).unwrap());
        let ratio = ratio(&what, weight(&json), bytes + size_of::<Value>());
        // A copy has no room for more, and weighs the same.
        assert_eq!(weight(&json.clone()), weight(&json));
        if !(0.9..=2.0).contains(&ratio) {
            wrong.push((what, ratio));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
