// Retained messages, and removing them.
import { useState } from "preact/hooks";
import { may, messages } from "../../connection";
import { bytes, count, time } from "../../format";
import { useLive } from "../../live";
import { Action, Card, Empty, Loaded, Table } from "../../parts/basics";
import { type Form, FormChoice, Payload } from "../../parts/payload";
import { Pages, Search, usePages } from "../../parts/search";
import { href } from "../../router";

const PAGE = 100;

export function Retained() {
    const [filter, setFilter] = useState("");
    const [search, setSearch] = useState("");
    const [form, setForm] = useState<Form>("auto");
    const pages = usePages([filter, search]);
    const load = (signal: AbortSignal) => messages.listRetained({ filter, search, after: pages.after, limit: PAGE }, { signal });
    const live = useLive(load, [filter, search, pages.after]);
    const { data, refresh } = live;
    // An empty message with `retain` removes the retained one. With QoS 1 the answer comes when that is stored.
    const remove = async (topic: string) => {
        await messages.publish({ topic, qos: 1, retain: true });
        refresh();
    };
    return (
        <>
            <div class="fields search">
                <Search label="Topic filter" placeholder="all" text={filter} change={setFilter} />
                <Search label="Search in the topics" placeholder="a part of a name" text={search} change={setSearch} />
            </div>
            <Card
                title="Retained messages"
                actions={
                    <>
                        {data && <small>{count(data.total)} in all</small>}
                        <FormChoice form={form} change={setForm} />
                    </>
                }
            >
                <Loaded live={live}>
                    {(data) =>
                        data.messages.length === 0 ? (
                            <Empty>{filter || search ? "No retained message has such a topic." : "No message is retained."}</Empty>
                        ) : (
                            <Table
                                label="Retained messages"
                                rows={data.messages}
                                id={(message) => message.topic}
                                columns={[
                                    { name: "Topic", cell: (message) => <a href={href("messages", ["topics"], { topic: message.topic })}>{message.topic}</a> },
                                    { name: "Payload", cell: (message) => <Payload data={message.payload} total={message.payloadBytes} form={form} short /> },
                                    { name: "Size", number: true, wide: true, cell: (message) => bytes(message.payloadBytes) },
                                    { name: "QoS", number: true, wide: true, cell: (message) => message.qos },
                                    { name: "Since", wide: true, cell: (message) => message.unixMs > 0n && time(message.unixMs) },
                                    {
                                        name: "Actions",
                                        actions: true,
                                        cell: (message) =>
                                            may("operate") && (
                                                <Action run={() => remove(message.topic)} confirm={`Remove the retained message of ${message.topic}?`} danger>
                                                    Remove
                                                </Action>
                                            ),
                                    },
                                ]}
                            />
                        )
                    }
                </Loaded>
                <Pages place={pages} last={data?.messages.at(-1)?.topic} more={data?.more ?? false} />
            </Card>
        </>
    );
}
