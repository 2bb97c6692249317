// The view and its parameters, in the part of the address behind `#`: the node serves one page only.
import { signal } from "@preact/signals";

export interface Place {
    view: string;
    /** Further parts of the path, such as the name of a function. */
    parts: string[];
    query: URLSearchParams;
}

function read(): Place {
    const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
    const [view = "", ...parts] = path.split("/").map(decode);
    return { view: view || "overview", parts, query: new URLSearchParams(query) };
}

function decode(part: string): string {
    try {
        return decodeURIComponent(part);
    } catch {
        return part;
    }
}

export const place = signal<Place>(read());
addEventListener("hashchange", () => (place.value = read()));

/** The address of a view. */
export function href(view: string, parts: string[] = [], query: Record<string, string> = {}): string {
    const path = [view, ...parts].map(encodeURIComponent).join("/");
    const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
    return `#/${path}${text && `?${text}`}`;
}

/** A parameter of the view, and how to change it without a new entry in the history of the browser. */
export function useParameter(name: string): [string, (value: string) => void] {
    const change = (value: string) => {
        const { view, parts, query } = place.value;
        history.replaceState(null, "", href(view, parts, { ...Object.fromEntries(query), [name]: value }));
        place.value = read();
    };
    return [place.value.query.get(name) ?? "", change];
}

export function go(view: string, parts: string[] = [], query: Record<string, string> = {}) {
    location.hash = href(view, parts, query);
}
