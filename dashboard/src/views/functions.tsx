// The functions of all apps with their figures; one function with its log, its calls and its app's revisions.
import { useState } from "preact/hooks";
import { type App, type Function as Fn, NodeApp_State, type TraceSummary } from "../api/edgefaas/control/v1/control_pb";
import { control, invocations, may } from "../connection";
import { bytes, count, duration, rate, time } from "../format";
import { useLive } from "../live";
import { Action, Badge, Card, Empty, Figure, Table } from "../parts/basics";
import { Difference } from "../parts/difference";
import { Invoke } from "../parts/invoke";
import { Logs } from "../parts/logs";
import { useRates } from "../parts/rates";
import { href, place, useParameter } from "../router";

export function Functions() {
    const name = place.value.parts[0];
    return name === undefined ? <All /> : <One key={name} name={name} />;
}

const WARNINGS_MS = 5000;

/** The functions that fail now, by the warnings of the node. */
function useFailing(): ReadonlySet<string> {
    const { data } = useLive((signal) => control.status({}, { signal }), [], WARNINGS_MS);
    const found = data?.warnings.filter(({ code }) => code === "function-failing") ?? [];
    return new Set(found.map(({ subject }) => subject));
}

const ELSEWHERE_MS = 10_000;

/** The apps of the cluster that this node leaves to others. */
function useElsewhere(): ReadonlySet<string> {
    const { data } = useLive((signal) => control.list({ nodes: true }, { signal }), [], ELSEWHERE_MS);
    const elsewhere = data?.apps.filter(({ nodes }) => nodes[0]?.state === NodeApp_State.ELSEWHERE) ?? [];
    return new Set(elsewhere.map(({ name }) => name));
}

function State(props: { one: Fn; failing: boolean; elsewhere: boolean }) {
    if (props.elsewhere) return <Badge tone="quiet">runs on other nodes</Badge>;
    if (props.one.error) return <Badge tone="bad">broken</Badge>;
    if (props.failing) return <Badge tone="bad">failing</Badge>;
    return <Badge tone="good">ready</Badge>;
}

function All() {
    const { data, error } = useLive((signal) => control.list({}, { signal }), []);
    const failing = useFailing();
    const elsewhere = useElsewhere();
    const [search, setSearch] = useParameter("search");
    const functions = data?.apps.flatMap((app) => app.functions) ?? [];
    const rates = useRates(data && functions.map((one) => [one.name, Number(one.stats?.invocations ?? 0n)]));
    if (!data) return <Empty error={error} loading />;
    if (data.apps.length === 0) {
        return <Empty>No app is deployed. `edgefaas new` makes one, and `edgefaas deploy` brings it here.</Empty>;
    }
    const shown = (one: Fn) => one.name.includes(search.trim());
    return (
        <>
            <label class="search">
                Search
                <input type="search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
            </label>
            {error && <Empty error={error} />}
            {data.apps
                .filter((app) => app.functions.some(shown))
                .map((app) => (
                    <Card key={app.name} title={app.name} actions={<small>revision {app.revision.slice(0, 12)}</small>}>
                        <Table
                            label={`Functions of ${app.name}`}
                            rows={app.functions.filter(shown)}
                            id={(one) => one.name}
                            columns={[
                                { name: "Function", cell: (one) => <a href={href("functions", [one.name])}>{one.name}</a> },
                                { name: "State", cell: (one) => <State one={one} failing={failing.has(one.name)} elsewhere={elsewhere.has(app.name)} /> },
                                { name: "Rate", number: true, cell: (one) => rate(rates.get(one.name) ?? 0) },
                                { name: "Calls", number: true, wide: true, cell: (one) => count(one.stats?.invocations ?? 0n) },
                                { name: "Failed", number: true, cell: (one) => count(one.stats?.failures ?? 0n) },
                                { name: "p50", number: true, wide: true, cell: (one) => hasRun(one) && duration(one.stats?.durationP50Us ?? 0n) },
                                { name: "p99", number: true, cell: (one) => hasRun(one) && duration(one.stats?.durationP99Us ?? 0n) },
                                { name: "Cold / warm", number: true, wide: true, cell: (one) => `${count(one.stats?.coldStarts ?? 0n)} / ${count(one.stats?.warmStarts ?? 0n)}` },
                                { name: "Memory", number: true, wide: true, cell: (one) => bytes(one.stats?.memoryPeakBytes ?? 0n) },
                                { name: "Processor", number: true, wide: true, cell: (one) => duration(one.stats?.cpuUs ?? 0n) },
                            ]}
                        />
                    </Card>
                ))}
        </>
    );
}

/** Times of a function that never ran are unknown. */
function hasRun(one: Fn): boolean {
    return (one.stats?.invocations ?? 0n) > 0n;
}

/** Dead letters that are counted for a function. */
const MAX_DEAD = 100;

