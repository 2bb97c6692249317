// The last items of a stream: bounded, and drawn in batches, since a stream may have thousands of items a second.
import { useEffect, useRef, useState } from "preact/hooks";
import { useStream } from "../live";

/** Time between two drawings. */
const DRAW_MS = 200;

export interface Tail<T> {
    /** The last one is the newest. */
    items: T[];
    /** Items that were thrown away here before they were drawn. */
    skipped: number;
    error: string | undefined;
    clear: () => void;
}

/** What a tail needs to know about its stream. */
export interface TailOptions<T> {
    open: (signal: AbortSignal) => AsyncIterable<T>;
    /** Items that are kept. */
    max: number;
    /** What is shown when `arrived` has come; by default both. */
    join?: (before: T[], arrived: T[]) => T[];
    /** The items that are shown stay; of those that arrive meanwhile the last ones are kept. */
    paused?: boolean;
}

export function useTail<T>(options: TailOptions<T>, dependencies: unknown[]): Tail<T> {
    const { max, join = (before, arrived) => [...before, ...arrived] } = options;
    const [items, setItems] = useState<T[]>([]);
    const [skipped, setSkipped] = useState(0);
    const received = useRef<T[]>([]);
    const thrown = useRef(0);
    const clear = () => {
        received.current = [];
        thrown.current = 0;
        setItems([]);
        setSkipped(0);
    };
    const error = useStream(
        options.open,
        (item) => {
            received.current.push(item);
            if (received.current.length <= 2 * max) return;
            received.current.splice(0, received.current.length - max);
            thrown.current += max + 1;
        },
        dependencies,
    );
    useEffect(() => clear(), dependencies);
    useEffect(() => {
        if (options.paused) return;
        const timer = setInterval(() => {
            if (received.current.length === 0) return;
            const arrived = received.current;
            received.current = [];
            setItems((before) => join(before, arrived).slice(-max));
            setSkipped(thrown.current);
        }, DRAW_MS);
        return () => clearInterval(timer);
    }, [options.paused, ...dependencies]);
    return { items, skipped, error, clear };
}

/** Joins numbered items: a stream that begins again sends the last ones again, and a node that has started again may number from 1. */
export function joinNumbered<T extends { number: bigint }>(before: T[], arrived: T[]): T[] {
    const joined = [...before];
    for (const item of arrived) {
        // What arrives replaces the items with its number and later ones.
        while ((joined.at(-1)?.number ?? -1n) >= item.number) joined.pop();
        joined.push(item);
    }
    return joined;
}
