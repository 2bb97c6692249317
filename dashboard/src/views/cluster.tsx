// The members of the cluster as this node sees them, the revisions that they run, and where calls go.
import { useState } from "preact/hooks";
import { NodeApp_State as State, type App, type MemberStatus, type NodeApp } from "../api/edgefaas/control/v1/control_pb";
import { control } from "../connection";
import { bytes, counted, duration, percent, span } from "../format";
import { useLive } from "../live";
import { Badge, Card, Empty, Figure, Prose, Table } from "../parts/basics";
import { Field, Form, type Fields } from "../parts/form";

interface Row {
    name: string;
    isThis: boolean;
    state: preact.ComponentChild;
    address: string;
    status: MemberStatus | undefined;
    rtt: string;
    traffic: string;
}

export function Cluster() {
    const load = async (signal: AbortSignal) => ({
        cluster: await control.getCluster({}, { signal }),
        apps: (await control.list({ nodes: true }, { signal })).apps,
    });
    const { data, error } = useLive(load, [], 3000);
    if (!data) return <Empty error={error} loading />;
    const { cluster, apps } = data;
    if (cluster.id === "") {
        return (
            <>
                <Empty>
                    {cluster.revoked
                        ? `This node was revoked from the cluster ${cluster.revoked}.`
                        : "This node is in no cluster. `edgefaas cluster init` makes one."}
                </Empty>
                <Explain />
            </>
        );
    }
    const rows: Row[] = [
        {
            name: cluster.name,
            isThis: true,
            state: <Badge tone="good">this node</Badge>,
            address: cluster.addresses.join(", "),
            status: cluster.status,
            rtt: "",
            traffic: "",
        },
        ...cluster.members.map((member) => ({
            name: member.name,
            isThis: false,
            state: member.peer ? (
                <Badge tone="good">connected</Badge>
            ) : (
                <Badge tone="bad">away{member.awayMs === undefined ? "" : ` for ${span(Number(member.awayMs) / 1000)}`}</Badge>
            ),
            address: member.peer?.address ?? member.addresses.join(", "),
            status: member.status,
            rtt: member.peer?.rttUs === undefined ? "" : duration(member.peer.rttUs),
            traffic: member.peer ? `${bytes(member.peer.bytesIn)} in, ${bytes(member.peer.bytesOut)} out` : "",
        })),
    ];
    return (
        <>
            {error && <Empty error={error} />}
            {cluster.copy && <p class="away">A second node runs with the identity of this one: <Prose text={cluster.copy} /></p>}
            {cluster.recovering > 0 && (
                <p class="away">
                    Objects of {counted(cluster.recovering, "pattern")} have not come from other members yet:{" "}
                    {cluster.recoveringPatterns.map((one) => `${one.app} ${one.pattern} (${one.members.join(", ")})`).join("; ")}
                </p>
            )}
            <Card title="Members" actions={<small>cluster {cluster.id}</small>}>
                <Table
                    label="Members"
                    rows={rows}
                    id={(row) => row.name}
                    columns={[
                        { name: "Name", cell: (row) => row.name },
                        { name: "State", cell: (row) => row.state },
                        { name: "Zone", cell: (row) => row.status?.zone || "unknown" },
                        { name: "Load", number: true, cell: (row) => (row.status?.load ? percent(row.status.load.permille / 1000) : "") },
                        { name: "Round trip", number: true, cell: (row) => row.rtt },
                        { name: "Traffic", wide: true, cell: (row) => row.traffic },
                        { name: "Labels", wide: true, cell: (row) => row.status?.labels.join(", ") },
                        { name: "Version", wide: true, cell: (row) => row.status?.software },
                        { name: "Address", wide: true, cell: (row) => row.address },
                    ]}
                />
            </Card>
            {apps.map((app) => (
                <Revisions key={app.name} app={app} />
            ))}
            <Explain />
        </>
    );
}

const STATES: Record<State, string> = {
    [State.UNSPECIFIED]: "unknown",
    [State.LIVE]: "live",
    [State.ELSEWHERE]: "runs on other nodes",
    [State.WAITING]: "waiting",
    [State.FETCHING]: "fetching",
    [State.FAILED]: "failed",
    [State.THIS_NODE]: "deployed to this node alone",
    [State.AWAY]: "away; gets it when it returns",
    [State.REMOVED]: "removed",
};

function stateOf(node: NodeApp) {
    const text = STATES[node.state] ?? "unknown";
    if (node.state === State.FAILED) return <Badge tone="bad"><Prose text={`${text}: ${node.detail}`} /></Badge>;
    if (node.state === State.FETCHING) return <Badge tone="warn">{`${text}, ${percent(node.permille / 1000)}`}</Badge>;
    return <Badge tone={node.state === State.LIVE || node.state === State.ELSEWHERE ? "good" : "warn"}>{text}</Badge>;
}

function Revisions(props: { app: App }) {
    const { app } = props;
    if (app.nodes.length === 0) return null;
    return (
        <Card title={app.name} actions={<small>revision {app.revision.slice(0, 12)}</small>}>
            <Table
                label={`${app.name} on the nodes`}
                rows={app.nodes}
                id={(node) => node.node}
                columns={[
                    { name: "Node", cell: (node) => node.node },
                    { name: "State", cell: stateOf },
                    { name: "Revision", cell: (node) => node.revision.slice(0, 12) },
                ]}
            />
        </Card>
    );
}

/** Where a call of a function would run, and why. */
function Explain() {
    const [answer, setAnswer] = useState<{ node: string; steps: string[] }>();
    const explain = async (text: Fields) => {
        setAnswer(undefined);
        setAnswer(await control.explainPlacement({ function: text("function").trim(), entry: text("entry").trim() }));
    };
    return (
        <Card title="Where does a call run?">
            <Form label="Explain" send={explain} keep>
                <div class="fields">
                    <Field name="function" label="Function" required />
                    <Field name="entry" label="Arrives at" placeholder="this node" />
                </div>
            </Form>
            {answer && (
                <div aria-live="polite">
                    <dl class="figures">
                        <Figure name="Runs on" value={answer.node || "no node"} />
                    </dl>
                    <ol>
                        {answer.steps.map((step) => (
                            <li key={step}>
                                <Prose text={step} />
                            </li>
                        ))}
                    </ol>
                </div>
            )}
        </Card>
    );
}
