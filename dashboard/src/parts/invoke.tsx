// Runs a function with an event of any kind, and shows the answer, what it logged, and where the time went.
import { useState } from "preact/hooks";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Function as Fn, InvokeRequestSchema, InvokeResponse, LogLine, Span } from "../api/edgefaas/control/v1/control_pb";
import { control } from "../connection";
import { duration } from "../format";
import { Badge, Card, Value, textOf } from "./basics";
import { Field, Form, type Fields } from "./form";
import { Waterfall } from "./waterfall";

type Kind = "call" | "http" | "mqtt" | "cron" | "object";
const KINDS: [Kind, string][] = [
    ["call", "Direct call"],
    ["http", "HTTP request"],
    ["mqtt", "MQTT message"],
    ["cron", "Schedule"],
    ["object", "Change of an object"],
];

interface Outcome {
    answer: InvokeResponse;
    lines: LogLine[];
    spans: Span[];
}

export function Invoke(props: { function: Fn; done: () => void }) {
    const [kind, setKind] = useState<Kind>("call");
    const [outcome, setOutcome] = useState<Outcome>();
    const send = async (text: Fields) => {
        setOutcome(undefined);
        try {
            setOutcome(await invoke(props.function.name, kind, text));
        } finally {
            props.done();
        }
    };
    return (
        <Card title="Invoke">
            <Form label="Invoke" send={send} keep primary>
                <div class="fields">
                    <label>
                        Event
                        <select value={kind} onChange={(event) => setKind(event.currentTarget.value as Kind)}>
                            {KINDS.map(([value, name]) => (
                                <option key={value} value={value}>
                                    {name}
                                </option>
                            ))}
                        </select>
                    </label>
                    {kind === "http" && <Field name="method" label="Method" value="GET" />}
                    {kind === "http" && <Field name="path" label="Path and query" value="/" />}
                    {kind === "mqtt" && <Field name="topic" label="Topic" required />}
                    {kind === "cron" && <Field name="schedule" label="Schedule" note="Empty: the first one of the function." />}
                    {kind === "object" && <Field name="object" label="Object" required />}
                    {kind === "object" && <Field name="field" label="Field" required />}
                </div>
                {kind !== "cron" && (
                    <label>
                        {kind === "object" ? "New value, as JSON" : "Body"}
                        <textarea name="data" rows={4} spellcheck={false} />
                    </label>
                )}
            </Form>
            {outcome && <Shown outcome={outcome} />}
        </Card>
    );
}

async function invoke(name: string, kind: Kind, text: Fields): Promise<Outcome> {
    const [path = "/", query = ""] = text("path").split("?");
    const events: Record<Kind, MessageInitShape<typeof InvokeRequestSchema>["event"]> = {
        call: { case: undefined },
        http: { case: "http", value: { method: text("method"), path: path || "/", query } },
        mqtt: { case: "mqtt", value: { topic: text("topic") } },
        cron: { case: "cron", value: { schedule: text("schedule") } },
        object: { case: "object", value: { object: text("object"), field: text("field") } },
    };
    const data = new TextEncoder().encode(text("data"));
    const answer = await control.invoke({ function: name, data, event: events[kind] }, { timeoutMs: 0 });
    const id = answer.invocationId;
    const lines: LogLine[] = [];
    for await (const line of control.logs({ function: name })) if (line.invocationId === id) lines.push(line);
    // A trace that was not recorded is no error here.
    const spans = await control.trace({ id }).then((trace) => trace.spans, () => []);
    return { answer, lines, spans };
}

function Shown(props: { outcome: Outcome }) {
    const { answer, lines, spans } = props.outcome;
    const { outcome, timing } = answer;
    return (
        <div class="outcome" aria-live="polite">
            <p>
                {outcome.case === "failure" ? <Badge tone="bad">failed</Badge> : <Badge tone="good">answered</Badge>}{" "}
                {outcome.case === "reply" && outcome.value.status > 0 && `status ${outcome.value.status}, `}
                in {duration((timing?.startUs ?? 0n) + (timing?.execUs ?? 0n))}
                {answer.node && ` on ${answer.node}`}
            </p>
            {outcome.case === "failure" && <Value text={`${outcome.value.title}: ${outcome.value.detail}`} />}
            {outcome.case === "reply" && <Value text={outcome.value.body.length === 0 ? "(no body)" : textOf(outcome.value.body)} />}
            {lines.length > 0 && <Value text={lines.map((line) => `${line.level} ${line.message}`).join("\n")} />}
            {spans.length > 0 && <Waterfall spans={spans} />}
        </div>
    );
}
