use edgefaas::prelude::*;

#[edgefaas::function]
fn greet(event: Event, _context: Context) -> String {
    match event.text() {
        Ok("") | Err(_) => "Hello from {{name}}".into(),
        Ok(text) => format!("Hello, {text}"),
    }
}
