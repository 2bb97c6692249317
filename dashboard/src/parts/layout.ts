// Places for the nodes, edges and boxes of a graph, from top to bottom: layers by the longest path, boxes laid out on their own.

export interface LayoutNode {
    id: string;
    width: number;
    height: number;
    /** The box that it is in; empty for none. */
    group: string;
}

export interface LayoutEdge {
    from: string;
    to: string;
}

export interface LayoutGroup {
    id: string;
    /** The box around it; empty for none. A box comes behind the one around it. */
    group: string;
    /** Of its title. */
    width: number;
}

/** Upper left corner and size. */
export interface Rect {
    x: number;
    y: number;
    width: number;
    height: number;
}

export interface Point {
    x: number;
    y: number;
}

export interface Layout {
    width: number;
    height: number;
    nodes: Map<string, Rect>;
    groups: Map<string, Rect>;
    /** For each edge the points that it goes through; none if one of its ends is unknown. */
    edges: Point[][];
}

/** Space between layers, which has the labels of edges, and between neighbours. */
const LAYER_GAP = 44;
const GAP = 28;
/** Inside of a box, and above that its title. */
const PADDING = 16;
const TITLE = 22;
/** The width of an edge that passes a layer. */
const PASSING = 14;

/** A node, a box, or an edge that passes a layer. */
interface Item {
    id: string;
    width: number;
    height: number;
    rank: number;
    x: number;
    y: number;
}

/** An edge between two items of one level of boxes; `index` is that of the edge of the graph. */
interface Lifted {
    from: string;
    to: string;
    index: number;
}

export function layout(nodes: LayoutNode[], edges: LayoutEdge[], groups: LayoutGroup[]): Layout {
    const around = new Map<string, string>([...nodes, ...groups].map((one) => [one.id, one.group]));
    const result: Layout = { width: 0, height: 0, nodes: new Map(), groups: new Map(), edges: edges.map(() => []) };
    /** The boxes around a node, from the outermost on, and then the node. */
    const pathOf = (id: string): string[] => {
        const path = [id];
        for (let group = around.get(id); group; group = around.get(group)) path.unshift(group);
        return path;
    };
    // Each edge belongs to the innermost box around both of its ends, and there to the items that have its ends.
    const levels = new Map<string, Lifted[]>();
    edges.forEach(({ from, to }, index) => {
        if (!around.has(from) || !around.has(to)) return;
        const [ends, others] = [pathOf(from), pathOf(to)];
        let depth = 0;
        while (ends[depth] === others[depth] && depth < Math.min(ends.length, others.length) - 1) depth += 1;
        const level = depth === 0 ? "" : (ends[depth - 1] ?? "");
        const lifted = { from: ends[depth] ?? from, to: others[depth] ?? to, index };
        levels.set(level, [...(levels.get(level) ?? []), lifted]);
    });
    /** Where the edges of a level pass, relative to it, by the number of the edge. */
    const passed = new Map<string, Map<number, Point[]>>();
    const placed = new Map<string, Item[]>();
    const place = (level: string): { width: number; height: number } => {
        const items: Item[] = [];
        const order = itemsInOrder(level, nodes, groups, pathOf);
        for (const id of order) {
            const node = nodes.find((one) => one.id === id);
            const size = node ?? boxed(place(id), groups.find((one) => one.id === id)?.width ?? 0);
            items.push({ id, width: size.width, height: size.height, rank: 0, x: 0, y: 0 });
        }
        const { size, points } = arrange(items, levels.get(level) ?? []);
        placed.set(level, items);
        passed.set(level, points);
        return size;
    };
    const size = place("");
    const put = (level: string, at: Point) => {
        for (const item of placed.get(level) ?? []) {
            const rect = { x: at.x + item.x, y: at.y + item.y, width: item.width, height: item.height };
            if (placed.has(item.id)) {
                result.groups.set(item.id, rect);
                put(item.id, { x: rect.x + PADDING, y: rect.y + PADDING + TITLE });
            } else {
                result.nodes.set(item.id, rect);
            }
        }
        for (const [index, points] of passed.get(level) ?? []) {
            result.edges[index] = points.map(({ x, y }) => ({ x: at.x + x, y: at.y + y }));
        }
    };
    put("", { x: PADDING, y: PADDING });
    edges.forEach(({ from, to }, index) => {
        const [start, end] = [result.nodes.get(from), result.nodes.get(to)];
        if (start && end) result.edges[index] = joined(start, result.edges[index] ?? [], end);
    });
    return { ...result, width: size.width + 2 * PADDING, height: size.height + 2 * PADDING };
}

/** Nodes and boxes directly in a box, each at the place of its first node. */
function itemsInOrder(level: string, nodes: LayoutNode[], groups: LayoutGroup[], pathOf: (id: string) => string[]): string[] {
    const found = new Set<string>();
    for (const { id } of [...nodes, ...groups]) {
        const path = pathOf(id);
        const at = level === "" ? 0 : path.indexOf(level) + 1;
        const item = path[at];
        if ((level === "" || at > 0) && item !== undefined) found.add(item);
    }
    return [...found];
}

