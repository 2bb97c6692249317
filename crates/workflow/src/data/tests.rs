use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn numbers(upto: u32) -> Vec<Data> {
    (0..upto).map(Data::from).collect()
}

#[test]
fn lists_of_all_sizes_keep_their_items() {
    let mut grown = List::default();
    for len in 0..40_000_usize {
        if len < 100 || len % 997 == 0 || (1_020..1_060).contains(&len) || (32_760..32_810).contains(&len) {
            let made: List = numbers(len as u32).into_iter().collect();
            assert_eq!((made.len(), grown.len()), (len, len));
            let expected = numbers(len as u32);
            assert!(made.iter().eq(expected.iter()) && grown.iter().eq(expected.iter()), "{len}");
            assert!(grown.iter().rev().eq(expected.iter().rev()));
            for at in [0, 1, 31, 32, 33, len / 2, len.saturating_sub(1), len, len + 1] {
                assert_eq!(grown.get(at), expected.get(at), "{at} of {len}");
                let upto = (at + 70).min(len);
                assert!(
                    grown.range(at.min(upto), upto).eq(expected[at.min(upto)..upto].iter()),
                    "{at} of {len}"
                );
            }
        }
        grown.push(Data::from(len as u32));
    }
}

#[test]
fn a_list_that_grows_leaves_its_clones_as_they_were() {
    let mut all = List::default();
    let mut clones = Vec::new();
    for number in 0..3_000_u32 {
        if number % 31 == 0 {
            clones.push(all.clone());
        }
        all.push(Data::from(number));
    }
    for (at, mut clone) in clones.into_iter().enumerate() {
        assert!(clone.iter().eq(numbers(at as u32 * 31).iter()));
        clone.push(Data::Null);
        assert_eq!(clone.get(at * 31), Some(&Data::Null));
    }
    assert!(all.iter().eq(numbers(3_000).iter()));
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 200, 40, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..40).prop_map(Value::Array),
            prop::collection::vec(("[a-z]{0,3}", inner), 0..40)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn json_and_back(value in values()) {
        let data = Data::from_json(&value).unwrap();
        prop_assert_eq!(data.to_json(), value.clone());
        prop_assert_eq!(serde_json::to_string(&data).unwrap(), value.to_string());
        let read: Data = serde_json::from_str(&value.to_string()).unwrap();
        prop_assert_eq!(read.to_json(), value);
        prop_assert_eq!((read.bytes(), read.depth()), (data.bytes(), data.depth()));
    }

    #[test]
    fn fields_are_those_of_a_map(changes in prop::collection::vec((any::<bool>(), "[a-e]{0,3}", 0..9_u32), 0..120)) {
        let (mut fields, mut model) = (Fields::default(), serde_json::Map::new());
        for (add, key, value) in changes {
            if add {
                fields.insert(key.as_str().into(), Data::from(value));
                model.insert(key, value.into());
            } else {
                fields.remove(&key);
                model.shift_remove(&key);
            }
        }
        prop_assert_eq!(fields.len(), model.len());
        for (key, value) in &model {
            prop_assert_eq!(fields.get(key).map(Data::to_json), Some(value.clone()));
        }
        prop_assert_eq!(Data::object_of(fields).to_json(), Value::Object(model));
    }
}
