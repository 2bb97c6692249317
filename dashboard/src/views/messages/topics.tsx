// Topics with their rates: a tree that unfolds level by level, or what a search finds; and one topic with its last message.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Level, ListTopicsResponse, Message, Topic } from "../../api/edgefaas/messages/v1/messages_pb";
import { may, messages } from "../../connection";
import { bytes, clock, count, counted, rate, time } from "../../format";
import { useLive, useStream } from "../../live";
import { Badge, Card, Empty, Figure, Loaded, Table } from "../../parts/basics";
import { type Form, FormChoice, Payload, payloadText } from "../../parts/payload";
import { Pages, Search, usePages } from "../../parts/search";
import { href, place, useParameter } from "../../router";

/** Topics on one page, and levels of a branch at first. */
const PAGE = 100;
/** Levels of one branch that the node lists. */
const MAX_LEVELS = 1000;
/** Branches that are open at a time: each is a question to the node every 2 seconds. */
const MAX_OPEN = 30;
/** Characters of a last value in a list. */
const SHORT = 60;

export function Topics() {
    const [search, setSearch] = useParameter("search");
    const topic = place.value.query.get("topic") ?? "";
    return (
        <>
            {topic && <One key={topic} name={topic} />}
            <div class="search">
                <Search label="Search in the topics" placeholder="a part of a name, or a filter" text={search} change={setSearch} />
            </div>
            {search ? <Found search={search} /> : <Tree />}
        </>
    );
}

function topicsText(value: bigint): string {
    return counted(value, "topic");
}

/** What the node left out, beside what is shown. */
function LeftOut(props: { answer: ListTopicsResponse }) {
    const { leftOut } = props.answer;
    return leftOut > 0n ? <span class="warn">and {count(leftOut)} more than the node counts</span> : null;
}

function lastText(topic: Topic): string {
    if (!topic.last) return "";
    const text = payloadText(topic.last.payload.subarray(0, 4 * SHORT), "auto", true).replace(/\s+/g, " ");
    return text.length > SHORT ? `${text.slice(0, SHORT)}…` : text;
}