function boxed(inner: { width: number; height: number }, title: number): { width: number; height: number } {
    return { width: Math.max(inner.width, title) + 2 * PADDING, height: inner.height + 2 * PADDING + TITLE };
}

/** Places items in layers. An edge back to an earlier item passes at the right of all. */
function arrange(items: Item[], edges: Lifted[]): { size: { width: number; height: number }; points: Map<number, Point[]> } {
    const order = new Map(items.map((item, index) => [item.id, index]));
    const index = (id: string) => order.get(id) ?? 0;
    const forward = edges.filter(({ from, to }) => index(from) < index(to));
    const back = edges.filter(({ from, to }) => index(from) >= index(to));
    // The items are in the order of the flow, so that all edges to an item come from items before it.
    for (const item of items) {
        const before = forward.filter(({ to }) => to === item.id).map(({ from }) => items[index(from)]?.rank ?? 0);
        item.rank = before.length === 0 ? 0 : Math.max(...before) + 1;
    }
    const layers: Item[][] = Array.from({ length: Math.max(0, ...items.map(({ rank }) => rank)) + 1 }, () => []);
    for (const item of items) layers[item.rank]?.push(item);
    const links: [Item, Item][] = [];
    const passing = new Map<number, Item[]>();
    for (const edge of forward) {
        const [from, to] = [items[index(edge.from)], items[index(edge.to)]];
        if (!from || !to) continue;
        const chain: Item[] = [];
        for (let rank = from.rank + 1; rank < to.rank; rank += 1) {
            const item = { id: "", width: PASSING, height: 0, rank, x: 0, y: 0 };
            chain.push(item);
            layers[rank]?.push(item);
        }
        passing.set(edge.index, chain);
        [from, ...chain].forEach((one, at) => links.push([one, chain[at] ?? to]));
    }
    for (const layer of layers) spread(layer, links);
    const left = Math.min(0, ...layers.flat().map(({ x }) => x));
    let [y, width] = [0, 0];
    for (const layer of layers) {
        const height = Math.max(0, ...layer.map((item) => item.height));
        for (const item of layer) {
            item.x -= left;
            // An edge passes the whole layer straight.
            if (item.id === "") item.height = height;
            item.y = y + (height - item.height) / 2;
            width = Math.max(width, item.x + item.width);
        }
        y += height + LAYER_GAP;
    }
    const points = new Map<number, Point[]>();
    for (const [edge, chain] of passing) {
        const through = (item: Item) => [item.y, item.y + item.height].map((y) => ({ x: item.x + item.width / 2, y }));
        points.set(edge, chain.flatMap(through));
    }
    const right = width;
    back.forEach((edge, number) => {
        const [from, to] = [items[index(edge.from)], items[index(edge.to)]];
        if (!from || !to) return;
        const x = right + GAP / 2 + number * PASSING;
        points.set(edge.index, [{ x, y: from.y + from.height / 2 }, { x, y: to.y + to.height / 2 }]);
        width = Math.max(width, x + PASSING);
    });
    return { size: { width, height: Math.max(0, y - LAYER_GAP) }, points };
}

/** Places a layer below its predecessors, around their middle, without overlaps. */
function spread(layer: Item[], links: [Item, Item][]) {
    const wanted = new Map<Item, number>();
    for (const item of layer) {
        const above = links.filter(([, to]) => to === item).map(([from]) => from.x + from.width / 2);
        wanted.set(item, above.length === 0 ? 0 : above.reduce((sum, x) => sum + x, 0) / above.length);
    }
    layer.sort((one, other) => (wanted.get(one) ?? 0) - (wanted.get(other) ?? 0));
    let from = -Infinity;
    for (const item of layer) {
        item.x = Math.max((wanted.get(item) ?? 0) - item.width / 2, from);
        from = item.x + item.width + GAP;
    }
    const excess = layer.map((item) => item.x + item.width / 2 - (wanted.get(item) ?? 0));
    const mean = excess.reduce((sum, one) => sum + one, 0) / Math.max(layer.length, 1);
    for (const item of layer) item.x -= mean;
}

/** From the edge of one node over the points to the edge of the other: down, or around the right side. */
function joined(start: Rect, points: Point[], end: Rect): Point[] {
    const [middle, below] = [start.x + start.width / 2, start.y + start.height];
    if (end.y > start.y) return [{ x: middle, y: below }, ...points, { x: end.x + end.width / 2, y: end.y }];
    const sides = [start, end].map((rect) => ({ x: rect.x + rect.width, y: rect.y + rect.height / 2 }));
    const x = Math.max(...points.map((point) => point.x), ...sides.map((side) => side.x + GAP / 2));
    const [from, to] = sides;
    if (!from || !to) return [];
    // A node that goes back to itself.
    if (from.y === to.y) return [from, { x, y: from.y - 8 }, { x: start.x + start.width / 2 + 8, y: start.y }];
    return [from, { x, y: from.y }, { x, y: to.y }, to];
}
