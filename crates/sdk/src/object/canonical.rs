use serde_json::{Map, Number, Value};

/// The canonical JSON text, which equal values share, as RFC 8785 writes it and the JavaScript engine does: keys in the
/// order of their UTF-16, numbers as JavaScript prints them, no spaces. Whole numbers of more than 53 bits keep all their
/// digits, other than in JavaScript.
pub fn canonical(value: &Value) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

fn write(value: &Value, text: &mut String) {
    match value {
        Value::Number(number) => text.push_str(&number_text(number)),
        Value::Array(values) => {
            text.push('[');
            for (index, value) in values.iter().enumerate() {
                separate(index, text);
                write(value, text);
            }
            text.push(']');
        }
        Value::Object(members) => {
            text.push('{');
            for (index, (key, value)) in ordered(members).into_iter().enumerate() {
                separate(index, text);
                text.push_str(&Value::from(key).to_string());
                text.push(':');
                write(value, text);
            }
            text.push('}');
        }
        Value::Null | Value::Bool(_) | Value::String(_) => text.push_str(&value.to_string()),
    }
}

fn separate(index: usize, text: &mut String) {
    if index > 0 {
        text.push(',');
    }
}

fn ordered(members: &Map<String, Value>) -> Vec<(&str, &Value)> {
    let mut ordered: Vec<(&str, &Value)> = members.iter().map(|(key, value)| (&**key, value)).collect();
    ordered.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    ordered
}

fn number_text(number: &Number) -> String {
    if number.is_i64() || number.is_u64() {
        return number.to_string();
    }
    number.as_f64().map_or_else(|| number.to_string(), float_text)
}

/// `Number::toString` of ECMA-262: plain from 1e-6 up to 1e21, else with an exponent that has its sign.
fn float_text(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    if (1e-6..1e21).contains(&number.abs()) {
        return number.to_string();
    }
    let text = format!("{number:e}");
    if text.contains("e-") { text } else { text.replace('e', "e+") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_one_text() {
        let text = "{\"b\": [{\"d\": 1.0, \"c\": null}], \"a\": 1e21, \"10\": 0, \"9\": -0.0, \"\u{e000}\": 1, \"\u{1f600}\": \"\\u001f\\n\"}";
        let value: Value = serde_json::from_str(text).unwrap();
        // The isolates' tests expect the same of JavaScript.
        let expected = "{\"10\":0,\"9\":0,\"a\":1e+21,\"b\":[{\"c\":null,\"d\":1}],\"\u{1f600}\":\"\\u001f\\n\",\"\u{e000}\":1}";
        assert_eq!(canonical(&value), expected);
        assert_eq!(canonical(&serde_json::from_str(expected).unwrap()), expected);
    }

    #[test]
    fn numbers_are_those_of_javascript() {
        for (number, text) in [
            (1.0, "1"),
            (-1.5, "-1.5"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (-1.5e300, "-1.5e+300"),
            (1e-6, "0.000001"),
            (1e-7, "1e-7"),
            (5e-324, "5e-324"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::MAX, "1.7976931348623157e+308"),
        ] {
            assert_eq!(canonical(&Value::from(number)), text);
        }
        assert_eq!(canonical(&Value::from(u64::MAX)), "18446744073709551615");
        assert_eq!(canonical(&Value::from(i64::MIN)), "-9223372036854775808");
    }
}
