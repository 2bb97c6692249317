// Health, load and memory of the node.
import { control } from "../connection";
import { bytes, count, span } from "../format";
import { useLive } from "../live";
import { Badge, Card, Empty, Figure, Table } from "../parts/basics";

export function Overview() {
    const { data, error } = useLive((signal) => control.status({}, { signal }), []);
    if (!data) return <Empty error={error} loading />;
    const { memory, disk, addresses } = data;
    const state = data.draining ? <Badge tone="warn">stopping</Badge> : <Badge tone="good">ready</Badge>;
    return (
        <>
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
                        note={`${count(data.failures)} failed, ${count(data.pending)} pending`}
                    />
                </dl>
            </Card>
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
                                        <Badge tone="bad">{bridge.lastError || "not connected"}</Badge>
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
