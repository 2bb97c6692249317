// Retries or discards all dead invocations, or those of one function: call by call, with progress and a way to stop.
import { useEffect, useRef, useState } from "preact/hooks";
import { Code, ConnectError } from "@connectrpc/connect";
import { invocations, messageOf, NO_ANSWER } from "../../connection";
import { count, counted } from "../../format";
import { Dialog, Failure, useFocusHandedOver } from "../../parts/basics";

/** Invocations that are asked for at a time, and that are taken in all. */
const PART = 1000;
const MAX = 10_000;

interface Change {
    label: string;
    /** What is done to the ones, and what was done to them. */
    verb: string;
    done: string;
    /** Calls at a time. Retries go one after another, so that they run in the order of their events. */
    width: number;
    call: (id: string) => Promise<unknown>;
}

const RETRY: Change = { label: "Retry all", verb: "Retry", done: "retried", width: 1, call: (id) => invocations.retry({ id }) };
const DISCARD: Change = { label: "Discard all", verb: "Discard", done: "discarded", width: 4, call: (id) => invocations.discard({ id }) };

interface Progress {
    done: number;
    /** Those that others retried or discarded in the meantime. */
    gone: number;
    /** Those that the node refuses and that stay, such as those of a function that is gone; and why. */
    refused: number;
    reason: string | undefined;
    /** The error that ended it, such as a full queue. */
    error: string | undefined;
}

type State =
    | { step: "idle" }
    | { step: "counting" }
    | { step: "asking"; change: Change; ids: string[]; more: boolean }
    | { step: "running"; change: Change; total: number; progress: Progress }
    | { step: "ended"; change: Change; total: number; progress: Progress; stopped: boolean };

/** `of`: a function, or empty for all; `none`: there is no such dead invocation. */
export function AllDead(props: { of: string; none: boolean; changed: () => void }) {
    const { of, none, changed } = props;
    const [state, setState] = useState<State>({ step: "idle" });
    const [error, setError] = useState<string>();
    const running = useRef<AbortController>(undefined);
    const stop = () => running.current?.abort();
    useEffect(() => stop, []);
    const ask = async (change: Change) => {
        if (state.step === "counting") return;
        setState({ step: "counting" });
        setError(undefined);
        try {
            const found = await collect(of);
            setState({ step: "asking", change, ...found });
        } catch (cause) {
            setError(messageOf(cause));
            setState({ step: "idle" });
        }
    };
    const run = async (change: Change, ids: string[]) => {
        const abort = new AbortController();
        running.current = abort;
        const total = ids.length;
        const show = (progress: Progress) => setState({ step: "running", change, total, progress });
        const progress = await runAll(change, ids, abort.signal, show);
        setState({ step: "ended", change, total, progress, stopped: abort.signal.aborted });
        changed();
    };
    const which = of ? ` of ${of}` : "";
    return (
        <>
            <div class="actions">
                {state.step === "running" && <Stop stop={stop} />}
                {state.step !== "running" &&
                    [RETRY, DISCARD].map((change) => (
                        <button
                            key={change.label}
                            type="button"
                            class={change === DISCARD ? "danger" : ""}
                            disabled={none}
                            aria-disabled={state.step === "counting"}
                            onClick={() => void ask(change)}
                        >
                            {change.label}
                        </button>
                    ))}
                <Failure text={error} />
            </div>
            {state.step === "asking" && (
                <Dialog title={`${state.change.verb} ${counted(state.ids.length, "dead invocation")}${which}?`} close={() => setState({ step: "idle" })}>
                    {state.more && <p>There are more: these are the last {count(MAX)}.</p>}
                    {state.change === DISCARD && <p>Their events are lost.</p>}
                    <div class="actions">
                        <button type="button" onClick={() => setState({ step: "idle" })}>
                            Go back
                        </button>
                        <button
                            type="button"
                            class={state.change === DISCARD ? "danger" : "primary"}
                            disabled={state.ids.length === 0}
                            onClick={() => void run(state.change, state.ids)}
                        >
                            {state.change.label}
                        </button>
                    </div>
                </Dialog>
            )}
            {state.step === "running" && (
                <p role="status">
                    {count(handled(state.progress))} of {count(state.total)}
                </p>
            )}
            {state.step === "ended" && <Ended {...state} />}
        </>
    );
}

function Stop(props: { stop: () => void }) {
    const button = useRef<HTMLButtonElement>(null);
    useFocusHandedOver(button);
    return (
        <button ref={button} type="button" onClick={props.stop}>
            Stop
        </button>
    );
}

function Ended(props: { change: Change; total: number; progress: Progress; stopped: boolean }) {
    const { change, total, progress, stopped } = props;
    const { done, gone, refused, reason, error } = progress;
    const isWhole = handled(progress) === total;
    return (
        <>
            <p role="status">
                {stopped && !isWhole && "Stopped: "}
                {count(done)} of {count(total)} {change.done}
                {gone > 0 && `, ${count(gone)} no longer there`}
                {refused > 0 && `, ${count(refused)} refused`}.
            </p>
            {(error ?? reason) && (
                <p>
                    <Failure text={error ? `Ended: ${error === NO_ANSWER ? "the node did not answer" : error}` : `The last refusal: ${reason}`} />
                </p>
            )}
        </>
    );
}

function handled(progress: Progress): number {
    return progress.done + progress.gone + progress.refused;
}

/** Ids of dead invocations, the oldest first. */
async function collect(of: string): Promise<{ ids: string[]; more: boolean }> {
    const ids: string[] = [];
    let after = "";
    do {
        const part = await invocations.list({ function: of, dead: true, after, limit: PART });
        ids.push(...part.invocations.map((one) => one.id));
        after = part.next;
    } while (after !== "" && ids.length < MAX);
    return { ids: ids.slice(0, MAX).reverse(), more: after !== "" };
}

/** Changes one after another until all are done, `signal` ends it, or a call fails in a way that holds for the others, too. */
async function runAll(change: Change, ids: string[], signal: AbortSignal, show: (progress: Progress) => void): Promise<Progress> {
    const progress: Progress = { done: 0, gone: 0, refused: 0, reason: undefined, error: undefined };
    const left = [...ids].reverse();
    const work = async () => {
        for (let id = left.pop(); id !== undefined; id = left.pop()) {
            if (signal.aborted || progress.error !== undefined) return;
            try {
                await change.call(id);
                progress.done += 1;
            } catch (cause) {
                const { code } = ConnectError.from(cause);
                if (code === Code.NotFound) progress.gone += 1;
                else if (code === Code.FailedPrecondition) {
                    progress.refused += 1;
                    progress.reason = messageOf(cause);
                } else progress.error ??= messageOf(cause);
            }
            show({ ...progress });
        }
    };
    show({ ...progress });
    await Promise.all(Array.from({ length: change.width }, work));
    return progress;
}
