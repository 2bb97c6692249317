use serde_json::json;

use super::*;

#[test]
fn smoke() {
    let e = Expression::parse("${ .a + 1 }", &[]).unwrap();
    assert_eq!(e.eval(&json!({"a": 2}), &(), 0), Ok(json!(3)));
    assert!(e.is_native());
    let e = Expression::parse("[.[] | . * 2] | add", &[]).unwrap();
    assert!(!e.is_native());
    assert_eq!(e.eval(&json!([1, 2, 3]), &(), 0), Ok(json!(12)));
}
