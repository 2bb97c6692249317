// The broker: topics, messages as they arrive, publishing, retained messages, clients and queues, each on its page.
import { useEffect } from "preact/hooks";
import { findSession, may, type Session, session } from "../connection";
import { Empty } from "../parts/basics";
import { type Tab, Tabs } from "../parts/tabs";
import { place } from "../router";
import { Clients } from "./messages/clients";
import { Publish } from "./messages/publish";
import { Queues } from "./messages/queues";
import { Retained } from "./messages/retained";
import { Topics } from "./messages/topics";
import { Watch } from "./messages/watch";

interface Page extends Tab {
    /** The role that it needs, if it is not `look`. */
    role?: Session["role"];
    content: () => preact.ComponentChild;
}

const PAGES: Page[] = [
    { part: "topics", name: "Topics", content: () => <Topics /> },
    { part: "watch", name: "Watch", content: () => <Watch key={place.value.query.get("filter")} filter={place.value.query.get("filter") ?? ""} /> },
    { part: "publish", name: "Publish", role: "operate", content: () => <Publish key={place.value.query.get("topic")} topic={place.value.query.get("topic") ?? ""} /> },
    { part: "retained", name: "Retained", content: () => <Retained /> },
    { part: "clients", name: "Clients", content: () => <Clients id={place.value.parts[1]} /> },
    { part: "queues", name: "Queues", content: () => <Queues /> },
];

export function Messages() {
    const pages = PAGES.filter((page) => may(page.role ?? "look"));
    const current = place.value.parts[0] ?? "topics";
    const page = PAGES.find(({ part }) => part === current);
    return (
        <>
            <Tabs view="messages" label="Pages of the messages" tabs={pages} current={current} />
            {!page ? <Empty>There is no such page.</Empty> : may(page.role ?? "look") ? page.content() : <NeedsRole role={page.role} />}
        </>
    );
}

/** Interval at which a page that is refused asks for the role. */
const ROLE_MS = 3000;

function NeedsRole(props: { role: Session["role"] | undefined }) {
    useEffect(() => {
        // Nothing else on this page asks the node.
        const timer = setInterval(() => void (!document.hidden && findSession()), ROLE_MS);
        return () => clearInterval(timer);
    }, []);
    return (
        <Empty>
            This page needs the role {props.role}. You have the role {session.value?.role}: `edgefaas users role` changes it.
        </Empty>
    );
}
