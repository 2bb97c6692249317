// Clients of the broker with a session, and one client with its subscriptions.
import { useState } from "preact/hooks";
import type { Client } from "../../api/edgefaas/messages/v1/messages_pb";
import { may, messages } from "../../connection";
import { count, counted, time } from "../../format";
import { useLive } from "../../live";
import { Action, Badge, Card, Empty, Figure, Loaded, Table } from "../../parts/basics";
import { Pages, Search, usePages } from "../../parts/search";
import { go, href, useParameter } from "../../router";

const PAGE = 100;
/** The beginning of the ids of subscriptions of the control API, and how many of them there are at most. */
const CONTROL = "$control/subscribe-";
const MAX_CONTROL = 100;

export function Clients(props: { id: string | undefined }) {
    return props.id === undefined ? <All /> : <One key={props.id} id={props.id} />;
}

/** Subscriptions of the control API, such as those of this page. */
function isControl(client: Client): boolean {
    return client.id.startsWith(CONTROL);
}

interface Listed {
    clients: Client[];
    /** The id behind which the next page begins. */
    last: string | undefined;
    more: boolean;
    /** Without those that are left out. */
    total: bigint;
    /** Over the network. */
    connected: bigint;
    /** Subscriptions of the control API there are, shown or not. */
    control: number;
}

function State(props: { client: Client }) {
    return props.client.connected ? <Badge tone="good">connected</Badge> : <Badge tone="warn">away</Badge>;
}

function All() {
    const [search, setSearch] = useParameter("search");
    const [connected, setConnected] = useState(false);
    const [withControl, setWithControl] = useState(false);
    const pages = usePages([search, connected, withControl]);
    const load = async (signal: AbortSignal): Promise<Listed> => {
        const ofControl = await messages.listClients({ search: CONTROL, limit: MAX_CONTROL }, { signal });
        const own = ofControl.clients.filter(isControl);
        // The page has as many rows as others, whichever of its clients are left out.
        const limit = PAGE + (withControl ? 0 : own.length);
        const page = await messages.listClients({ search, connected, after: pages.after, limit }, { signal });
        const shown = withControl ? page.clients : page.clients.filter((client) => !isControl(client));
        const hidden = withControl ? 0 : own.length;
        const last = shown[PAGE] ? shown[PAGE - 1] : page.clients.at(-1);
        return {
            clients: shown.slice(0, PAGE),
            last: last?.id,
            more: page.more || shown.length > PAGE,
            total: page.total - BigInt(hidden),
            connected: page.connected,
            control: own.length,
        };
    };
    const live = useLive(load, [search, connected, withControl, pages.after]);
    const { data, refresh } = live;
    return (
        <>
            <div class="fields search">
                <Search label="Search in the clients" placeholder="id, user or address" text={search} change={setSearch} />
                <label class="inline">
                    <input type="checkbox" checked={connected} onChange={(event) => setConnected(event.currentTarget.checked)} />
                    Connected only
                </label>
                <label class="inline">
                    <input type="checkbox" checked={withControl} onChange={(event) => setWithControl(event.currentTarget.checked)} />
                    Subscriptions of the control API{data && ` (${count(data.control)})`}
                </label>
            </div>
            <Card
                title="Clients"
                actions={
                    data && (
                        <small>
                            {count(data.connected)} connected of {count(data.total)}
                        </small>
                    )
                }
            >
                <Loaded live={live}>
                    {(data) =>
                        data.clients.length === 0 ? (
                            <Empty>{search || connected ? "No such client." : "No client has a session."}</Empty>
                        ) : (
                            <Table
                                label="Clients"
                                rows={data.clients}
                                id={(client) => client.id}
                                columns={[
                                    { name: "Client", cell: (client) => <Name client={client} /> },
                                    { name: "State", cell: (client) => <State client={client} /> },
                                    { name: "User", wide: true, cell: (client) => client.user || <small>anonymous</small> },
                                    { name: "Address", wide: true, cell: (client) => client.address },
                                    { name: "Since", wide: true, cell: (client) => client.sinceUnixMs > 0n && time(client.sinceUnixMs) },
                                    { name: "Waiting", number: true, cell: (client) => count(client.waiting) },
                                    { name: "Actions", actions: true, cell: (client) => <Drop client={client} done={refresh} /> },
                                ]}
                            />
                        )
                    }
                </Loaded>
                <Pages place={pages} last={data?.last} more={data?.more ?? false} />
            </Card>
        </>
    );
}

function Name(props: { client: Client }) {
    const { client } = props;
    return (
        <>
            <a href={href("messages", ["clients", client.id])}>{client.id}</a> {isControl(client) && <small>control API</small>}
        </>
    );
}

function Drop(props: { client: Client; done: () => void }) {
    const { client, done } = props;
    if (!may("operate")) return null;
    const drop = async (forget: boolean) => {
        await messages.dropClient({ id: client.id, forget });
        done();
    };
    return (
        <span class="actions">
            {client.connected && (
                <Action run={() => drop(false)} confirm={`End the connection of ${client.id}? It may connect again.`} danger>
                    Drop
                </Action>
            )}
            <Action run={() => drop(true)} confirm={`Forget the session of ${client.id}, with its ${counted(client.subscriptions, "subscription")} and ${counted(client.waiting, "message")} that ${client.waiting === 1n ? "waits" : "wait"}?`} danger>
                {client.connected ? "Drop and forget" : "Forget"}
            </Action>
        </span>
    );
}

function One(props: { id: string }) {
    const { id } = props;
    const live = useLive((signal) => messages.getClient({ id }, { signal }), [id]);
    const back = (
        <p>
            <a href={href("messages", ["clients"])}>All clients</a>
        </p>
    );
    // A client without a session that lasts is gone with its connection.
    const dropped = async () => {
        const rest = await messages.getClient({ id }).catch(() => undefined);
        if (rest) live.refresh();
        else go("messages", ["clients"]);
    };
    return (
        <>
            {back}
            <Loaded live={live}>{(client) => <Details client={client} dropped={() => void dropped()} />}</Loaded>
        </>
    );
}

function Details(props: { client: Client; dropped: () => void }) {
    const { client: data, dropped } = props;
    return (
        <>
            <Card title={data.id} actions={<Drop client={data} done={dropped} />}>
                <dl class="figures">
                    <Figure name="State" value={<State client={data} />} note={data.sinceUnixMs > 0n && `since ${time(data.sinceUnixMs)}`} />
                    <Figure name="Waiting" value={count(data.waiting)} note="messages" />
                    <Figure name="In flight" value={count(data.inFlight)} note="not acknowledged" />
                    <Figure name="Subscriptions" value={count(data.subscriptions)} />
                </dl>
                <dl class="pairs">
                    <dt>User</dt>
                    <dd>{data.user || "anonymous"}</dd>
                    {data.connected && <dt>Address</dt>}
                    {data.connected && (
                        <dd>
                            {data.address}, MQTT {data.version} over {data.transport}
                        </dd>
                    )}
                </dl>
            </Card>
            <Card title="Subscriptions" actions={data.filters.length < data.subscriptions && <small>the first {count(data.filters.length)}</small>}>
                {data.filters.length === 0 ? (
                    <Empty>It subscribes to nothing.</Empty>
                ) : (
                    <Table
                        label="Subscriptions"
                        rows={data.filters}
                        id={(one) => one.filter}
                        columns={[
                            { name: "Filter", cell: (one) => <a href={href("messages", ["watch"], { filter: one.filter })}>{one.filter}</a> },
                            { name: "QoS", number: true, cell: (one) => one.qos },
                        ]}
                    />
                )}
            </Card>
        </>
    );
}
