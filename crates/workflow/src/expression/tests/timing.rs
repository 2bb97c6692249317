use std::time::Instant;

use serde_json::json;

use super::*;

/// `cargo test --release -p edgefaas-workflow timing -- --ignored --nocapture`
#[test]
#[ignore = "prints how long typical expressions take"]
fn prints() {
    let input = json!({"data": {"temp": 31.5, "id": "r1"}, "x": 1, "list": [1, 2, 3]});
    let variables = json!({"item": {"y": 2}});
    for text in [
        ".data.temp > 30",
        "{a: .x, b: [$item.y]}",
        "\"Room \\(.data.id) has \\(.data.temp)\"",
        ".list | map(. + 1) | add",
        "[.list[] | select(. > 1)]",
    ] {
        let started = Instant::now();
        let expression = Expression::parse(text, &["item"]).unwrap();
        let parsed = started.elapsed();
        let (scope, input) = (Object(&variables), of(&input));
        let mut best = u128::MAX;
        for _ in 0..20 {
            let started = Instant::now();
            for _ in 0..5_000 {
                std::hint::black_box(expression.eval(std::hint::black_box(&input), &scope, 0)).unwrap();
            }
            best = best.min(started.elapsed().as_nanos() / 5_000);
        }
        println!("{best:>7} ns, compiled in {parsed:?}, native {}: {text}", expression.is_native());
    }
}
