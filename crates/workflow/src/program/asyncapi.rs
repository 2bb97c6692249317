//! Compiles `call: asyncapi`: messages to and from the broker of this node.

use super::compile::Compiler;
use super::tasks::settled;
use super::{Channel, Consume, DataTest, EventFilter, Kind, Listen, Mode, Publish, Read, Strategy, Until};
use crate::api_document::AsyncOperation;
use crate::document::Located;
use crate::event::MQTT_TYPE;
use crate::expression::{Mode as Strings, Template};

/// Maximum number of messages that a subscription collects.
const MAX_AMOUNT: u64 = 100_000;

impl Compiler {
    pub(super) fn asyncapi(
        &mut self,
        value: &Located,
        with: Option<&Located>,
        path: &str,
        depth: usize,
    ) -> Option<Kind> {
        let Some(with) = with else {
            let message =
                "`call: asyncapi` needs `with: {document, operation}` and `message` or `subscription`";
            self.reader.problems.add(value.place, message);
            return None;
        };
        let known = [
            "document",
            "channel",
            "operation",
            "server",
            "protocol",
            "message",
            "subscription",
            "authentication",
        ];
        self.reader.check_keys(with, "`with`", &known);
        if let Some(authentication) = with.get("authentication") {
            self.authentication(authentication)?;
            let message = "messages go through the broker of this node, which asks its workflows for permissions, not for \
                           credentials: `authentication` is not used";
            self.warnings.add(authentication.place, message);
        }
        if let Some(protocol) = with.get("protocol")
            && !matches!(protocol.text(), Some("mqtt" | "mqtt5"))
        {
            self.reader.problems.add(protocol.place, "of the protocols only mqtt and mqtt5 are supported");
        }
        let channel = self.channel(with)?;
        match (with.get("message"), with.get("subscription")) {
            (Some(message), None) => self.outbound(message, channel).map(Kind::Publish),
            (None, Some(subscription)) => {
                self.subscription(subscription, channel, path, depth).map(Kind::Listen)
            }
            _ => {
                let message = "`with` has one of `message`, to publish, and `subscription`";
                self.reader.problems.add(with.place, message);
                None
            }
        }
    }

    /// `channel` is the topic; `operation` is looked up in the document.
    fn channel(&mut self, with: &Located) -> Option<Channel> {
        let server = with.get("server");
        if let Some(server) = server {
            self.reader.check_keys(server, "`server`", &["name", "variables"]);
        }
        if let Some(channel) = with.get("channel") {
            let topic = self.reader.text_template(channel, "`channel`")?;
            if let Some(document) = with.get("document") {
                let message = "the AsyncAPI document is not fetched; `channel` is taken as the topic on this node's broker";
                self.warnings.add(document.place, message);
            }
            return Some(Channel::Topic(topic));
        }
        let Some(operation) = with.get("operation") else {
            let help = "channel: lamps/kitchen, or the document with the name of an operation";
            self.reader.problems.add_with_help(with.place, "`with` needs `channel` or `operation`", help);
            return None;
        };
        let name = self.reader.text(operation, "`operation`")?;
        let document = self.reader.required(with, "document", "`with`")?;
        let document = self.resource(document)?;
        let server_name = match server {
            Some(server) => {
                let name = self.reader.required(server, "name", "`server`")?;
                Some(self.reader.text(name, "`name`")?)
            }
            None => None,
        };
        let variables = server.and_then(|server| server.get("variables")).map(Located::to_json);
        let variables = variables.and_then(|variables| variables.as_object().cloned()).unwrap_or_default();
        let protocol = with.get("protocol").and_then(Located::text).map(str::to_owned);
        let operation = AsyncOperation { name, server: server_name, variables, protocol };
        Some(Channel::Operation(document, operation))
    }

    fn outbound(&mut self, message: &Located, channel: Channel) -> Option<Publish> {
        self.reader.check_keys(message, "`message`", &["payload", "headers", "qos", "retain"]);
        let payload = self.reader.required(message, "payload", "`message`")?;
        let payload = self.reader.template(payload, "`payload`");
        let headers = message.get("headers").map(|headers| self.reader.template(headers, "`headers`"));
        let qos = message.get("qos").map(|qos| self.reader.number(qos, "`qos`", 0, 2));
        Some(Publish {
            channel,
            payload: payload?,
            headers: settled(headers)?,
            qos: settled(qos)?.unwrap_or(1) as u8,
            retain: self.reader.boolean(message.get("retain"), "`retain`", false),
        })
    }

    /// A subscription is a `listen` to the messages of the topic.
    fn subscription(
        &mut self,
        value: &Located,
        channel: Channel,
        path: &str,
        depth: usize,
    ) -> Option<Listen> {
        let value = self.reader.object(value, "`subscription`")?;
        self.reader.check_keys(value, "`subscription`", &["filter", "consume", "foreach"]);
        let filter = value.get("filter").map(|filter| self.reader.expression(filter, "`filter`"));
        let consume = self.reader.required(value, "consume", "`subscription`")?;
        let consume = self.consume(consume);
        let foreach = value
            .get("foreach")
            .map(|foreach| self.foreach(foreach, &format!("{path}/with/subscription"), depth));
        // Literals without expressions are always valid.
        let kind = Template::parse(&MQTT_TYPE.into(), &[], Strings::Strict).ok()?;
        let mut attributes = vec![("type".to_owned(), kind)];
        let operation = match channel {
            Channel::Topic(topic) => {
                attributes.push(("subject".to_owned(), topic));
                None
            }
            Channel::Operation(document, operation) => Some((document, operation)),
        };
        let filter = EventFilter {
            attributes,
            patterns: Vec::new(),
            data: settled(filter)?.map(DataTest::Message),
            correlate: Vec::new(),
        };
        Some(Listen {
            strategy: Strategy { mode: Mode::Any, filters: vec![filter], until: Some(Until::Never) },
            read: Read::Message,
            foreach: settled(foreach)?,
            rule: None,
            consume: Some(consume?),
            operation,
        })
    }

    fn consume(&mut self, value: &Located) -> Option<Consume> {
        let value = self.reader.object(value, "`consume`")?;
        self.reader.check_keys(value, "`consume`", &["amount", "for", "while", "until"]);
        if value.entries().is_empty() {
            self.reader.problems.add(value.place, "`consume` has one of amount, for, while, until");
            return None;
        }
        let amount =
            value.get("amount").map(|amount| self.reader.number(amount, "`amount`", 1, MAX_AMOUNT));
        let duration = value.get("for").map(|duration| self.reader.duration(duration, "`for`"));
        let condition = value.get("while").map(|condition| self.reader.expression(condition, "`while`"));
        let until = value.get("until").map(|until| self.reader.expression(until, "`until`"));
        Some(Consume {
            amount: settled(amount)?,
            duration: settled(duration)?,
            condition: settled(condition)?,
            until: settled(until)?,
        })
    }
}
