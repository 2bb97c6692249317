//! Functions as users write and test them.

use edgefaas::prelude::*;
use edgefaas::{DirectCall, Fetched, HttpRequest, MqttMessage, Request, TestNode};
use serde::{Deserialize, Serialize};

mod average {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub struct Reading {
        pub temperature_c: f64,
    }

    #[edgefaas::function]
    pub fn average(event: Event, context: Context) -> Result<Json<f64>, Error> {
        let Trigger::Mqtt(message) = event.trigger() else {
            return Err(Error::new(format_args!("a {} event has no reading", event.kind())));
        };
        let reading: Reading = event.json()?;
        let zone = message.level(1).unwrap_or("nowhere");
        let object = context.object(format!("greenhouse/{zone}"));
        let (sum, count) = (object.register("sum"), object.counter("count"));
        let total = sum.get::<f64>()?.unwrap_or_default() + reading.temperature_c;
        sum.set(&total)?;
        count.add(1)?;
        let average = total / count.value()? as f64;
        let options = PublishOptions { retain: true, ..PublishOptions::default() };
        context.publish_with(&format!("greenhouse/{zone}/average"), Json(average), &options)?;
        Ok(Json(average))
    }
}

mod concurrent {
    use super::*;

    #[edgefaas::function]
    pub async fn sum(event: Event, context: Context) -> Result<String, HostError> {
        let data = event.bytes();
        let first = context.call("double", data);
        let second = context.call("double", data);
        let (first, second) = (first.await?, second.wait()?);
        context.call("nobody", "x").await.expect_err("there is no such function");
        Ok(format!("{}{}", first.text().unwrap(), second.text().unwrap()))
    }
}

mod minimal {
    use super::*;

    #[edgefaas::function]
    pub fn path(event: Event) -> Option<String> {
        event.http().map(|request| request.path.clone())
    }
}

fn reading(topic: &str, payload: &str) -> Event {
    Event::new(Trigger::Mqtt(MqttMessage { topic: topic.into(), ..MqttMessage::default() }), payload)
}

#[test]
fn state_is_kept_and_messages_are_published() {
    let node = TestNode::new();
    for (temperature, expected) in [(20.0, 20.0), (24.0, 22.0)] {
        let payload = format!(r#"{{"temperature_c": {temperature}}}"#);
        let average = average::average(reading("greenhouse/north/climate", &payload), node.context());
        assert_eq!(average.unwrap(), Json(expected));
    }
    let published = node.published();
    assert_eq!(published.len(), 2);
    assert_eq!(published[1].topic, "greenhouse/north/average");
    assert_eq!(published[1].payload, b"22.0");
    assert!(published[1].options.retain);
}

#[test]
fn failures_say_what_is_wrong() {
    let node = TestNode::new();
    let failure =
        average::average(reading("greenhouse/north/climate", "warm"), node.context()).unwrap_err();
    assert_eq!(
        failure.message(),
        "the mqtt event's payload is not JSON of type functions::average::Reading: expected value at line 1 column 1"
    );
    let call = Event::new(Trigger::Call(DirectCall::default()), "");
    let failure = average::average(call, node.context()).unwrap_err();
    assert_eq!(failure.message(), "a call event has no reading");

    let object = node.context().object("greenhouse/north");
    object.counter("count").add(1).unwrap();
    let error = object.register("count").set("x").unwrap_err();
    assert_eq!(error, HostError::Invalid("field `count` is a counter, not a register".into()));
    assert!(matches!(node.context().publish("a/+", "x"), Err(HostError::Invalid(_))));
}

#[test]
fn async_functions_call_others() {
    let node = TestNode::new().function("double", |data| Ok(Reply::Bytes(data.repeat(2))));
    let event = Event::new(Trigger::Call(DirectCall::default()), "ab");
    assert_eq!(node.block_on(concurrent::sum(event, node.context())).unwrap(), "abababab");
}

#[test]
fn the_context_may_be_left_out() {
    let request = HttpRequest { path: "/north".into(), ..HttpRequest::default() };
    assert_eq!(minimal::path(Event::new(Trigger::Http(request), "")), Some("/north".into()));
    assert_eq!(minimal::path(reading("a", "")), None);
}

#[test]
fn config_and_secrets_are_typed() {
    let context = TestNode::new().config("target_c", 24.5).secret("key", "s3cret").context();
    assert_eq!(context.config::<f64>("target_c").unwrap(), Some(24.5));
    assert_eq!(context.config::<f64>("other").unwrap(), None);
    let error = context.config::<bool>("target_c").unwrap_err().to_string();
    assert_eq!(
        error,
        "config `target_c` is 24.5, which is not a bool: invalid type: floating point `24.5`, expected a boolean \
         at line 1 column 4; change it in the manifest"
    );
    assert_eq!(context.secret("key").as_deref(), Some("s3cret"));
    assert!(context.time_left().as_secs() > 0);
}

mod outgoing {
    use super::*;

    #[edgefaas::function]
    pub async fn sum(_event: Event, context: Context) -> Result<Json<f64>, Error> {
        let north = context.fetch(Request::get("http://sensors.example:8080/north"));
        let south = context.fetch(Request::post("http://sensors.example:8080/south").json(&1)?);
        Ok(Json(north.await?.json::<f64>()? + south.wait()?.json::<f64>()?))
    }
}

#[test]
fn requests_are_answered_by_the_tests_servers() {
    let call = || Event::new(Trigger::Call(DirectCall::default()), "");
    let node = TestNode::new().server("http://sensors.example:8080", |request| {
        let body = match (&*request.method, &*request.url) {
            ("GET", "http://sensors.example:8080/north") => "20.5".into(),
            ("POST", "http://sensors.example:8080/south") if request.body == b"1" => "1.5".into(),
            other => panic!("{other:?}"),
        };
        Ok(Fetched { status: 200, body, ..Fetched::default() })
    });
    assert_eq!(node.block_on(outgoing::sum(call(), node.context())).unwrap(), Json(22.0));
    let alone = TestNode::new();
    let failure = alone.block_on(outgoing::sum(call(), alone.context())).unwrap_err();
    assert!(failure.to_string().contains("nobody answers http://sensors.example"), "{failure}");
}
