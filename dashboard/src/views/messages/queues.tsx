// The queue monitor: topic filters with subscribers, those with the most messages waiting first.
import { useState } from "preact/hooks";
import { control } from "../../connection";
import { count, rate } from "../../format";
import { useLive } from "../../live";
import { Badge, Card, Empty, Loaded, Table } from "../../parts/basics";

/** Filters that are asked for. */
const LIMIT = 200;

export function Queues() {
    const [filter, setFilter] = useState("");
    const wanted = filter.trim();
    const load = (signal: AbortSignal) => control.listQueues(wanted ? { filter: wanted } : { limit: LIMIT }, { signal });
    const live = useLive(load, [wanted]);
    const { data } = live;
    return (
        <>
            <label class="search">
                Topic filter
                <input type="search" value={filter} placeholder="all" onInput={(event) => setFilter(event.currentTarget.value)} autocapitalize="none" spellcheck={false} />
            </label>
            <Card
                title="Queues"
                actions={data && data.total > BigInt(data.queues.length) && <small>{count(data.queues.length)} of {count(data.total)}</small>}
            >
                <Loaded live={live}>
                    {(data) =>
                        data.queues.length === 0 ? (
                            <Empty>{wanted ? "No subscription has exactly this filter." : "No client subscribes to a topic."}</Empty>
                        ) : (
                            <Table
                                label="Queues"
                                rows={data.queues}
                                id={(queue) => queue.filter}
                                columns={[
                                    { name: "Filter", cell: (queue) => queue.filter },
                                    { name: "Subscribers", number: true, wide: true, cell: (queue) => count(queue.subscribers) },
                                    { name: "Rate", number: true, cell: (queue) => rate(queue.rate) },
                                    { name: "In", number: true, wide: true, cell: (queue) => count(queue.messagesIn) },
                                    { name: "Out", number: true, wide: true, cell: (queue) => count(queue.messagesOut) },
                                    { name: "Waiting", number: true, cell: (queue) => count(queue.waiting) },
                                    {
                                        name: "Lost",
                                        number: true,
                                        cell: (queue) => (queue.dropped > 0n ? <Badge tone="bad">{count(queue.dropped)}</Badge> : "0"),
                                    },
                                ]}
                            />
                        )
                    }
                </Loaded>
            </Card>
        </>
    );
}
