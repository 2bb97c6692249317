// Drawings of workflows, without a browser.
import { expect, test } from "@playwright/test";
import { layout, type LayoutEdge, type LayoutGroup, type LayoutNode, type Rect } from "../src/parts/layout";

/** Numbers from 0 to 1 that are the same in each run. */
function numbers(seed: number): () => number {
    let state = seed;
    return () => {
        state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
        return state / 2_147_483_648;
    };
}

function overlaps(one: Rect, other: Rect): boolean {
    return one.x < other.x + other.width && other.x < one.x + one.width && one.y < other.y + other.height && other.y < one.y + one.height;
}

function contains(outer: Rect, inner: Rect): boolean {
    const isWithin = (from: number, length: number, start: number, size: number) => from <= start && start + size <= from + length + 0.001;
    return isWithin(outer.x, outer.width, inner.x, inner.width) && isWithin(outer.y, outer.height, inner.y, inner.height);
}

const node = (id: string, group = ""): LayoutNode => ({ id, group, width: 90, height: 52 });

test("tasks in a row are below one another", () => {
    const { nodes, edges } = layout([node("a"), node("b"), node("c")], [{ from: "a", to: "b" }, { from: "b", to: "c" }], []);
    const [a, b, c] = ["a", "b", "c"].map((id) => nodes.get(id) as Rect);
    expect([a?.x, b?.x]).toEqual([c?.x, c?.x]);
    expect((a?.y ?? 0) + 52).toBeLessThan(b?.y ?? 0);
    expect((b?.y ?? 0) + 52).toBeLessThan(c?.y ?? 0);
    expect(edges.map((points) => points.length)).toEqual([2, 2]);
});

test("an edge that skips a task passes beside it", () => {
    const all = [{ from: "a", to: "b" }, { from: "b", to: "c" }, { from: "a", to: "c" }];
    const { nodes, edges } = layout([node("a"), node("b"), node("c")], all, []);
    const b = nodes.get("b") as Rect;
    const passing = edges[2]?.slice(1, -1) ?? [];
    expect(passing).toHaveLength(2);
    for (const { x } of passing) expect(x < b.x || x > b.x + b.width).toBe(true);
});

test("nothing overlaps, and all is within its box and the drawing, whatever the graph", () => {
    for (let seed = 1; seed <= 200; seed += 1) {
        const random = numbers(seed);
        const pick = (count: number) => Math.floor(random() * count);
        const groups: LayoutGroup[] = Array.from({ length: pick(5) }, (_, number) => ({
            id: `g${number}`,
            group: number > 0 && random() < 0.5 ? `g${pick(number)}` : "",
            width: pick(200),
        }));
        const ids = Array.from({ length: 1 + pick(25) }, (_, number) => `n${number}`);
        const nodes: LayoutNode[] = ids.map((id) => ({
            id,
            group: groups.length > 0 && random() < 0.6 ? `g${pick(groups.length)}` : "",
            width: 60 + pick(200),
            height: 30 + pick(60),
        }));
        // Back, to itself, and to an unknown node, too.
        const edges: LayoutEdge[] = Array.from({ length: pick(40) }, () => ({ from: `n${pick(ids.length)}`, to: `n${pick(ids.length + 1)}` }));
        const placed = layout(nodes, edges, groups);
        const drawing = { x: 0, y: 0, width: placed.width, height: placed.height };
        const rects = [...placed.nodes.values()];
        const wrong: string[] = [];
        if (rects.length !== nodes.length) wrong.push("a node is missing");
        rects.forEach((one, index) => {
            if (!contains(drawing, one)) wrong.push("a node is outside");
            if (rects.slice(index + 1).some((other) => overlaps(one, other))) wrong.push("nodes overlap");
        });
        for (const { id, group } of [...nodes, ...groups]) {
            const box = placed.groups.get(group);
            const rect = placed.nodes.get(id) ?? placed.groups.get(id);
            if (box && rect && !contains(box, rect)) wrong.push(`${id} is outside of its box`);
        }
        placed.edges.forEach((points, index) => {
            if (points.length >= 2 !== placed.nodes.has(edges[index]?.to ?? "")) wrong.push("an edge is missing");
            if (!points.every(({ x, y }) => x >= 0 && x <= placed.width && y >= 0 && y <= placed.height)) wrong.push("an edge is outside");
        });
        expect(wrong, `seed ${seed}`).toEqual([]);
    }
});
