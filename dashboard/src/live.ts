// Data that stays current: polling while the page is visible, and streams that begin again after an error.
import { useEffect, useRef, useState } from "preact/hooks";
import { link, messageOf, note, session } from "./connection";

export interface Live<T> {
    data: T | undefined;
    /** The last attempt's error; the data is then older. */
    error: string | undefined;
    /** Asks again now. */
    refresh: () => void;
}

/** Delay before the next attempt while the node is away. */
const AWAY_MS = 2000;

/** Calls `load` now, after each change of `dependencies`, and every `intervalMs` while the page is visible. */
export function useLive<T>(load: (signal: AbortSignal) => Promise<T>, dependencies: unknown[], intervalMs = 2000): Live<T> {
    const [state, setState] = useState<{ data?: T; error?: string }>({});
    const refresh = useRef(() => {});
    useEffect(() => {
        const abort = new AbortController();
        let timer: ReturnType<typeof setTimeout> | undefined;
        let isRunning = false;
        let isStale = false;
        const run = async () => {
            clearTimeout(timer);
            // The answer that is awaited may be older than the change that asks for another one.
            if (isRunning) isStale = true;
            if (document.hidden || isRunning || abort.signal.aborted) return;
            isRunning = true;
            isStale = false;
            try {
                const data = await load(abort.signal);
                if (!abort.signal.aborted) setState({ data });
            } catch (cause) {
                if (!abort.signal.aborted) setState((before) => ({ ...before, error: messageOf(cause) }));
            }
            isRunning = false;
            if (!abort.signal.aborted && session.value) {
                const delayMs = link.value === "away" ? AWAY_MS : intervalMs;
                timer = setTimeout(run, isStale ? 0 : delayMs);
            }
        };
        refresh.current = run;
        document.addEventListener("visibilitychange", run);
        setState({});
        void run();
        return () => {
            abort.abort();
            clearTimeout(timer);
            document.removeEventListener("visibilitychange", run);
        };
    }, dependencies);
    return { data: state.data, error: state.error, refresh: () => refresh.current() };
}

/** Reads a stream for as long as the component is there, and begins again when it ends. */
export function useStream<T>(
    open: (signal: AbortSignal) => AsyncIterable<T>,
    each: (item: T) => void,
    dependencies: unknown[],
): string | undefined {
    const [error, setError] = useState<string>();
    useEffect(() => {
        const abort = new AbortController();
        const run = async () => {
            while (!abort.signal.aborted && session.value) {
                // The node ends each stream after a minute, to check the session again.
                let pauseMs = 100;
                try {
                    for await (const item of open(abort.signal)) {
                        each(item);
                        setError(undefined);
                    }
                } catch (cause) {
                    if (abort.signal.aborted) return;
                    note(cause);
                    setError(messageOf(cause));
                    pauseMs = AWAY_MS;
                }
                await new Promise((resolve) => setTimeout(resolve, pauseMs));
            }
        };
        void run();
        return () => abort.abort();
    }, dependencies);
    return error;
}
