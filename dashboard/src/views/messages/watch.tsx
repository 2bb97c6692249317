// Messages of a topic filter as they arrive: the last 200, which can be held.
import type { VNode } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import type { Message } from "../../api/edgefaas/messages/v1/messages_pb";
import { messages } from "../../connection";
import { bytes, clock, count, counted } from "../../format";
import { Badge, Card, Empty } from "../../parts/basics";
import { Field, Form as SendForm } from "../../parts/form";
import { type Form, FormChoice, Payload } from "../../parts/payload";
import { useTail } from "../../parts/tail";
import { go, href } from "../../router";

const MAX_MESSAGES = 200;

export function Watch(props: { filter: string }) {
    const { filter } = props;
    return (
        <>
            <SendForm label="Watch" keep send={async (text) => go("messages", ["watch"], { filter: text("filter").trim() })}>
                <div class="fields">
                    <Field name="filter" label="Topic filter" value={filter} required placeholder="sensors/+/temperature" note="+ stands for one level, # for all below." />
                </div>
            </SendForm>
            {filter && <Arriving filter={filter} />}
        </>
    );
}

/** A message with its place in the list. */
interface Shown {
    number: number;
    message: Message;
}

function Arriving(props: { filter: string }) {
    const { filter } = props;
    const [form, setForm] = useState<Form>("auto");
    const [paused, setPaused] = useState(false);
    // The node ends each stream after a minute; the next one must not bring the retained messages again.
    const hasBegun = useRef(false);
    const arrived = useRef(0);
    const lost = useRef(0n);
    async function* open(signal: AbortSignal): AsyncIterable<Shown> {
        const request = { filter, retained: !hasBegun.current };
        for await (const message of messages.subscribe(request, { signal, timeoutMs: 0 })) {
            hasBegun.current = true;
            arrived.current += 1;
            lost.current += message.lostBefore;
            yield { number: arrived.current, message };
        }
    }
    const { items, skipped, error, clear } = useTail({ open, max: MAX_MESSAGES, paused }, [filter]);
    const known = useMemo(() => new WeakMap<Shown, VNode>(), [form]);
    const drawn = (item: Shown): VNode => {
        const article = known.get(item) ?? one(item, form);
        known.set(item, article);
        return article;
    };
    const missing = lost.current + BigInt(skipped);
    return (
        <Card
            title={`Messages of ${filter}`}
            actions={
                <>
                    <FormChoice form={form} change={setForm} />
                    <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>
                        Pause
                    </button>
                    <button type="button" onClick={clear}>
                        Clear
                    </button>
                </>
            }
        >
            {error && <Empty error={error} />}
            {!(error && items.length === 0) && (
                <p>
                    <small>
                        {count(items.at(-1)?.number ?? 0)} arrived, the last {MAX_MESSAGES} are kept
                    </small>
                    {missing > 0n && <span class="warn">, {counted(missing, "message was", "messages were")} lost: more came than this page reads</span>}
                    {paused && <span class="warn"> (held)</span>}
                </p>
            )}
            <div class="log messages" role="log" aria-label="Messages" aria-live="off" tabIndex={0}>
                {items.length === 0 && !error && <p class="empty">No message yet.</p>}
                {[...items].reverse().map((item) => drawn(item))}
            </div>
        </Card>
    );
}

/** One message. Drawn once: a list that moves on many times a second keeps the others. */
function one({ number, message }: Shown, form: Form): VNode {
    return (
        <article key={number}>
            <header>
                <time>{clock(message.unixMs)}</time> <a href={href("messages", ["topics"], { topic: message.topic })}>{message.topic}</a>{" "}
                <small>
                    {bytes(message.payloadBytes)}
                    {message.contentType && `, ${message.contentType}`}
                </small>{" "}
                {message.retain && <Badge tone="quiet">retained</Badge>}
            </header>
            {message.lostBefore > 0n && <div class="warn">{counted(message.lostBefore, "message")} before this one {message.lostBefore === 1n ? "was" : "were"} lost</div>}
            <Payload data={message.payload} total={message.payloadBytes} form={form} short />
            {message.userProperties.length > 0 && (
                <small>{message.userProperties.map(({ name, value }) => `${name}: ${value}`).join(", ")}</small>
            )}
        </article>
    );
}
