use serde_json::json;

use super::*;

#[test]
fn expressions_at_any_depth() {
    let template = Template::parse(
        &json!({"a": "${ .x }", "b": [1, "${ $item.y }", {"c": " ${.x + 1} "}], "d": "plain", "${ .x }": 1}),
        &["item"],
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
        let template = Template::parse(&value, &[]).unwrap();
        assert_eq!(template.literal(), Some(&value));
        assert_eq!(template.eval(&Data::Null, &(), Bounds::at(0)), Ok(of(&value)));
    }
}

#[test]
fn a_string_at_the_top() {
    let bare = Template::parse_expression_or_template(&json!(".x"), &[]).unwrap();
    assert_eq!(bare.eval(&of(&json!({"x": 1})), &(), Bounds::at(0)), Ok(of(&json!(1))));
    let wrapped = Template::parse_expression_or_template(&json!("${ .x }"), &[]).unwrap();
    assert_eq!(wrapped.eval(&of(&json!({"x": 1})), &(), Bounds::at(0)), Ok(of(&json!(1))));
    let object = Template::parse_expression_or_template(&json!({"a": ".x"}), &[]).unwrap();
    assert_eq!(object.literal(), Some(&json!({"a": ".x"})));
    assert_eq!(Template::parse(&json!(".x"), &[]).unwrap().literal(), Some(&json!(".x")));
}

#[test]
fn where_it_is_wrong() {
    let (pointer, error) = Template::parse(&json!({"a/b": [0, {"c~": "${ .x + }"}]}), &[]).unwrap_err();
    assert_eq!(pointer, "/a~1b/1/c~0");
    assert!(error.to_string().contains("expected"), "{error}");
    let (pointer, _) = Template::parse_expression_or_template(&json!("$nope"), &[]).unwrap_err();
    assert_eq!(pointer, "");
}
