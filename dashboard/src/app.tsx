// The frame of all views: sign-in, navigation, and the note that the node is away.
import { useEffect, useRef } from "preact/hooks";
import { findSession, link, session, signOut } from "./connection";
import { href, type Place, place } from "./router";
import { SignIn } from "./views/sign-in";
import { Overview } from "./views/overview";
import { Messages } from "./views/messages";
import { Functions } from "./views/functions";
import { Invocations } from "./views/invocations";
import { Workflows } from "./views/workflows";
import { Objects } from "./views/objects";
import { Traces } from "./views/traces";
import { Cluster } from "./views/cluster";
import { Settings } from "./views/settings";

const VIEWS = [
    { view: "overview", name: "Overview", content: Overview },
    { view: "messages", name: "Messages", content: Messages },
    { view: "functions", name: "Functions", content: Functions },
    { view: "invocations", name: "Invocations", content: Invocations },
    { view: "workflows", name: "Workflows", content: Workflows },
    { view: "objects", name: "Objects", content: Objects },
    { view: "traces", name: "Traces", content: Traces },
    { view: "cluster", name: "Cluster", content: Cluster },
    { view: "settings", name: "Settings", content: Settings },
];

/** Interval of attempts while the node is away. */
const RETRY_MS = 2000;

export function App() {
    useEffect(() => void findSession(), []);
    useEffect(() => {
        // Somebody may have signed in in another tab.
        const look = () => void (session.value === null && !document.hidden && findSession());
        document.addEventListener("visibilitychange", look);
        window.addEventListener("focus", look);
        return () => {
            document.removeEventListener("visibilitychange", look);
            window.removeEventListener("focus", look);
        };
    }, []);
    useEffect(() => {
        if (link.value !== "away") return;
        const timer = setInterval(findSession, RETRY_MS);
        return () => clearInterval(timer);
    }, [link.value]);
    const current = VIEWS.find(({ view }) => view === place.value.view);
    useEffect(() => {
        document.title = [subject(place.value), current?.name, "edgefaas"].filter((part) => part).join(" - ");
    }, [place.value, current]);
    const list = useRef<HTMLUListElement>(null);
    useEffect(() => showCurrent(list.current), [current, session.value]);
    const away = link.value === "away" && (
        <p class="away" role="alert">
            The node does not answer. This page tries again every two seconds; the figures below are the last ones.
        </p>
    );
    if (session.value === undefined) return <main>{away}</main>;
    if (session.value === null) {
        return (
            <main>
                {away}
                <SignIn />
            </main>
        );
    }
    const Content = current?.content;
    return (
        <>
            <a class="skip" href="#content" onClick={skip}>
                Skip to the content
            </a>
            <nav aria-label="Views">
                <strong>edgefaas</strong>
                <ul ref={list}>
                    {VIEWS.map(({ view, name }) => (
                        <li key={view}>
                            <a href={href(view)} aria-current={view === current?.view ? "page" : undefined}>
                                {name}
                            </a>
                        </li>
                    ))}
                </ul>
                <div class="who">
                    <span>
                        {session.value.user ?? "admin token"} <small>{session.value.role}</small>
                    </span>
                    <button type="button" onClick={signOut}>
                        Sign out
                    </button>
                    <a class="small" href="/licenses.txt">
                        Licences
                    </a>
                </div>
            </nav>
            <main id="content" tabIndex={-1}>
                {away}
                <h1>{current?.name ?? "Not found"}</h1>
                {Content ? <Content /> : <p>There is no such view.</p>}
            </main>
        </>
    );
}

/** What a view is about, for the title of its tab: a topic, a filter, or the names in its address. */
function subject({ parts, query }: Place): string {
    return query.get("topic") || query.get("filter") || parts.filter((part) => part !== "of" && part !== "one").join(" ");
}

/** On a narrow screen the list of views scrolls sideways: the current one goes to its middle. */
function showCurrent(list: HTMLElement | null) {
    const item = list?.querySelector("[aria-current]")?.getBoundingClientRect();
    if (!list || !item) return;
    const box = list.getBoundingClientRect();
    list.scrollLeft += item.left + item.width / 2 - (box.left + box.width / 2);
}

/** The address keeps its `#`, which names the view. */
function skip(event: Event) {
    event.preventDefault();
    document.getElementById("content")?.focus();
}