function Found(props: { search: string }) {
    const { search } = props;
    const pages = usePages([search]);
    // Names of topics have no wildcards: a text with one is a filter.
    const wanted = /[+#]/.test(search) ? { filter: search } : { search };
    const live = useLive((signal) => messages.listTopics({ ...wanted, after: pages.after, limit: PAGE }, { signal }), [search, pages.after]);
    const { data } = live;
    return (
        <Card title="Topics found" actions={data && <LeftOut answer={data} />}>
            <Loaded live={live}>
                {(data) =>
                    data.topics.length === 0 ? (
                        <Empty>{wanted.filter ? "No topic matches this filter." : "No topic has this text in its name."}</Empty>
                    ) : (
                        <Table
                            label="Topics found"
                            rows={data.topics}
                            id={(topic) => topic.name}
                            columns={[
                                { name: "Topic", cell: (topic) => <a href={href("messages", ["topics"], { topic: topic.name, search })}>{topic.name}</a> },
                                { name: "Rate", number: true, cell: (topic) => rate(topic.rate) },
                                { name: "Messages", number: true, wide: true, cell: (topic) => count(topic.messages) },
                                { name: "Last", wide: true, cell: lastText },
                                { name: "Retained", number: true, wide: true, cell: (topic) => topic.retainedBytes !== undefined && bytes(topic.retainedBytes) },
                            ]}
                        />
                    )
                }
            </Loaded>
            <Pages place={pages} last={data?.topics.at(-1)?.name} more={data?.more ?? false} />
        </Card>
    );
}

/** The open branches by the topic above them, in the order in which they were opened, with the number of levels to ask for. */
type Open = ReadonlyMap<Parent, number>;
type Branches = Map<Parent, ListTopicsResponse>;
/** `undefined` is the top. The empty one is the level above topics that begin with `/`. */
type Parent = string | undefined;

function Tree() {
    const [open, setOpen] = useState<Open>(new Map([[undefined, PAGE]]));
    const wanted = useRef(open);
    const load = async (signal: AbortSignal): Promise<Branches> => {
        const branches: Branches = new Map();
        for (const [parent, limit] of wanted.current) {
            branches.set(parent, await messages.listTopics({ branch: { parent }, limit }, { signal }));
        }
        return branches;
    };
    const { data, error, refresh } = useLive(load, []);
    useEffect(() => {
        wanted.current = open;
        refresh();
    }, [open]);
    const change = (parent: Parent, limit: number | undefined) => {
        const next = new Map(open);
        if (limit === undefined) next.delete(parent);
        else next.set(parent, limit);
        const oldest = [...next.keys()].find((one) => one !== undefined);
        if (next.size > MAX_OPEN && oldest !== undefined) next.delete(oldest);
        setOpen(next);
    };
    const top = data?.get(undefined);
    const shown = top?.levels.reduce((sum, level) => sum + level.topics, 0n) ?? 0n;
    return (
        <Card
            title="Topics"
            actions={
                top && (
                    <>
                        <small>{topicsText(shown)}</small>
                        <LeftOut answer={top} />
                    </>
                )
            }
        >
            {error && <Empty error={error} />}
            {!data || !top ? (
                <Empty error={error} loading />
            ) : top.levels.length === 0 ? (
                <Empty>No topic has a retained message, and none had a message since this page is open.</Empty>
            ) : (
                <div class="tree">
                    <Branch parent={undefined} branches={data} open={open} change={change} />
                </div>
            )}
        </Card>
    );
}

interface BranchProps {
    parent: Parent;
    branches: Branches;
    open: Open;
    change: (parent: Parent, limit: number | undefined) => void;
}

function Branch(props: BranchProps) {
    const { parent, branches, open, change } = props;
    const branch = branches.get(parent);
    const limit = open.get(parent) ?? PAGE;
    if (!branch) return <Empty loading />;
    return (
        <>
            <ul>
                {branch.levels.map((level) => (
                    <Row key={level.name} level={level} name={parent === undefined ? level.name : `${parent}/${level.name}`} {...{ branches, open, change }} />
                ))}
            </ul>
            {branch.more && limit < MAX_LEVELS && (
                <button type="button" onClick={() => change(parent, Math.min(limit * 3, MAX_LEVELS))}>
                    Show more {parent === undefined ? "levels" : `under ${parent || "(empty)"}`}
                </button>
            )}
            {branch.more && limit >= MAX_LEVELS && <Empty>There are more than {count(MAX_LEVELS)}: the search finds them.</Empty>}
        </>
    );
}

function Row(props: Omit<BranchProps, "parent"> & { level: Level; name: string }) {
    const { level, name, open, change } = props;
    const isOpen = open.has(name);
    const canOpen = level.topics > 1n || !level.topic;
    const shown = level.name || "(empty)";
    return (
        <li>
            <div class="level">
                {canOpen ? (
                    <button type="button" aria-expanded={isOpen} aria-label={`${isOpen ? "Fold" : "Unfold"} ${name || "(empty)"}`} onClick={() => change(name, isOpen ? undefined : PAGE)}>
                        {isOpen ? "▾" : "▸"}
                    </button>
                ) : (
                    <span class="leaf" aria-hidden="true" />
                )}
                <span class="name">{level.topic ? <a href={href("messages", ["topics"], { topic: name })}>{shown}</a> : shown}</span>
                <span class="last">{level.topic && lastText(level.topic)}</span>
                {canOpen && <small>{topicsText(level.topics)}</small>}
                <span class="number">{rate(level.rate)}</span>
            </div>
            {isOpen && canOpen && <Branch parent={name} branches={props.branches} open={open} change={change} />}
        </li>
    );
}

/** The last message of a topic, as far as it is known. */
interface Last {
    message: Message;
    unixMs: bigint | undefined;
    qos: number | undefined;
}

/**
 * The one that arrived here or the one that the node lists. A list has the beginning of its payload only. A subscription has the QoS of
 * its delivery, and retained messages with the time at which they were read.
 */
function lastOf(arrived: Message | undefined, listed: Message | undefined): Last | undefined {
    const known = listed && { message: listed, unixMs: listed.unixMs, qos: listed.qos };
    if (!arrived) return known;
    const isSame = listed && arrived.payloadBytes === listed.payloadBytes && listed.payload.every((byte, at) => byte === arrived.payload[at]);
    if (isSame) {
        const isLater = !arrived.retain && arrived.unixMs > listed.unixMs;
        return { message: arrived, unixMs: isLater ? arrived.unixMs : listed.unixMs, qos: listed.qos };
    }
    if (arrived.retain) return known ?? { message: arrived, unixMs: undefined, qos: undefined };
    return listed && listed.unixMs > arrived.unixMs ? known : { message: arrived, unixMs: arrived.unixMs, qos: undefined };
}

/** The last message of a topic, as it arrives. */
function One(props: { name: string }) {
    const { name } = props;
    const [form, setForm] = useState<Form>("auto");
    const [arrived, setArrived] = useState<Message>();
    const { data, error } = useLive((signal) => messages.listTopics({ filter: name, limit: 1 }, { signal }), [name]);
    const lost = useStream((signal) => messages.subscribe({ filter: name, retained: true }, { signal, timeoutMs: 0 }), setArrived, [name]);
    const topic = data?.topics[0];
    const last = lastOf(arrived, topic?.last);
    const isRetained = last?.message.retain && topic?.retainedBytes !== undefined;
    // A retained message may be from another day.
    const at = last?.unixMs === undefined ? "unknown" : isRetained ? <small>{time(last.unixMs)}</small> : clock(last.unixMs);
    const facts = last && [last.qos === undefined ? "" : `QoS ${last.qos}`, bytes(last.message.payloadBytes)].filter((text) => text !== "");
    return (
        <Card
            title={name}
            class="topic"
            actions={
                <>
                    <FormChoice form={form} change={setForm} />
                    <a href={href("messages", ["watch"], { filter: name })}>Watch</a>
                    {may("operate") && <a href={href("messages", ["publish"], { topic: name })}>Publish</a>}
                    <a href={href("messages", ["topics"], { search: place.value.query.get("search") ?? "" })}>Close</a>
                </>
            }
        >
            {(error ?? lost) && <Empty error={error ?? lost} />}
            {(topic || last || !(error ?? lost)) && (
                <dl class="figures">
                    <Figure name="Rate" value={rate(topic?.rate ?? 0)} note={`${counted(topic?.messages ?? 0n, "message")} since the node counts`} />
                    <Figure name="Last" value={last ? at : "none yet"} note={facts?.join(", ")} />
                    <Figure name="Retained" value={topic?.retainedBytes === undefined ? "no" : bytes(topic.retainedBytes)} />
                </dl>
            )}
            {last && (
                <div class="outcome">
                    <div class="actions">
                        {isRetained && <Badge tone="quiet">retained</Badge>}
                        {last.message.contentType && <Badge tone="quiet">{last.message.contentType}</Badge>}
                    </div>
                    <Payload data={last.message.payload} total={last.message.payloadBytes} form={form} />
                </div>
            )}
        </Card>
    );
}
