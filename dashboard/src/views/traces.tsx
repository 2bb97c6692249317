// The traces that are kept, and one of them, by the id of an invocation, of an instance, or of the trace itself.
import type { TraceSummary } from "../api/edgefaas/control/v1/control_pb";
import { control } from "../connection";
import { count, duration, time } from "../format";
import { useLive } from "../live";
import { Badge, Card, Empty, Loaded, Table } from "../parts/basics";
import { Field, Form } from "../parts/form";
import { Search } from "../parts/search";
import { Waterfall } from "../parts/waterfall";
import { go, href, place } from "../router";

/** Traces that are asked for. */
const LIMIT = 100;

/** What the list is filtered by, of the address. */
interface Filter {
    search: string;
    failed: boolean;
}

function filter(): Filter {
    const { query } = place.value;
    return { search: query.get("search") ?? "", failed: query.get("failed") === "true" };
}

function queryOf({ search, failed }: Filter): Record<string, string> {
    return { search, failed: failed ? "true" : "" };
}

export function Traces() {
    const id = place.value.parts[0];
    return (
        <>
            {id && <One key={id} id={id} />}
            <All />
            <Form key={id} label="Show" keep send={async (text) => text("id").trim() !== "" && go("traces", [text("id").trim()], queryOf(filter()))}>
                <Field name="id" label="Id of an invocation, an instance or a trace" value={id} />
            </Form>
        </>
    );
}

function One(props: { id: string }) {
    const live = useLive((signal) => control.trace({ id: props.id }, { signal }), [props.id]);
    return (
        <Loaded live={live}>
            {(data) => (
                <Card title="Trace" actions={<small>{data.spans[0]?.traceId}</small>}>
                    <Waterfall spans={data.spans} />
                </Card>
            )}
        </Loaded>
    );
}

function All() {
    const { search, failed } = filter();
    const change = (change: Partial<Filter>) => go("traces", place.value.parts, queryOf({ ...filter(), ...change }));
    const load = (signal: AbortSignal) => control.listTraces({ limit: LIMIT, failed, search }, { signal });
    const live = useLive(load, [failed, search]);
    const { data } = live;
    return (
        <Card title="Traces" actions={data && data.more > 0n && <small>and {count(data.more)} more</small>}>
            <div class="fields search">
                <Search label="Search in the traces" placeholder="name or id" text={search} change={(search) => change({ search })} />
                <label class="inline">
                    <input type="checkbox" checked={failed} onChange={(event) => change({ failed: event.currentTarget.checked })} />
                    Failed only
                </label>
            </div>
            <Loaded live={live}>
                {(data) =>
                    data.traces.length === 0 ? (
                        <Empty>{failed || search ? "No such trace is kept." : "No trace was recorded yet."}</Empty>
                    ) : (
                        <Table
                            label="Traces"
                            rows={data.traces}
                            id={(trace) => trace.traceId}
                            columns={[
                                { name: "Name", cell: (trace) => <Name trace={trace} /> },
                                { name: "Started", wide: true, cell: (trace) => time(trace.startedUnixUs / 1000n) },
                                { name: "Duration", number: true, cell: (trace) => duration(trace.durationUs) },
                                { name: "Spans", number: true, wide: true, cell: (trace) => count(trace.spans) },
                                { name: "Result", cell: (trace) => <Result trace={trace} /> },
                            ]}
                        />
                    )
                }
            </Loaded>
        </Card>
    );
}

function Result(props: { trace: TraceSummary }) {
    const { trace } = props;
    if (trace.error) return <Badge tone="bad">{trace.error}</Badge>;
    return trace.running ? <Badge tone="quiet">running</Badge> : <Badge tone="good">good</Badge>;
}

function Name(props: { trace: TraceSummary }) {
    const { trace } = props;
    return (
        <>
            <a href={href("traces", [trace.traceId], queryOf(filter()))}>{trace.name}</a> <small>{trace.kind}</small>
        </>
    );
}
