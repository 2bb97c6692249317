use serde_json::json;

use super::*;

#[test]
fn expressions_at_any_depth() {
    let template = Template::parse(
        &json!({"a": "${ .x }", "b": [1, "${ $item.y }", {"c": " ${.x + 1} "}], "d": "plain", "${ .x }": 1}),
        &["item"],
        Mode::Strict,
    )
    .unwrap();
    assert_eq!(template.literal(), None);
    let variables = json!({"item": {"y": true}});
    assert_eq!(
        template.eval(&of(&json!({"x": 5})), &Object(&variables), Bounds::at(0)),
        Ok(of(&json!({"a": 5, "b": [1, true, {"c": 6}], "d": "plain", "${ .x }": 1}))),
    );
}

#[test]
fn literals() {
    for value in [json!(null), json!("x"), json!({"a": [1, "b ${c}"]}), json!([])] {
        let template = Template::parse(&value, &[], Mode::Strict).unwrap();
        assert_eq!(template.literal(), Some(&value));
        assert_eq!(template.eval(&Data::Null, &(), Bounds::at(0)), Ok(of(&value)));
    }
}

#[test]
fn a_string_at_the_top() {
    let bare = Template::parse_expression_or_template(&json!(".x"), &[], Mode::Strict).unwrap();
    assert_eq!(bare.eval(&of(&json!({"x": 1})), &(), Bounds::at(0)), Ok(of(&json!(1))));
    let wrapped = Template::parse_expression_or_template(&json!("${ .x }"), &[], Mode::Strict).unwrap();
    assert_eq!(wrapped.eval(&of(&json!({"x": 1})), &(), Bounds::at(0)), Ok(of(&json!(1))));
    let object = Template::parse_expression_or_template(&json!({"a": ".x"}), &[], Mode::Strict).unwrap();
    assert_eq!(object.literal(), Some(&json!({"a": ".x"})));
    assert_eq!(Template::parse(&json!(".x"), &[], Mode::Strict).unwrap().literal(), Some(&json!(".x")));
}

#[test]
fn where_it_is_wrong() {
    let (pointer, error) =
        Template::parse(&json!({"a/b": [0, {"c~": "${ .x + }"}]}), &[], Mode::Strict).unwrap_err();
    assert_eq!(pointer, "/a~1b/1/c~0");
    assert!(error.to_string().contains("expected"), "{error}");
    let (pointer, _) =
        Template::parse_expression_or_template(&json!("$nope"), &[], Mode::Strict).unwrap_err();
    assert_eq!(pointer, "");
}

#[test]
fn loose_strings_are_expressions_or_themselves() {
    let value = json!({"a": ".x", "b": "plain text", "c": "hello", "d": "${ .x }", "e": ".x.y", "f": "length", "g": 1});
    let template = Template::parse(&value, &[], Mode::Loose).unwrap();
    let wanted = json!({"a": 5, "b": "plain text", "c": "hello", "d": 5, "e": ".x.y", "f": 1, "g": 1});
    assert_eq!(template.eval(&of(&json!({"x": 5})), &(), Bounds::at(0)), Ok(of(&wanted)));
    // In `${ }` an error stays an error.
    let strict = Template::parse(&json!("${ .x.y }"), &[], Mode::Loose).unwrap();
    assert!(strict.eval(&of(&json!({"x": 5})), &(), Bounds::at(0)).is_err());
    assert!(Template::parse(&json!("${ .x + }"), &[], Mode::Loose).is_err());
}
