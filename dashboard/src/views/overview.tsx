// Warnings, health, load and memory of the node, their history, and what has happened.
import { useMemo, useState } from "preact/hooks";
import type { Sample } from "../api/edgefaas/history/v1/history_pb";
import { control } from "../connection";
import { bytes, count, degrees, percent, rate, span } from "../format";
import { useLive } from "../live";
import { Badge, Card, Empty, Figure, Prose, Table } from "../parts/basics";
import { Chart, type Series, type Tone } from "../parts/chart";
import { Events } from "../parts/events";
import { type Span, useHistory } from "../parts/history";
import { Warnings } from "../parts/warnings";
import { href } from "../router";

export function Overview() {
    const { data, error } = useLive((signal) => control.status({}, { signal }), []);
    if (!data) return <Empty error={error} loading />;
    const { memory, disk, addresses } = data;
    const state = data.draining ? <Badge tone="warn">stopping</Badge> : <Badge tone="good">ready</Badge>;
    return (
        <>
            {error && <Empty error={error} />}
            <Warnings warnings={data.warnings} />
            <Card title="Node" actions={state}>
                <dl class="figures">
                    <Figure name="Up for" value={span(Number(data.uptimeMs) / 1000)} note={`version ${data.version}`} />
                    <Figure
                        name="Memory"
                        value={bytes(data.rssBytes)}
                        note={memory && `of ${bytes(memory.limitBytes)} (${memory.limitSource})`}
                    />
                    <Figure
                        name="Disk"
                        value={disk ? `${bytes(disk.freeBytes)} free` : "unknown"}
                        note={disk?.full ? `full: needs ${bytes(disk.neededBytes)}` : undefined}
                        tone={disk?.full ? "bad" : undefined}
                    />
                    <Figure name="Isolates" value={count(data.isolatesRunning)} note={`of ${count(data.isolatesMax)}`} />
                    <Figure name="MQTT connections" value={count(data.mqttConnections)} />
                    <Figure
                        name="Invocations"
                        value={count(data.invocations)}
                        note={
                            <>
                                since the start of the node, {count(data.failures)} failed; <a href={href("invocations")}>{count(data.pending)} pending</a>
                            </>
                        }
                    />
                    {data.dead > 0n && (
                        <Figure name="Dead letters" value={<a href={href("invocations", ["dead"])}>{count(data.dead)}</a>} note="failed for good" tone="bad" />
                    )}
                    {data.temperatureMillicelsius !== undefined && <Figure name="Temperature" value={degrees(data.temperatureMillicelsius)} note="of the board" />}
                </dl>
            </Card>
            <History />
            <Events />
            <Card title="Addresses">
                <dl class="pairs">
                    <dt>HTTP</dt>
                    <dd>{addresses && `${addresses.httpTls ? "https" : "http"}://${addresses.http}`}</dd>
                    <dt>MQTT</dt>
                    <dd>{addresses && `mqtt://${addresses.mqtt}`}</dd>
                    {addresses?.mqtts && <dt>MQTT over TLS</dt>}
                    {addresses?.mqtts && <dd>{`mqtts://${addresses.mqtts}`}</dd>}
                    <dt>Node id</dt>
                    <dd>{data.nodeId}</dd>
                    <dt>Data</dt>
                    <dd>{data.dataDir}</dd>
                </dl>
            </Card>
            {data.bridges.length > 0 && (
                <Card title="Bridges">
                    <Table
                        label="Bridges"
                        rows={data.bridges}
                        id={(bridge) => bridge.name}
                        columns={[
                            { name: "Name", cell: (bridge) => bridge.name },
                            { name: "Broker", cell: (bridge) => bridge.url, wide: true },
                            {
                                name: "State",
                                cell: (bridge) =>
                                    bridge.connectedSinceMs === undefined ? (
                                        <Badge tone="bad">
                                            <Prose text={bridge.lastError || "not connected"} />
                                        </Badge>
                                    ) : (
                                        <Badge tone="good">connected</Badge>
                                    ),
                            },
                            { name: "Waiting", number: true, cell: (bridge) => count(bridge.queued) },
                            { name: "Dropped", number: true, cell: (bridge) => count(bridge.dropped) },
                        ]}
                    />
                </Card>
            )}
        </>
    );
}

interface Plan {
    title: string;
    format: (value: number) => string;
    isBytes?: boolean;
    lines: { name: string; tone: Tone; of: (sample: Sample) => number | null }[];
}

const CHARTS: Plan[] = [
    {
        title: "Invocations",
        format: rate,
        lines: [
            { name: "all", tone: "accent", of: (sample) => sample.invocations },
            { name: "failed", tone: "bad", of: (sample) => sample.failures },
        ],
    },
    {
        title: "MQTT messages",
        format: rate,
        lines: [
            { name: "in", tone: "accent", of: (sample) => sample.messagesIn },
            { name: "out", tone: "second", of: (sample) => sample.messagesOut },
        ],
    },
    { title: "Processor", format: percent, lines: [{ name: "in use", tone: "accent", of: (sample) => sample.cpuPermille / 1000 }] },
    {
        title: "Memory",
        format: bytes,
        isBytes: true,
        lines: [{ name: "of the node", tone: "accent", of: (sample) => Number(sample.rssBytes) }],
    },
    // On a scale of its own: beside it the node's would be a line at 0.
    {
        title: "Memory left",
        format: bytes,
        isBytes: true,
        lines: [{ name: "available", tone: "second", of: (sample) => Number(sample.memoryAvailableBytes) || null }],
    },
    { title: "Disk", format: bytes, isBytes: true, lines: [{ name: "free", tone: "accent", of: (sample) => Number(sample.diskFreeBytes) }] },
    {
        title: "Temperature",
        format: (value) => degrees(value),
        lines: [{ name: "of the board", tone: "accent", of: (sample) => sample.temperatureMillicelsius ?? null }],
    },
];

function History() {
    const [wanted, setWanted] = useState<Span>("hour");
    const { data, error } = useHistory(wanted);
    return (
        <Card
            title="History"
            actions={
                <div class="actions" role="group" aria-label="Time that the charts cover">
                    {(["hour", "week"] as const).map((one) => (
                        <button key={one} type="button" aria-pressed={one === wanted} onClick={() => setWanted(one)}>
                            Last {one}
                        </button>
                    ))}
                </div>
            }
        >
            {error && <Empty error={error} />}
            {!data ? (
                <Empty error={error} loading />
            ) : data.samples.length === 0 ? (
                <Empty>The first sample comes within {wanted === "hour" ? "5 seconds" : "5 minutes"}.</Empty>
            ) : (
                <Charts samples={data.samples} stepMs={data.stepMs} />
            )}
        </Card>
    );
}

function Charts(props: { samples: Sample[]; stepMs: number }) {
    const { samples, stepMs } = props;
    const times = useMemo(() => samples.map((sample) => Number(sample.unixMs)), [samples]);
    const charts = useMemo(
        () =>
            CHARTS.map(({ lines, ...plan }) => {
                const series = lines.map(({ name, tone, of }): Series => ({ name, tone, values: samples.map(of) }));
                return { ...plan, series: series.filter(({ values }) => values.some((value) => value !== null)) };
            }),
        [samples],
    );
    return (
        <div class="charts">
            {charts
                .filter(({ series }) => series.length > 0)
                .map((chart) => (
                    <Chart key={chart.title} {...chart} times={times} stepMs={stepMs} />
                ))}
        </div>
    );
}
