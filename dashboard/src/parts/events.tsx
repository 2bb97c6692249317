// What has happened on the node: the last events, live, with the newest first.
import { history } from "../connection";
import { counted, time } from "../format";
import { Badge, Card, Empty, Prose, type Tone } from "./basics";
import { Subject } from "./subject";
import { joinNumbered, useTail } from "./tail";

const MAX_EVENTS = 100;

const TONES: Record<string, Tone> = {
    deploy: "good",
    warning: "warn",
    "warning-over": "good",
    dead: "bad",
    member: "good",
    "member-away": "warn",
    bridge: "good",
    "bridge-away": "warn",
};

export function Events() {
    const open = (signal: AbortSignal) => history.events({ follow: true, tail: MAX_EVENTS }, { signal, timeoutMs: 0 });
    const { items, error } = useTail({ open, max: MAX_EVENTS, join: joinNumbered }, []);
    return (
        <Card title="Recent events" actions={<small>the last {MAX_EVENTS}</small>}>
            {error && <Empty error={error} />}
            {items.length === 0 && !error && <Empty>Nothing has happened yet.</Empty>}
            {items.length > 0 && (
                <ol class="events" tabIndex={0} aria-label="Recent events">
                    {[...items].reverse().map((event) => {
                        // The subject of a warning is its code: the text says the same for readers.
                        const subject = event.kind.startsWith("warning") ? "" : event.subject;
                        return (
                            <li key={`${event.number} ${event.unixMs}`}>
                                <time>{time(event.unixMs)}</time> <Badge tone={TONES[event.kind] ?? "quiet"}>{event.kind}</Badge>{" "}
                                {subject && <Subject kind={event.kind} name={subject} />} <Prose text={event.text} />
                                {event.lostBefore > 0n && <small class="warn"> {counted(event.lostBefore, "event")} before this one {event.lostBefore === 1n ? "was" : "were"} lost</small>}
                            </li>
                        );
                    })}
                </ol>
            )}
        </Card>
    );
}
