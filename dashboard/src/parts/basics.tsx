// Small building blocks of all views.
import { type ComponentChildren, type RefObject, toChildArray } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { link, messageOf, NO_ANSWER } from "../connection";
import type { Live } from "../live";
import { pretty } from "./json";

export function Card(props: { title?: ComponentChildren; actions?: ComponentChildren; class?: string; children: ComponentChildren }) {
    return (
        <section class={`card ${props.class ?? ""}`}>
            {(props.title || props.actions) && (
                <header>
                    <h2>{props.title}</h2>
                    <div class="actions">{props.actions}</div>
                </header>
            )}
            {props.children}
        </section>
    );
}

/** `tone` chooses the colour; the text says the same, for readers who see no colours. */
export type Tone = "good" | "warn" | "bad" | "quiet";

export function Badge(props: { tone: Tone; children: ComponentChildren }) {
    return <span class={`badge ${props.tone}`}>{props.children}</span>;
}

export function Figure(props: { name: string; value: ComponentChildren; note?: ComponentChildren; tone?: Tone }) {
    return (
        <div class={`figure ${props.tone ?? ""}`}>
            <dt>{props.name}</dt>
            <dd>
                {props.value}
                {props.note && <small>{props.note}</small>}
            </dd>
        </div>
    );
}

