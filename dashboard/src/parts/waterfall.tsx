// The spans of a trace as bars over their common time.
import { useState } from "preact/hooks";
import type { Span } from "../api/edgefaas/control/v1/control_pb";
import { duration } from "../format";
import { Badge, Value } from "./basics";

const HEIGHT = 14;

export function Waterfall(props: { spans: Span[] }) {
    const [open, setOpen] = useState<string>();
    const { spans } = props;
    const begin = Math.min(...spans.map((span) => Number(span.startedUnixUs)));
    const end = Math.max(...spans.map((span) => Number(span.startedUnixUs + span.durationUs)), begin + 1);
    const depths = new Map<string, number>();
    for (const span of spans) depths.set(span.id, (depths.get(span.parent) ?? -1) + 1);
    const retries = retriesOf(spans);
    return (
        <div class="waterfall">
            <p>
                <small>
                    {duration(end - begin)} from the first start to the last end.
                    {retries.size > 0 && " The time of a workflow that was retried is that of its first run; what a retry ran has its offset."}
                </small>
            </p>
            {spans.map((span) => {
                const from = ((Number(span.startedUnixUs) - begin) / (end - begin)) * 100;
                const length = Math.max((Number(span.durationUs) / (end - begin)) * 100, 0.5);
                const id = span.spanId || span.id;
                const isOpen = open === id;
                const indent = "\u2003".repeat(Math.min(depths.get(span.id) ?? 0, 12));
                return (
                    <div key={id} class="span">
                        <button type="button" aria-expanded={isOpen} onClick={() => setOpen(isOpen ? undefined : id)}>
                            {indent}
                            {span.name} <small>{span.kind}</small>{" "}
                            {retries.has(span.id) && <Badge tone="warn">retry, after {duration(Number(span.startedUnixUs) - begin)}</Badge>}
                        </button>
                        <svg viewBox={`0 0 100 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
                            <rect class={span.error ? "bar bad" : "bar"} x={Math.min(from, 99.5)} y="2" width={length} height={HEIGHT - 4} />
                        </svg>
                        <span class="number">
                            {span.status || duration(span.durationUs)}
                            {span.node && <small> {span.node}</small>}
                        </span>
                        {isOpen && <Details span={span} />}
                    </div>
                );
            })}
        </div>
    );
}

/** Ids of spans that began when the workflow around them had ended: an instance that is retried goes on in the same trace. */
function retriesOf(spans: Span[]): Set<string> {
    const workflows = new Map(spans.filter((span) => span.kind === "workflow" && span.status === "").map((span) => [span.id, span]));
    const isRetry = (span: Span) => {
        const around = workflows.get(span.parent);
        return around !== undefined && around.id !== span.id && span.startedUnixUs >= around.startedUnixUs + around.durationUs;
    };
    return new Set(spans.filter(isRetry).map((span) => span.id));
}

function Details(props: { span: Span }) {
    const { span } = props;
    const parts: [string, bigint][] = [
        ["waited", span.queueUs],
        ["isolate made", span.startUs],
        ["ran", span.executionUs],
        ["committed", span.stateUs],
    ];
    return (
        <div class="details">
            {span.error && <Badge tone="bad">{span.error}</Badge>}
            <p>
                {parts
                    .filter(([, us]) => us > 0n)
                    .map(([name, us]) => `${name} ${duration(us)}`)
                    .join(", ")}
            </p>
            {span.input && (
                <>
                    <small>In</small>
                    <Value text={span.input} />
                </>
            )}
            {span.output && (
                <>
                    <small>Out</small>
                    <Value text={span.output} />
                </>
            )}
        </div>
    );
}
