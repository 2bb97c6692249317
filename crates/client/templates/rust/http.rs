use edgefaas::prelude::*;

#[edgefaas::function]
fn handle(event: Event, context: Context) -> Result<String, Error> {
    let greeting: String = context.config("greeting")?.unwrap_or("Hello".into());
    let name = match event.text()? {
        "" => "world",
        name => name,
    };
    let greeted = context.object("{{name}}").counter("greeted");
    greeted.add(1)?;
    log::info!("greeting {name}");
    Ok(format!("{greeting}, {name}! You are number {}.\n", greeted.value()?))
}

#[cfg(test)]
mod tests {
    use edgefaas::{HttpRequest, TestNode};

    use super::*;

    #[test]
    fn everybody_is_greeted_and_counted() {
        let node = TestNode::new().config("greeting", "Moin");
        let event = |body: &str| Event::new(Trigger::Http(HttpRequest::default()), body);
        assert_eq!(handle(event(""), node.context()).unwrap(), "Moin, world! You are number 1.\n");
        assert_eq!(handle(event("Ada"), node.context()).unwrap(), "Moin, Ada! You are number 2.\n");
    }
}
