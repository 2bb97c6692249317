// The broker: topics, messages as they arrive, publishing, retained messages, clients and queues, each on its page.
import { may } from "../connection";
import { Empty } from "../parts/basics";
import { type Tab, Tabs } from "../parts/tabs";
import { place } from "../router";
import { Clients } from "./messages/clients";
import { Publish } from "./messages/publish";
import { Queues } from "./messages/queues";
import { Retained } from "./messages/retained";
import { Topics } from "./messages/topics";
import { Watch } from "./messages/watch";

const PAGES: (Tab & { content: () => preact.ComponentChild })[] = [
    { part: "topics", name: "Topics", content: () => <Topics /> },
    { part: "watch", name: "Watch", content: () => <Watch key={place.value.query.get("filter")} filter={place.value.query.get("filter") ?? ""} /> },
    { part: "publish", name: "Publish", content: () => <Publish key={place.value.query.get("topic")} topic={place.value.query.get("topic") ?? ""} /> },
    { part: "retained", name: "Retained", content: () => <Retained /> },
    { part: "clients", name: "Clients", content: () => <Clients id={place.value.parts[1]} /> },
    { part: "queues", name: "Queues", content: () => <Queues /> },
];

export function Messages() {
    const pages = may("operate") ? PAGES : PAGES.filter((page) => page.part !== "publish");
    const current = place.value.parts[0] ?? "topics";
    const page = pages.find(({ part }) => part === current);
    return (
        <>
            <Tabs view="messages" label="Pages of the messages" tabs={pages} current={current} />
            {page ? page.content() : <Empty>There is no such page.</Empty>}
        </>
    );
}