/** A sentence in which names and commands are between backquotes. */
export function Prose(props: { text: string }) {
    return <>{props.text.split(/`([^`]+)`/).map((part, index) => (index % 2 === 0 ? part : <code key={index}>{part}</code>))}</>;
}

/** True if an error is no longer true: the node answers again. */
function isOver(error: string): boolean {
    return error === NO_ANSWER && link.value === "up";
}

/** What is there instead of data: an error, the wait for it, or a hint how to get some. */
export function Empty(props: { error?: string | undefined; loading?: boolean; children?: ComponentChildren }) {
    // The frame says that the node is away.
    if (props.error && (link.value === "away" || isOver(props.error))) return null;
    if (props.error) return <p class="empty bad" role="alert"><Prose text={props.error} /></p>;
    if (props.loading) return <p class="empty" aria-busy="true">Loading…</p>;
    return <p class="empty">{toChildArray(props.children).map((part) => (typeof part === "string" ? <Prose text={part} /> : part))}</p>;
}

/** What was read last, with the error of a later attempt beside it. */
export function Loaded<T>(props: { live: Live<T>; children: (data: T) => ComponentChildren }) {
    const { data, error } = props.live;
    return (
        <>
            {(error || data === undefined) && <Empty error={error} loading />}
            {data !== undefined && props.children(data)}
        </>
    );
}

export interface Column<T> {
    name: string;
    /** Numbers are aligned at their right end. */
    number?: boolean;
    cell: (row: T) => ComponentChildren;
    /** Left out on screens that are narrow and yet too wide for rows as blocks. */
    wide?: boolean;
    /** Buttons: they stay in view where the table scrolls sideways. */
    actions?: boolean;
}

export function Table<T>(props: { label: string; columns: Column<T>[]; rows: T[]; id: (row: T) => string }) {
    const classes = ({ number, wide, actions }: Column<T>) => `${number ? "number" : ""} ${wide ? "wide" : ""} ${actions ? "sticky" : ""}`;
    // On a phone each row is a block, which takes the roles from the elements of a table.
    return (
        <div class="scroll" tabIndex={0} role="region" aria-label={props.label}>
            <table class="rows" role="table">
                <thead role="rowgroup">
                    <tr role="row">
                        {props.columns.map((column) => (
                            <th key={column.name} role="columnheader" scope="col" class={classes(column)}>
                                {column.name}
                            </th>
                        ))}
                    </tr>
                </thead>
                <tbody role="rowgroup">
                    {props.rows.map((row) => (
                        <tr key={props.id(row)} role="row">
                            {props.columns.map((column) => (
                                <td key={column.name} role="cell" class={classes(column)} data-name={column.name}>
                                    {column.cell(row)}
                                </td>
                            ))}
                        </tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}

/** A button whose action takes time: disabled meanwhile, and the error is shown beside it. `confirm` is asked before, with `details`. */
export function Action(props: {
    run: () => Promise<unknown>;
    confirm?: string;
    details?: ComponentChildren;
    danger?: boolean;
    disabled?: boolean;
    title?: string;
    children: ComponentChildren;
}) {
    const [state, setState] = useState<"idle" | "asking" | "busy">("idle");
    const [error, setError] = useState<string>();
    const button = useRef<HTMLButtonElement>(null);
    useFocusHandedOver(button);
    const run = async () => {
        setState("busy");
        setError(undefined);
        try {
            await props.run();
        } catch (cause) {
            setError(messageOf(cause));
        }
        setState("idle");
    };
    const start = () => {
        if (state === "busy") return;
        if (props.confirm) setState("asking");
        else void run();
    };
    return (
        <span class="action">
            <button
                ref={button}
                type="button"
                class={props.danger ? "danger" : ""}
                disabled={props.disabled}
                // A button that is disabled loses the focus.
                aria-disabled={state === "busy"}
                title={props.title}
                onClick={start}
            >
                {props.children}
            </button>
            {state === "asking" && (
                <Dialog title={props.confirm ?? ""} close={() => setState("idle")}>
                    {props.details}
                    <div class="actions">
                        <button type="button" onClick={() => setState("idle")}>
                            Go back
                        </button>
                        <button type="button" class={props.danger ? "danger" : "primary"} onClick={run}>
                            {props.children}
                        </button>
                    </div>
                </Dialog>
            )}
            <Failure text={error} />
        </span>
    );
}

/** The error of an action or a form, beside its button. */
export function Failure(props: { text: string | undefined }) {
    if (!props.text || isOver(props.text)) return null;
    return (
        <span class="bad" role="alert">
            <Prose text={props.text} />
        </span>
    );
}

/** Gives the focus to the content of the page if nothing has it. */
function catchFocus() {
    if (document.activeElement === document.body) document.getElementById("content")?.focus();
}

/** The content of the page gets the focus if the element is removed while it has it. */
export function useFocusHandedOver(element: RefObject<HTMLElement | null>) {
    useLayoutEffect(() => {
        const current = element.current;
        return () => {
            if (current && current === document.activeElement) queueMicrotask(catchFocus);
        };
    }, []);
}

/** The element that had the focus has it again when the dialog is gone. */
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren }) {
    const element = useRef<HTMLDialogElement>(null);
    useLayoutEffect(() => {
        const before = document.activeElement;
        element.current?.showModal();
        return () => {
            // All beside an open dialog refuses the focus: it is removed first.
            queueMicrotask(() => {
                if (before instanceof HTMLElement) before.focus();
                catchFocus();
            });
        };
    }, []);
    // Escape closes by the state, at once: the event `close` comes later, and a key that is pressed until then would be lost.
    const cancel = (event: Event) => {
        event.preventDefault();
        props.close();
    };
    return (
        <dialog ref={element} aria-label={props.title} onCancel={cancel} onClose={props.close}>
            <h2>{props.title}</h2>
            {props.children}
        </dialog>
    );
}

/** A text as it is; JSON is indented. It is never read as markup. */
export function Value(props: { text: string; raw?: boolean }) {
    const text = props.raw ? props.text : pretty(props.text);
    const box = useRef<HTMLPreElement>(null);
    const [scrolls, setScrolls] = useState(false);
    useEffect(() => {
        const { scrollHeight = 0, clientHeight = 0 } = box.current ?? {};
        setScrolls(scrollHeight > clientHeight + 1);
    }, [text]);
    return (
        // Without a mouse a box scrolls only if it takes the focus.
        <pre class="value" ref={box} tabIndex={scrolls ? 0 : undefined}>
            {text}
        </pre>
    );
}

/** Bytes as text, or in hexadecimal if they are none. */
export function textOf(data: Uint8Array): string {
    try {
        return new TextDecoder("utf-8", { fatal: true }).decode(data);
    } catch {
        return Array.from(data.subarray(0, 4096), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    }
}
