// The log of a function, or of all of them, live, with a search in what was received.
import { useEffect, useRef, useState } from "preact/hooks";
import type { LogLine } from "../api/edgefaas/control/v1/control_pb";
import { control } from "../connection";
import { clock, counted, span } from "../format";
import { useLive } from "../live";
import { href } from "../router";
import { Card, Empty } from "./basics";
import { joinNumbered, useTail } from "./tail";

/** Lines that are kept here, and that the node sends first. */
const MAX_LINES = 1000;
const FIRST_LINES = 200;
const UPTIME_MS = 10_000;

export function Logs(props: { name?: string }) {
    const name = props.name ?? "";
    const [search, setSearch] = useState("");
    const [follow, setFollow] = useState(true);
    const end = useRef<HTMLDivElement>(null);
    const open = (signal: AbortSignal) => control.logs({ function: name, follow: true, tail: FIRST_LINES }, { signal, timeoutMs: 0 });
    const { items: lines, error } = useTail({ open, max: MAX_LINES, join: joinNumbered }, [name]);
    useEffect(() => {
        if (follow && end.current) end.current.scrollTop = end.current.scrollHeight;
    }, [lines, follow]);
    // The first line of a log may be the one after a restart.
    const uptimeS = useLive(async (signal) => Number((await control.status({}, { signal })).uptimeMs) / 1000, [], UPTIME_MS).data;
    const wanted = search.trim().toLowerCase();
    const text = (line: LogLine) => `${line.level} ${line.function} ${line.invocationId} ${line.message}`.toLowerCase();
    const shown = wanted ? lines.filter((line) => text(line).includes(wanted)) : lines;
    return (
        <Card
            title="Log"
            actions={
                <>
                    <label class="inline">
                        <input type="checkbox" checked={follow} onChange={(event) => setFollow(event.currentTarget.checked)} />
                        Follow
                    </label>
                    <input type="search" aria-label="Search in the log" placeholder="Search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
                </>
            }
        >
            {error && <Empty error={error} />}
            <p>
                <small>The node keeps the log in memory, since its start{uptimeS !== undefined && ` ${span(uptimeS)} ago`}.</small>
            </p>
            <div class="log" ref={end} role="log" aria-label="Log lines" aria-live="off" tabIndex={0}>
                {shown.length === 0 && <p class="empty">{wanted ? "No line has this text." : "No lines yet."}</p>}
                {shown.map((line) => (
                    <div key={String(line.number)} class={`line ${line.level}`}>
                        {line.lostBefore > 0n && <div class="warn">{counted(line.lostBefore, "line was", "lines were")} lost</div>}
                        <time>{clock(line.timeUnixMs)}</time> <span class="level">{line.level}</span>{" "}
                        {!props.name && <a href={href("functions", [line.function])}>{line.function}</a>} <span class="message">{line.message}</span>{" "}
                        {line.invocationId && <a href={href("traces", [line.invocationId])}>trace</a>}
                    </div>
                ))}
            </div>
        </Card>
    );
}
