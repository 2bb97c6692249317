// Workflows of all apps with their instances; one workflow as a drawing; one instance step by step.
import type { Instance, Workflow } from "../api/edgefaas/control/v1/control_pb";
import { ChangeInstanceRequest_Change as Change } from "../api/edgefaas/control/v1/control_pb";
import { control, may } from "../connection";
import { count, duration, time } from "../format";
import { useLive } from "../live";
import { Action, Badge, Card, Empty, Figure, Table, type Tone, Value } from "../parts/basics";
import { Graph } from "../parts/graph";
import { Waterfall } from "../parts/waterfall";
import { go, href, place } from "../router";

/** Instances that are asked for, and those among which the ones at a task are found. */
const LIMIT = 200;
const FILTER_LIMIT = 1000;

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
    const task = place.value.query.get("task") ?? "";
    const load = async (signal: AbortSignal) => ({
        apps: (await control.list({}, { signal })).apps,
        listed: await control.listInstances({ workflow: name, limit: task ? FILTER_LIMIT : LIMIT }, { signal }),
    });
    const { data, error, refresh } = useLive(load, [name, task]);
    if (!data) return <Empty error={error} loading />;
    const workflows = data.apps.flatMap((app) => app.workflows);
    const one = workflows.find((one) => one.name === name);
    if (workflows.length === 0 && !name) return <Empty>No workflow is deployed. `edgefaas new --template workflow` makes one.</Empty>;
    const { instances, more } = data.listed;
    const shown = task ? instances.filter((instance) => isAt(instance, task)) : instances;
    return (
        <>
            {name && (
                <p>
                    <a href={href("workflows")}>All workflows</a>
                </p>
            )}
            {error && <Empty error={error} />}
            {name && !one ? (
                <Empty error={`there is no workflow \`${name}\``} />
            ) : (
                <Card title={name || "Workflows"} actions={one && <CancelAll workflow={one} done={refresh} />}>
                    <Definitions workflows={one ? [one] : workflows} />
                </Card>
            )}
            {one && <Definition key={name} name={name} task={task} />}
            {(one || !name || instances.length > 0) && (
                <Card
                    title={task ? `Instances at ${task}` : "Instances"}
                    actions={
                        <>
                            {more > 0n && <small>{task ? `of the first ${count(instances.length)}` : `and ${count(more)} more`}</small>}
                            {task && <a href={href("workflows", ["of", name])}>All instances</a>}
                        </>
                    }
                >
                    {shown.length === 0 ? (
                        <Empty>{task ? "No instance runs, waits or has failed at this task." : "No instance runs, waits or has failed."}</Empty>
                    ) : (
                        <Instances instances={shown} done={refresh} />
                    )}
                </Card>
            )}
        </>
    );
}

/** True if an instance runs or waits at a task, or failed there. */
function isAt(instance: Instance, task: string): boolean {
    return tasksOf(instance).some((one) => one === task || one.startsWith(`${task} (`));
}

/** The tasks at which an instance runs or waits, or the one at which it failed. */
function tasksOf(instance: Instance): string[] {
    const failed = instance.status === "faulted" ? failedAt(instance.error) : undefined;
    return failed === undefined ? instance.tasks : [failed];
}

/** An error of the DSL in a line. */
function errorText(error: string): string {
    try {
        const { type, title, detail } = JSON.parse(error);
        const texts = [title || type, detail].filter((text) => typeof text === "string" && text !== "");
        return texts.join(": ") || error;
    } catch {
        return error;
    }
}

/** The task that an error names. */
function failedAt(error: string): string | undefined {
    try {
        const { instance } = JSON.parse(error);
        return typeof instance === "string" ? instance : undefined;
    } catch {
        return undefined;
    }
}

function CancelAll(props: { workflow: Workflow; done: () => void }) {
    const { name, live } = props.workflow;
    if (!may("operate") || live === 0n) return null;
    const run = async () => {
        await control.cancelInstances({ of: { case: "workflow", value: name } });
        props.done();
    };
    const those = live === 1n ? "the one instance" : `all ${count(live)} instances`;
    return (
        <Action run={run} confirm={`Cancel ${those} of ${name}?`} danger>
            Cancel all instances
        </Action>
    );
}

/** The definition as a drawing with the instances at its tasks, and as a list of them. */
function Definition(props: { name: string; task: string }) {
    const { name, task } = props;
    const { data, error } = useLive((signal) => control.graph({ workflow: name }, { signal }), [name]);
    const choose = (task: string) => go("workflows", ["of", name], { task });
    if (!data) {
        return (
            <Card title="Definition">
                <Empty error={error} loading />
            </Card>
        );
    }
    const tasks = data.nodes.filter((node) => node.task !== "" && node.shape !== "choice");
    return (
        <Card title="Definition" actions={<small>a task shows its instances</small>}>
            {error && <Empty error={error} />}
            <Graph graph={data} name={name} task={task} choose={choose} />
            <details>
                <summary>Tasks as a list</summary>
                <Table
                    label={`Tasks of ${name}`}
                    rows={tasks}
                    id={(node) => node.id}
                    columns={[
                        { name: "Task", cell: (node) => <a href={href("workflows", ["of", name], { task: node.task })}>{node.task}</a> },
                        { name: "Active", number: true, cell: (node) => count(node.active) },
                        { name: "Failed", number: true, cell: (node) => (node.failed > 0n ? <Badge tone="bad">{count(node.failed)}</Badge> : "0") },
                    ]}
                />
            </details>
        </Card>
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
                { name: "Cancelled", number: true, wide: true, cell: (one) => count(one.cancelled) },
                { name: "To retry", number: true, cell: (one) => count(one.retryable) },
                { name: "Refused", number: true, wide: true, cell: (one) => count(one.rejected) },
                { name: "Mean time to end", number: true, wide: true, cell: meanText },
            ]}
        />
    );
}

/** From the start to the end of an instance, with its waits; of the completed, failed and cancelled ones. */
function meanText(one: Workflow): string {
    const hasEnded = one.completed + one.faulted + one.cancelled > 0n;
    return hasEnded ? duration(one.meanUs) : "none has ended";
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
                { name: "At", wide: true, cell: (one) => tasksOf(one).join(", ") },
                { name: "Started", wide: true, cell: (one) => time(one.startedUnixMs) },
                { name: "Error", wide: true, cell: (one) => errorText(one.error) },
                { name: "Actions", actions: true, cell: (one) => <Changes instance={one} done={props.done} /> },
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
            {status === "faulted" && durable && (
                <Action run={() => change(Change.CANCEL)} confirm={`Give the failed instance ${id} up? It cannot be retried then.`} danger>
                    Give up
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
            {error && <Empty error={error} />}
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
