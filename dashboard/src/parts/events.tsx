// What has happened on the node: the last events, live, with the newest first.
import type { Event } from "../api/edgefaas/history/v1/history_pb";
import { history } from "../connection";
import { counted, time } from "../format";
import { Badge, Card, Empty, type Tone } from "./basics";
import { Subject } from "./subject";
import { byNumber, useTail } from "./tail";
import { Prose } from "./warnings";

const MAX_EVENTS = 100;
const join = byNumber<Event>((event) => event.unixMs);

/** What it is called here, and its tone. */
const KINDS: Record<string, [string, Tone]> = {
    start: ["start", "quiet"],
    deploy: ["deployed", "good"],
    remove: ["removed", "quiet"],
    warning: ["warning", "warn"],
    "warning-over": ["warning over", "good"],
    dead: ["dead letter", "bad"],
    peer: ["member came", "good"],
    "peer-away": ["member away", "warn"],
    bridge: ["bridge up", "good"],
    "bridge-away": ["bridge away", "warn"],
};

/** The badge says that a warning is over. */
function textOf(event: Event): string {
    return event.kind === "warning-over" ? event.text.replace(/^over: /, "") : event.text;
}

export function Events() {
    const open = (signal: AbortSignal) => history.events({ follow: true, tail: MAX_EVENTS }, { signal, timeoutMs: 0 });
    const { items, error } = useTail({ open, max: MAX_EVENTS, join }, []);
    return (
        <Card title="Recent events" actions={<small>the last {MAX_EVENTS}</small>}>
            {error && <Empty error={error} />}
            {items.length === 0 && !error && <Empty>Nothing has happened yet.</Empty>}
            {items.length > 0 && (
                <ol class="events" tabIndex={0} aria-label="Recent events">
                    {[...items].reverse().map((event) => {
                        const [name, tone] = KINDS[event.kind] ?? [event.kind, "quiet"];
                        return (
                            <li key={`${event.number} ${event.unixMs}`}>
                                <time>{time(event.unixMs)}</time> <Badge tone={tone}>{name}</Badge>{" "}
                                {event.subject && <Subject kind={event.kind} name={event.subject} />} <Prose text={textOf(event)} />
                                {event.lostBefore > 0n && <small class="warn"> {counted(event.lostBefore, "event")} before this one {event.lostBefore === 1n ? "was" : "were"} lost</small>}
                            </li>
                        );
                    })}
                </ol>
            )}
        </Card>
    );
}
