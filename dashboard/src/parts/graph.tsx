// A workflow as a drawing: tasks with the numbers of instances that are there, and of those that failed there.
import { Fragment } from "preact";
import { useMemo } from "preact/hooks";
import type { GraphNode, GraphResponse } from "../api/edgefaas/control/v1/control_pb";
import { count } from "../format";
import { type Layout, layout, type Point, type Rect } from "./layout";

const LINE = 17;
/** Mean width of a character. */
const CHARACTER = 7.4;
const COUNT_CHARACTER = 6.6;
/** Of a count beside its node; the drawing has this much room around it. */
const OVERHANG = 10;
const MAX_CHARACTERS = 32;
const MAX_LINES = 4;

export function Graph(props: { graph: GraphResponse; name: string; task: string; choose: (task: string) => void }) {
    const { graph, name, task, choose } = props;
    const shape = JSON.stringify([graph.nodes.map(({ id, label, group }) => [id, label, group]), graph.edges, graph.groups], (key, value) =>
        key === "$typeName" ? undefined : value,
    );
    const placed = useMemo(() => measured(graph), [shape]);
    return (
        <div class="scroll graph" tabIndex={0} role="region" aria-label={`Drawing of ${name}`}>
            <svg width={placed.width} height={placed.height} viewBox={`0 0 ${placed.width} ${placed.height}`} role="group" aria-label={`Tasks of ${name}`}>
                <defs>
                    <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
                        <path d="M0 0 L8 4 L0 8 Z" />
                    </marker>
                </defs>
                {graph.groups.map((group) => {
                    const rect = placed.groups.get(group.id);
                    return (
                        rect && (
                            <g key={group.id} class="group">
                                <rect {...rect} rx="8" />
                                <text x={rect.x + 10} y={rect.y + 20}>
                                    {cut(group.label)}
                                </text>
                            </g>
                        )
                    );
                })}
                {graph.edges.map((edge, index) => (
                    <Edge key={`${edge.from} ${edge.to} ${index}`} points={placed.edges[index] ?? []} label={edge.label} />
                ))}
                {graph.nodes.map((node) => {
                    const rect = placed.nodes.get(node.id);
                    return rect && <Node key={node.id} node={node} rect={rect} chosen={node.task !== "" && node.task === task} choose={choose} />;
                })}
            </svg>
        </div>
    );
}

function cut(line: string): string {
    const characters = Array.from(line);
    return characters.length > MAX_CHARACTERS ? `${characters.slice(0, MAX_CHARACTERS - 1).join("")}…` : line;
}

function linesOf(label: string): string[] {
    return label.split("\n").slice(0, MAX_LINES).map(cut);
}

function measured(graph: GraphResponse): Layout {
    const widthOf = (lines: string[]) => Math.max(...lines.map((line) => Array.from(line).length)) * CHARACTER;
    const nodes = graph.nodes.map(({ id, label, group, shape }) => {
        const lines = linesOf(label);
        const [least, sides] = isEnd(shape) ? [64, 24] : [90, shape === "choice" ? 44 : 32];
        return { id, group, width: Math.max(least, widthOf(lines) + sides), height: lines.length * LINE + 18 };
    });
    const groups = graph.groups.map(({ id, label, group }) => ({ id, group, width: widthOf([cut(label)]) }));
    return layout(nodes, graph.edges, groups);
}

function isEnd(shape: string): boolean {
    return shape === "start" || shape === "end";
}

function Edge(props: { points: Point[]; label: string }) {
    const [first, second] = props.points;
    if (!first || !second) return null;
    const label = cut(props.label);
    return (
        <g class="edge">
            <path d={curve(props.points)} marker-end="url(#arrow)" />
            {label && (
                <text x={(first.x + second.x) / 2} y={(first.y + second.y) / 2 + 4} text-anchor="middle">
                    {label}
                </text>
            )}
        </g>
    );
}

/** Vertical where it begins and ends, so that it meets nodes at a right angle; at the sides of nodes it has corners. */
function curve(points: Point[]): string {
    const [first, ...rest] = points;
    if (!first) return "";
    let [path, before] = [`M${first.x} ${first.y}`, first];
    for (const point of rest) {
        const middle = (before.y + point.y) / 2;
        const isStraight = before.x === point.x || before.y === point.y || point.y < before.y;
        path += isStraight ? ` L${point.x} ${point.y}` : ` C${before.x} ${middle} ${point.x} ${middle} ${point.x} ${point.y}`;
        before = point;
    }
    return path;
}

function Node(props: { node: GraphNode; rect: Rect; chosen: boolean; choose: (task: string) => void }) {
    const { node, rect, chosen, choose } = props;
    const lines = linesOf(node.label);
    const [x, top] = [rect.x + rect.width / 2, rect.y + rect.height / 2 - ((lines.length - 1) * LINE) / 2 + 5];
    const content = (
        <>
            <Shape shape={node.shape} rect={rect} />
            {lines.map((line, index) => (
                <Fragment key={index}>
                    <text x={x} y={top + index * LINE} text-anchor="middle">
                        {line}
                    </text>{" "}
                </Fragment>
            ))}
            {countsOf(node).map(([tone, text]) => (
                <Fragment key={tone}>
                    <Count tone={tone} text={text} right={rect.x + rect.width} y={tone === "active" ? rect.y : rect.y + rect.height} />{" "}
                </Fragment>
            ))}
        </>
    );
    if (node.task === "") return <g class={`node ${node.shape}`}>{content}</g>;
    const run = () => choose(chosen ? "" : node.task);
    const press = (event: KeyboardEvent) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        run();
    };
    return (
        <g class={`node ${node.shape}`} role="button" tabindex={0} aria-pressed={chosen} aria-label={spoken(node)} onClick={run} onKeyDown={press}>
            {content}
        </g>
    );
}

/** The text of a node with its counts, as it is drawn. */
function spoken(node: GraphNode): string {
    return [...linesOf(node.label), ...countsOf(node).map(([, text]) => text)].join(" ");
}

function countsOf(node: GraphNode): [CountTone, string][] {
    const counts: [CountTone, bigint][] = [
        ["active", node.active],
        ["failed", node.failed],
    ];
    return counts.filter(([, value]) => value > 0n).map(([tone, value]) => [tone, `${count(value)} ${tone}`]);
}

function Shape(props: { shape: string; rect: Rect }) {
    const { shape, rect } = props;
    const { x, y, width, height } = rect;
    if (shape === "choice") {
        const [middle, side] = [y + height / 2, 14];
        const corners = [[x, middle], [x + side, y], [x + width - side, y], [x + width, middle], [x + width - side, y + height], [x + side, y + height]];
        return <polygon points={corners.map((corner) => corner.join()).join(" ")} />;
    }
    if (shape === "event") {
        const side = 10;
        return <polygon points={`${x + side},${y} ${x + width},${y} ${x + width - side},${y + height} ${x},${y + height}`} />;
    }
    return <rect {...rect} rx={isEnd(shape) || shape === "wait" ? height / 2 : 5} />;
}

type CountTone = "active" | "failed";

/** Active ones at the upper right corner of a node, failed ones at the lower one. */
function Count(props: { tone: CountTone; text: string; right: number; y: number }) {
    const { tone, text, right, y } = props;
    const width = text.length * COUNT_CHARACTER + 14;
    const left = right - width + OVERHANG;
    return (
        <g class={`count ${tone}`}>
            <rect x={left} y={y - 9} width={width} height="18" rx="9" />
            <text x={left + width / 2} y={y + 4} text-anchor="middle">
                {text}
            </text>
        </g>
    );
}
