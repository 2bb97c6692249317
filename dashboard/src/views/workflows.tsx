// Workflows of all apps with their instances; one instance step by step.
import type { Instance, Workflow } from "../api/edgefaas/control/v1/control_pb";
import { ChangeInstanceRequest_Change as Change } from "../api/edgefaas/control/v1/control_pb";
import { control, may } from "../connection";
import { count, duration, time } from "../format";
import { useLive } from "../live";
import { Action, Badge, Card, Empty, Figure, Table, type Tone, Value } from "../parts/basics";
import { Waterfall } from "../parts/waterfall";
import { href, place } from "../router";

/** Instances that are asked for. */
const LIMIT = 200;

const TONES: Record<string, Tone> = {
    running: "good",
    waiting: "good",
    completed: "quiet",
    pending: "warn",
    faulted: "bad",
    cancelled: "quiet",
};

export function Workflows() {
    const [kind, name] = place.value.parts;
    if (kind === "instance" && name) return <One key={name} id={name} />;
    return <All name={kind === "of" ? (name ?? "") : ""} />;
}

function All(props: { name: string }) {
    const { name } = props;
    const load = async (signal: AbortSignal) => ({
        apps: (await control.list({}, { signal })).apps,
        listed: await control.listInstances({ workflow: name, limit: LIMIT }, { signal }),
    });
    const { data, error, refresh } = useLive(load, [name]);
    if (!data) return <Empty error={error} loading />;
    const workflows = data.apps.flatMap((app) => app.workflows);
    const shown = name ? workflows.filter((one) => one.name === name) : workflows;
    if (workflows.length === 0) return <Empty>No workflow is deployed. `edgefaas new --template workflow` makes one.</Empty>;
    return (
        <>
            {name && (
                <p>
                    <a href={href("workflows")}>All workflows</a>
                </p>
            )}
            <Card title={name || "Workflows"}>
                <Definitions workflows={shown} />
            </Card>
            <Card
                title="Instances"
                actions={data.listed.more > 0n && <small>and {count(data.listed.more)} more</small>}
            >
                {data.listed.instances.length === 0 ? (
                    <Empty>No instance runs, waits or has failed.</Empty>
                ) : (
                    <Instances instances={data.listed.instances} done={refresh} />
                )}
            </Card>
        </>
    );
}

function Definitions(props: { workflows: Workflow[] }) {
    return (
        <Table
            label="Workflows"
            rows={props.workflows}
            id={(one) => one.name}
            columns={[
                { name: "Workflow", cell: (one) => <a href={href("workflows", ["of", one.name])}>{one.name}</a> },
                { name: "Live", number: true, cell: (one) => count(one.live) },
                { name: "Completed", number: true, cell: (one) => count(one.completed) },
                { name: "Failed", number: true, cell: (one) => count(one.faulted) },
                { name: "To retry", number: true, cell: (one) => count(one.retryable) },
                { name: "Refused", number: true, wide: true, cell: (one) => count(one.rejected) },
                { name: "Mean", number: true, wide: true, cell: (one) => duration(one.meanUs) },
            ]}
        />
    );
}

function Instances(props: { instances: Instance[]; done: () => void }) {
    return (
        <Table
            label="Instances"
            rows={props.instances}
            id={(one) => one.id}
            columns={[
                { name: "Instance", cell: (one) => <a href={href("workflows", ["instance", one.id])}>{one.id}</a> },
                { name: "Workflow", wide: true, cell: (one) => one.workflow },
                { name: "State", cell: (one) => <Badge tone={TONES[one.status] ?? "quiet"}>{one.status}</Badge> },
                { name: "At", wide: true, cell: (one) => one.tasks.join(", ") },
                { name: "Started", wide: true, cell: (one) => time(one.startedUnixMs) },
                { name: "Actions", cell: (one) => <Changes instance={one} done={props.done} /> },
            ]}
        />
    );
}

function Changes(props: { instance: Instance; done: () => void }) {
    const { id, status, durable } = props.instance;
    if (!may("operate")) return null;
    const change = async (change: Change) => {
        await control.changeInstance({ id, change });
        props.done();
    };
    const hasEnded = ["completed", "faulted", "cancelled"].includes(status);
    return (
        <span class="actions">
            {status === "faulted" && durable && <Action run={() => change(Change.RETRY)}>Retry</Action>}
            {!hasEnded && (
                <Action run={() => change(Change.CANCEL)} confirm={`Cancel the instance ${id}?`} danger>
                    Cancel
                </Action>
            )}
        </span>
    );
}

function One(props: { id: string }) {
    const load = async (signal: AbortSignal) => ({
        instance: await control.getInstance({ id: props.id }, { signal }),
        // A trace that was not recorded is no error here.
        spans: await control.trace({ id: props.id }, { signal }).then((trace) => trace.spans, () => []),
    });
    const { data, error, refresh } = useLive(load, [props.id]);
    if (!data) return <Empty error={error} loading />;
    const { instance, spans } = data;
    const texts: [string, string][] = [
        ["Input", instance.input],
        ["Context", instance.context],
        ["Output", instance.output],
    ];
    return (
        <>
            <p>
                <a href={href("workflows", ["of", instance.workflow])}>{instance.workflow}</a>
            </p>
            <Card title={instance.id} actions={<Changes instance={instance} done={refresh} />}>
                <dl class="figures">
                    <Figure name="State" value={<Badge tone={TONES[instance.status] ?? "quiet"}>{instance.status}</Badge>} />
                    <Figure name="Started" value={<small>{time(instance.startedUnixMs)}</small>} />
                    {instance.endedUnixMs > 0n && <Figure name="Ended" value={<small>{time(instance.endedUnixMs)}</small>} />}
                    <Figure name="Steps" value={count(instance.steps)} note={instance.durable ? "durable" : "in memory"} />
                </dl>
                {instance.error && <Value text={instance.error} />}
            </Card>
            {spans.length > 0 && (
                <Card title="Step by step">
                    <Waterfall spans={spans} />
                </Card>
            )}
            {texts
                .filter(([, text]) => text !== "")
                .map(([name, text]) => (
                    <Card key={name} title={name}>
                        <Value text={text} />
                    </Card>
                ))}
        </>
    );
}
