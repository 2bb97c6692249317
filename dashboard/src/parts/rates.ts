// Rates from counters that are read again and again.
import { useRef } from "preact/hooks";

interface Reading {
    atMs: number;
    counts: Map<string, number>;
}

/** Events a second since the reading before, by name. A counter that became smaller began anew. */
export function useRates(counts: [string, number][] | undefined): Map<string, number> {
    const last = useRef<Reading>(undefined);
    const rates = useRef(new Map<string, number>());
    const source = useRef<[string, number][]>(undefined);
    const isNew = counts && JSON.stringify(counts) !== JSON.stringify(source.current);
    const atMs = performance.now();
    if (counts && (isNew || !last.current || atMs - last.current.atMs > 4000)) {
        const before = last.current;
        if (before) {
            const seconds = Math.max((atMs - before.atMs) / 1000, 0.001);
            const per = ([name, value]: [string, number]): [string, number] => {
                const change = value - (before.counts.get(name) ?? value);
                return [name, Math.max(change < 0 ? value : change, 0) / seconds];
            };
            rates.current = new Map(counts.map(per));
        }
        last.current = { atMs, counts: new Map(counts) };
        source.current = counts;
    }
    return rates.current;
}
