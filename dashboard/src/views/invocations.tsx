// Durable invocations: those that wait, run or are tried again, and the dead ones; one of them with its event.
import { useEffect, useState } from "preact/hooks";
import { type Invocation, State } from "../api/edgefaas/invocations/v1/invocations_pb";
import { control, invocations, link, may, NO_ANSWER } from "../connection";
import { bytes, count, counted, time } from "../format";
import { useLive } from "../live";
import { Action, Badge, Card, Empty, Figure, Loaded, Table, type Tone, Value } from "../parts/basics";
import { type Form, FormChoice, Payload } from "../parts/payload";
import { Pages, usePages } from "../parts/search";
import { Tabs } from "../parts/tabs";
import { go, href, place } from "../router";
import { AllDead } from "./invocations/all-dead";

const PAGE = 100;

const STATES: Record<State, [string, Tone]> = {
    [State.UNSPECIFIED]: ["unknown", "quiet"],
    [State.WAITING]: ["waiting", "quiet"],
    [State.RUNNING]: ["running", "good"],
    [State.RETRYING]: ["retrying", "warn"],
    [State.DEAD]: ["dead", "bad"],
};

export function Invocations() {
    const [kind = "", id] = place.value.parts;
    if (kind === "one" && id) return <One key={id} id={id} />;
    return <All dead={kind === "dead"} of={place.value.query.get("function") ?? ""} />;
}

function StateBadge(props: { invocation: Invocation }) {
    const [name, tone] = STATES[props.invocation.state] ?? STATES[State.UNSPECIFIED];
    return <Badge tone={tone}>{name}</Badge>;
}

function Attempts(props: { invocation: Invocation }) {
    return (
        <>
            {count(props.invocation.attempt)} of {count(props.invocation.attempts)}
        </>
    );
}

function All(props: { dead: boolean; of: string }) {
    const { dead, of } = props;
    const pages = usePages([dead, of]);
    const load = (signal: AbortSignal) => invocations.list({ function: of, dead, after: pages.after, limit: PAGE }, { signal });
    const live = useLive(load, [dead, of, pages.after]);
    const { data, refresh } = live;
    const [retried, setRetried] = useState<{ before: string; now: string }>();
    useEffect(() => setRetried(undefined), [dead, of]);
    const apps = useLive((signal) => control.list({}, { signal }), [], 10_000).data?.apps ?? [];
    const names = apps.flatMap((app) => app.functions.map((one) => one.name));
    // A dead one may be of a function that is gone.
    const seen = (data?.invocations ?? []).map((one) => one.function);
    const gone = new Set([of, ...seen].filter((name) => name !== "" && !names.includes(name)));
    const known = [...gone, ...names];
    const number = (value: bigint | undefined) => (value === undefined ? "" : ` (${count(value)})`);
    return (
        <>
            <Tabs
                view="invocations"
                label="Kinds of invocations"
                current={dead ? "dead" : ""}
                tabs={[
                    { part: "", name: `Pending${number(data?.pending)}` },
                    { part: "dead", name: `Dead${number(data?.dead)}` },
                ]}
            />
            <label class="search">
                Function
                <select value={of} onChange={(event) => go("invocations", dead ? ["dead"] : [], { function: event.currentTarget.value })}>
                    <option value="">all</option>
                    {known.map((name) => (
                        <option key={name} value={name}>
                            {name}
                        </option>
                    ))}
                </select>
            </label>
            <Card title={dead ? "Dead invocations" : "Pending invocations"}>
                {dead && may("operate") && <AllDead key={of} of={of} none={data?.invocations.length === 0 && pages.page === 1} changed={refresh} />}
                {dead && data && data.deadDropped > 0n && (
                    <p class="warn">{counted(data.deadDropped, "older one was", "older ones were")} dropped for want of room since the start of the node.</p>
                )}
                {retried && (
                    <p role="status">
                        {retried.before} runs again, as <a href={href("invocations", ["one", retried.now])}>{retried.now}</a>.
                    </p>
                )}
                <Loaded live={live}>
                    {(data) =>
                        data.invocations.length === 0 ? (
                            <Empty>
                                No durable invocation{of && ` of \`${of}\``} {dead ? "has failed for good." : "waits, runs or is tried again."}
                            </Empty>
                        ) : (
                            <Table
                                label={dead ? "Dead invocations" : "Pending invocations"}
                                rows={data.invocations}
                                id={(one) => one.id}
                                columns={[
                                    { name: "Invocation", cell: (one) => <a href={href("invocations", ["one", one.id])}>{one.id}</a> },
                                    { name: "Function", cell: (one) => <a href={href("functions", [one.function])}>{one.function}</a> },
                                    { name: "State", wide: true, cell: (one) => <StateBadge invocation={one} /> },
                                    { name: "Attempt", number: true, wide: true, cell: (one) => <Attempts invocation={one} /> },
                                    dead
                                        ? { name: "Ended", wide: true, cell: (one) => time(one.endedUnixMs) }
                                        : { name: "Accepted", wide: true, cell: (one) => time(one.acceptedUnixMs) },
                                    dead
                                        ? { name: "Error", wide: true, cell: (one) => one.detail || one.title }
                                        : { name: "Next", wide: true, cell: (one) => (one.nextUnixMs > 0n ? time(one.nextUnixMs) : "") },
                                    { name: "Called by", wide: true, cell: (one) => `${one.trigger} ${one.source}` },
                                    {
                                        name: "Actions",
                                        actions: true,
                                        cell: (one) => {
                                            const again = (now: string) => {
                                                setRetried({ before: one.id, now });
                                                refresh();
                                            };
                                            return <Changes invocation={one} retried={again} discarded={refresh} />;
                                        },
                                    },
                                ]}
                            />
                        )
                    }
                </Loaded>
                <Pages place={pages} last={data?.next} more={(data?.next ?? "") !== ""} />
            </Card>
        </>
    );
}

