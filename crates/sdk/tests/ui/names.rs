//! Were one of these hidden by a name in the macro's expansion, it would be unused.
#![deny(warnings)]

mod first {
    #[edgefaas::function]
    fn handle(_: edgefaas::Event) {}
}

mod second {
    #[edgefaas::function]
    async fn event(_: edgefaas::Event, _: edgefaas::Context) -> &'static str {
        "event"
    }
}

mod third {
    #[edgefaas::function]
    fn context(_: edgefaas::Event, _: edgefaas::Context) {}
}

fn main() {}
