// Publishes a message, as a client of MQTT would.
import { useState } from "preact/hooks";
import { messages } from "../../connection";
import { counted } from "../../format";
import { Card } from "../../parts/basics";
import { Field, type Fields, Form, QosChoice } from "../../parts/form";
import { href } from "../../router";

export function Publish(props: { topic: string }) {
    const [sent, setSent] = useState<{ topic: string; subscribers: bigint }>();
    const send = async (text: Fields) => {
        setSent(undefined);
        const topic = text("topic");
        const { subscribers } = await messages.publish({
            topic,
            payload: new TextEncoder().encode(text("payload")),
            qos: Number(text("qos")),
            retain: text("retain") === "on",
            contentType: text("type").trim(),
        });
        setSent({ topic, subscribers });
    };
    return (
        <Card title="Publish a message">
            <Form label="Publish" send={send} keep primary>
                <div class="fields">
                    <Field name="topic" label="Topic" value={props.topic} required />
                    <QosChoice qos={0} />
                    <Field name="type" label="Content type" placeholder="application/json" />
                </div>
                <label>
                    Payload
                    <textarea name="payload" rows={6} spellcheck={false} />
                </label>
                <label class="inline">
                    <input type="checkbox" name="retain" />
                    Retain it for later subscribers
                </label>
            </Form>
            {sent && (
                <p role="status">
                    Published: it went to {counted(sent.subscribers, "subscription")}, beside the functions and workflows that it starts.{" "}
                    <a href={href("messages", ["topics"], { topic: sent.topic })}>Show the topic</a>
                </p>
            )}
        </Card>
    );
}
