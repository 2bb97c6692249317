// Search in a list of the node, page by page.
import { useEffect, useState } from "preact/hooks";

/** Time without a key before the node is asked. */
const TYPING_MS = 250;

/** An input whose text is used when the reader pauses. */
export function Search(props: { label: string; placeholder?: string; text: string; change: (text: string) => void }) {
    const [typed, setTyped] = useState(props.text);
    useEffect(() => setTyped(props.text), [props.text]);
    useEffect(() => {
        const text = typed.trim();
        if (text === props.text) return;
        const timer = setTimeout(() => props.change(text), TYPING_MS);
        return () => clearTimeout(timer);
    }, [typed]);
    return (
        <label>
            {props.label}
            <input
                type="search"
                value={typed}
                placeholder={props.placeholder}
                onInput={(event) => setTyped(event.currentTarget.value)}
                autocapitalize="none"
                autocomplete="off"
                spellcheck={false}
            />
        </label>
    );
}

export interface Place {
    /** The name behind which the page begins; empty for the first page. */
    after: string;
    /** From 1. */
    page: number;
    next: (after: string) => void;
    previous: () => void;
}

/** The page of a list that is continued behind a name. The first one again when `dependencies` change. */
export function usePages(dependencies: unknown[]): Place {
    const key = JSON.stringify(dependencies);
    const [state, setState] = useState({ key, starts: [""] });
    const starts = state.key === key ? state.starts : [""];
    return {
        after: starts.at(-1) ?? "",
        page: starts.length,
        next: (after) => setState({ key, starts: [...starts, after] }),
        previous: () => setState({ key, starts: starts.slice(0, -1) }),
    };
}

/** Buttons to the pages beside this one. `last` is the last name of this page. */
export function Pages(props: { place: Place; last: string | undefined; more: boolean }) {
    const { place, last, more } = props;
    if (place.page === 1 && !more) return null;
    return (
        <nav class="actions pages" aria-label="Pages">
            <button type="button" disabled={place.page === 1} onClick={place.previous}>
                Previous page
            </button>
            <span>page {place.page}</span>
            <button type="button" disabled={!more || last === undefined} onClick={() => last !== undefined && place.next(last)}>
                Next page
            </button>
        </nav>
    );
}