function One(props: { name: string }) {
    const { data, error, refresh } = useLive((signal) => control.list({}, { signal }), []);
    const failing = useFailing().has(props.name);
    const elsewhere = useElsewhere();
    const deadOf = (signal: AbortSignal) => invocations.list({ function: props.name, dead: true, limit: MAX_DEAD }, { signal });
    const dead = useLive(deadOf, [props.name], 5000).data;
    const failed = useLive((signal) => lastFailed(props.name, signal), [props.name], 5000).data;
    if (!data) return <Empty error={error} loading />;
    const app = data.apps.find((app) => app.functions.some((one) => one.name === props.name));
    const one = app?.functions.find((one) => one.name === props.name);
    const isWorkflow = data.apps.some((app) => app.workflows.some((workflow) => workflow.name === props.name));
    if (isWorkflow) {
        return (
            <p>
                <a href={href("workflows", ["of", props.name])}>{props.name}</a> is a workflow.
            </p>
        );
    }
    if (!app || !one) return <Empty error={`there is no function \`${props.name}\``} />;
    const { stats } = one;
    return (
        <>
            <p>
                <a href={href("functions")}>All functions</a>
            </p>
            {error && <Empty error={error} />}
            <Card
                title={
                    <>
                        {one.name} <small>of {app.name}</small>
                    </>
                }
                actions={<State one={one} failing={failing} elsewhere={elsewhere.has(app.name)} />}
            >
                {one.error && <Empty error={one.error} />}
                {elsewhere.has(app.name) && (
                    <p>
                        The app runs on other nodes, as its manifest says: <a href={href("cluster")}>Cluster</a> shows which. The figures are those of this node.
                    </p>
                )}
                {failed && (
                    <p>
                        The <a href={href("traces", [failed.traceId])}>last traced failure</a> was at {time(failed.startedUnixUs / 1000n)}: {failed.error}
                    </p>
                )}
                <dl class="figures">
                    <Figure name="Calls" value={count(stats?.invocations ?? 0n)} note={`${count(stats?.running ?? 0)} running, ${count(stats?.queued ?? 0)} waiting`} />
                    <Figure name="Failed" value={count(stats?.failures ?? 0n)} note={`${count(stats?.rejected ?? 0n)} refused`} tone={failing ? "bad" : undefined} />
                    <Figure name="p50" value={hasRun(one) ? duration(stats?.durationP50Us ?? 0n) : "-"} note={hasRun(one) && `p99 ${duration(stats?.durationP99Us ?? 0n)}`} />
                    <Figure name="Cold starts" value={count(stats?.coldStarts ?? 0n)} note={`${count(stats?.warmStarts ?? 0n)} warm`} />
                    <Figure name="Memory, at most" value={bytes(stats?.memoryPeakBytes ?? 0n)} />
                    <Figure name="Processor time" value={duration(stats?.cpuUs ?? 0n)} />
                    <Figure name="Pending" value={<a href={href("invocations", [], { function: one.name })}>{count(stats?.pending ?? 0n)}</a>} />
                    {dead && (
                        <Figure
                            name="Dead letters"
                            value={<a href={href("invocations", ["dead"], { function: one.name })}>{`${count(dead.invocations.length)}${dead.next && "+"}`}</a>}
                            tone={dead.invocations.length > 0 ? "bad" : undefined}
                        />
                    )}
                </dl>
                <dl class="pairs">
                    <dt>Kind</dt>
                    <dd>
                        {one.kind}, {bytes(one.sourceBytes)}
                    </dd>
                    <dt>Triggers</dt>
                    <dd>{one.triggers.join(", ") || "none"}</dd>
                </dl>
            </Card>
            <Logs name={one.name} />
            {may("operate") && <Invoke function={one} done={refresh} />}
            <Revisions app={app} done={refresh} />
        </>
    );
}

/** Of the traces that are kept. */
async function lastFailed(name: string, signal: AbortSignal): Promise<TraceSummary | undefined> {
    const { traces } = await control.listTraces({ failed: true, search: name }, { signal });
    return traces.find((trace) => trace.kind === "function" && trace.name === name);
}

function Revisions(props: { app: App; done: () => void }) {
    const { app } = props;
    return (
        <Card title={`Revisions of ${app.name}`}>
            <dl class="pairs revisions">
                <dt>{short(app.revision)}</dt>
                <dd>live since {time(app.deployedUnixMs)}</dd>
                {app.previousRevisions.map((revision) => (
                    <Earlier key={revision} app={app.name} revision={revision} done={props.done} />
                ))}
            </dl>
            {app.previousRevisions.length > 0 && <Compare key={app.revision} app={app} />}
        </Card>
    );
}

function short(revision: string): string {
    return revision.slice(0, 12);
}

function Earlier(props: { app: string; revision: string; done: () => void }) {
    const { app, revision } = props;
    const run = async () => {
        await control.rollback({ app, revision, waitMs: 5000 });
        props.done();
    };
    return (
        <>
            <dt>{short(revision)}</dt>
            <dd>
                {may("operate") && (
                    <Action run={run} confirm={`Roll ${app} back to ${short(revision)}?`} details={<Difference app={app} from="" to={revision} />}>
                        Roll back
                    </Action>
                )}
            </dd>
        </>
    );
}

/** What differs between two revisions; at first between the one before and the live one. */
function Compare(props: { app: App }) {
    const { name, revision: live, previousRevisions: earlier } = props.app;
    const [from, setFrom] = useState(earlier[0] ?? live);
    const [to, setTo] = useState(live);
    const [shown, setShown] = useState(false);
    const choice = (label: string, value: string, change: (value: string) => void) => (
        <label>
            {label}
            <select value={value} onChange={(event) => change(event.currentTarget.value)}>
                {[live, ...earlier].map((revision) => (
                    <option key={revision} value={revision}>
                        {short(revision)}
                        {revision === live && " (live)"}
                    </option>
                ))}
            </select>
        </label>
    );
    return (
        <div class="compare">
            <div class="fields">
                {choice("From revision", from, setFrom)}
                {choice("To revision", to, setTo)}
                <button type="button" aria-expanded={shown} onClick={() => setShown(!shown)}>
                    {shown ? "Hide the difference" : "Show the difference"}
                </button>
            </div>
            {shown && <Difference app={name} from={from} to={to} />}
        </div>
    );
}