function Changes(props: { invocation: Invocation; retried: (id: string) => void; discarded: () => void }) {
    const { id, state, function: name } = props.invocation;
    if (!may("operate") || state === State.RUNNING) return null;
    const retry = async () => props.retried((await invocations.retry({ id })).id);
    const discard = async () => {
        await invocations.discard({ id });
        props.discarded();
    };
    return (
        <span class="actions">
            {state !== State.WAITING && (
                <Action run={retry} title={state === State.DEAD ? "Start it again from its first attempt" : "Start its next attempt now"}>
                    Retry
                </Action>
            )}
            <Action
                run={discard}
                danger
                confirm={state === State.DEAD ? `Discard ${id} of ${name}, with its event?` : `End ${id} of ${name}? Its caller gets an error.`}
            >
                Discard
            </Action>
        </span>
    );
}

function One(props: { id: string }) {
    const { id } = props;
    const [retried, setRetried] = useState<string>();
    const live = useLive((signal) => invocations.get({ id }, { signal }), [id]);
    const { data, error } = live;
    const back = (
        <p>
            <a href={href("invocations")}>Pending</a>, <a href={href("invocations", ["dead"])}>dead</a>
        </p>
    );
    if (retried !== undefined) {
        return (
            <>
                {back}
                <p role="status">
                    It runs again, as <a href={href("invocations", ["one", retried])}>{retried}</a>: see its <a href={href("traces", [retried])}>trace</a>
                    {data && (
                        <>
                            {" "}
                            and the log of <a href={href("functions", [data.function])}>{data.function}</a>
                        </>
                    )}
                    .
                </p>
            </>
        );
    }
    return (
        <>
            {back}
            {error && error !== NO_ANSWER && link.value !== "away" && (
                <p>
                    It may have ended: <a href={href("traces", [id])}>its trace</a> shows that.
                </p>
            )}
            <Loaded live={live}>{(data) => <Details invocation={data} retried={setRetried} />}</Loaded>
        </>
    );
}

function Details(props: { invocation: Invocation; retried: (id: string) => void }) {
    const { invocation: data, retried } = props;
    const [form, setForm] = useState<Form>("auto");
    const failure = [data.title, data.detail].filter((text) => text !== "").join(": ");
    return (
        <>
            <Card
                title={data.id}
                actions={<Changes invocation={data} retried={retried} discarded={() => go("invocations", data.state === State.DEAD ? ["dead"] : [])} />}
            >
                <dl class="figures">
                    <Figure name="State" value={<StateBadge invocation={data} />} />
                    <Figure name="Attempt" value={<Attempts invocation={data} />} />
                    <Figure name="Accepted" value={<small>{time(data.acceptedUnixMs)}</small>} />
                    {data.nextUnixMs > 0n && <Figure name="Next attempt" value={<small>{time(data.nextUnixMs)}</small>} />}
                    {data.endedUnixMs > 0n && <Figure name="Ended" value={<small>{time(data.endedUnixMs)}</small>} />}
                </dl>
                <dl class="pairs">
                    <dt>Function</dt>
                    <dd>
                        <a href={href("functions", [data.function])}>{data.function}</a>, with its log; <a href={href("traces", [data.id])}>trace</a>
                    </dd>
                    <dt>Called by</dt>
                    <dd>
                        {data.trigger} {data.source}
                    </dd>
                </dl>
            </Card>
            {failure && (
                <Card title="Error" actions={data.status > 0 && <small>status {data.status}</small>}>
                    <Value text={failure} />
                </Card>
            )}
            <Card title="Event" actions={<FormChoice form={form} change={setForm} />}>
                <p>
                    <small>
                        {bytes(data.payloadBytes)}
                        {data.contentType && `, ${data.contentType}`}
                    </small>
                </p>
                <Payload data={data.payload} total={data.payloadBytes} form={form} />
            </Card>
        </>
    );
}
