// Runs a function with an event of any kind, and shows the answer, what it logged, and where the time went.
import { useRef, useState } from "preact/hooks";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Function as Fn, InvokeRequestSchema, InvokeResponse, LogLine, Span } from "../api/edgefaas/control/v1/control_pb";
import { control } from "../connection";
import { duration } from "../format";
import { Badge, Card, Value, textOf } from "./basics";
import { Field, Form, type Fields, QosChoice } from "./form";
import { type Example, exampleOf, isPattern, type Kind } from "./triggers";
import { Waterfall } from "./waterfall";

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
    const examples = props.function.triggers.map(exampleOf).filter((one) => one !== undefined);
    const [kind, setKind] = useState<Kind>(examples[0]?.kind ?? "call");
    const example = examples.find((one) => one.kind === kind) ?? { kind };
    const [body, setBody] = useState("");
    const [outcome, setOutcome] = useState<Outcome>();
    /** Of the last call or change of the kind: an answer to what was before is not shown. */
    const last = useRef(0);
    const begin = () => {
        setOutcome(undefined);
        last.current += 1;
        return last.current;
    };
    const choose = (kind: Kind) => {
        begin();
        setKind(kind);
    };
    const send = async (text: Fields) => {
        const number = begin();
        try {
            const outcome = await invoke(props.function.name, kind, text);
            if (number === last.current) setOutcome(outcome);
        } catch (cause) {
            if (number === last.current) throw cause;
        } finally {
            props.done();
        }
    };
    return (
        <Card title="Invoke">
            <Form label="Invoke" send={send} about={kind} keep primary>
                <div class="fields">
                    <label>
                        Event
                        <select value={kind} onChange={(event) => choose(event.currentTarget.value as Kind)}>
                            {KINDS.map(([value, name]) => (
                                <option key={value} value={value}>
                                    {name}
                                </option>
                            ))}
                        </select>
                    </label>
                    <EventFields key={kind} example={example} />
                </div>
                {kind === "http" && (
                    <label>
                        Headers
                        <textarea name="headers" rows={2} spellcheck={false} placeholder="content-type: application/json" />
                        <small>One per line: name: value.</small>
                    </label>
                )}
                {kind === "mqtt" && (
                    <label class="inline">
                        <input type="checkbox" name="retain" />
                        As a retained message
                    </label>
                )}
                {kind !== "cron" && (
                    <label>
                        {kind === "object" ? "New value, as JSON" : "Body"}
                        <textarea name="data" rows={4} spellcheck={false} value={body} onInput={(event) => setBody(event.currentTarget.value)} />
                        {kind === "object" && <small>Empty: it is deleted.</small>}
                    </label>
                )}
            </Form>
            {outcome && <Shown outcome={outcome} />}
        </Card>
    );
}

/** What a trigger determines is filled in; of a pattern the placeholder shows which names fit. */
function EventFields(props: { example: Example }) {
    const { example } = props;
    const { kind } = example;
    const given = (text: string | undefined) => (text && isPattern(kind, text) ? { placeholder: text } : { value: text ?? "" });
    switch (kind) {
        case "call":
            return null;
        case "http":
            return (
                <>
                    <Field name="method" label="Method" value={example.method ?? "GET"} />
                    <Field name="path" label="Path and query" required {...given(example.path ?? "/")} />
                </>
            );
        case "mqtt":
            return (
                <>
                    <Field name="topic" label="Topic" required {...given(example.topic)} />
                    <QosChoice qos={example.qos ?? 0} />
                    <Field name="type" label="Content type" placeholder="application/json" />
                </>
            );
        case "cron":
            return (
                <>
                    <Field name="schedule" label="Schedule" value={example.schedule ?? ""} note="Empty: the first one of the function." />
                    <label>
                        Scheduled time
                        <input type="datetime-local" name="scheduled" step="1" />
                        <small>Empty: now.</small>
                    </label>
                </>
            );
        case "object":
            return (
                <>
                    <Field name="object" label="Object" required {...given(example.object)} />
                    <Field name="field" label="Field" required {...given(example.field)} />
                </>
            );
    }
}

/** Lines of the form `name: value`; throws with the line that is not. */
function headersOf(text: string): { name: string; value: string }[] {
    return text
        .split("\n")
        .map((line, index) => ({ line: line.trim(), number: index + 1 }))
        .filter(({ line }) => line !== "")
        .map(({ line, number }) => {
            const [, name, value] = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):\s*(.*)$/.exec(line) ?? [];
            if (name === undefined || value === undefined) throw new Error(`line ${number} of the headers is not \`name: value\``);
            return { name, value };
        });
}

/** A time of a form in the zone of this browser; now if it is empty. */
function scheduledMs(text: string): bigint {
    return BigInt(text === "" ? Date.now() : new Date(text).getTime());
}

function eventOf(kind: Kind, text: Fields): MessageInitShape<typeof InvokeRequestSchema>["event"] {
    switch (kind) {
        case "call":
            return { case: undefined };
        case "http": {
            const at = text("path").indexOf("?");
            const [path, query] = at < 0 ? [text("path"), ""] : [text("path").slice(0, at), text("path").slice(at + 1)];
            return { case: "http", value: { method: text("method"), path: path || "/", query, headers: headersOf(text("headers")) } };
        }
        case "mqtt":
            return {
                case: "mqtt",
                value: { topic: text("topic"), qos: Number(text("qos")), retain: text("retain") === "on", contentType: text("type").trim() },
            };
        case "cron":
            return { case: "cron", value: { schedule: text("schedule").trim(), scheduledUnixMs: scheduledMs(text("scheduled")) } };
        case "object":
            return { case: "object", value: { object: text("object"), field: text("field") } };
    }
}

async function invoke(name: string, kind: Kind, text: Fields): Promise<Outcome> {
    const event = eventOf(kind, text);
    const data = new TextEncoder().encode(text("data"));
    const answer = await control.invoke({ function: name, data, event }, { timeoutMs: 0 });
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
            {outcome.case === "reply" && outcome.value.headers.length > 0 && (
                <>
                    <small>Headers</small>
                    <Value raw text={outcome.value.headers.map(({ name, value }) => `${name}: ${value}`).join("\n")} />
                </>
            )}
            {outcome.case === "reply" && <Value text={outcome.value.body.length === 0 ? "(no body)" : textOf(outcome.value.body)} />}
            {lines.length > 0 && <Value text={lines.map((line) => `${line.level} ${line.message}`).join("\n")} />}
            {spans.length > 0 && <Waterfall spans={spans} />}
        </div>
    );
}
