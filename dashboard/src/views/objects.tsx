// Objects by app, the fields of one object as they change, and changing them.
import { useState } from "preact/hooks";
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { FieldState, UpdateRequestSchema } from "../api/edgefaas/objects/v1/objects_pb";
import { may, messageOf, objects } from "../connection";
import { bytes, count } from "../format";
import { useLive, useStream } from "../live";
import { Action, Card, Empty, Failure, Table, Value } from "../parts/basics";
import { go, href, place } from "../router";

/** Objects on one page. */
const PAGE = 100;

export function Objects() {
    const [app, object] = place.value.parts;
    if (app !== undefined && object !== undefined) return <One key={`${app}/${object}`} app={app} object={object} />;
    return <All app={app ?? ""} afterApp={place.value.query.get("app") ?? ""} after={place.value.query.get("after") ?? ""} />;
}

function All(props: { app: string; afterApp: string; after: string }) {
    const { app, afterApp, after } = props;
    const load = (signal: AbortSignal) => objects.list({ app, afterApp, afterObject: after, limit: PAGE + 1 }, { signal });
    const { data, error } = useLive(load, [app, afterApp, after]);
    const open = (event: SubmitEvent) => {
        event.preventDefault();
        const form = new FormData(event.currentTarget as HTMLFormElement);
        go("objects", [String(form.get("app")), String(form.get("object"))]);
    };
    if (!data) return <Empty error={error} loading />;
    const rows = data.objects.slice(0, PAGE);
    const last = rows.at(-1);
    return (
        <>
            <form class="row three" onSubmit={open}>
                <label>
                    App
                    <input name="app" required defaultValue={app} autocapitalize="none" />
                </label>
                <label>
                    Object
                    <input name="object" required autocapitalize="none" />
                </label>
                <button type="submit">Open</button>
            </form>
            {error && <Empty error={error} />}
            <Card title={app ? `Objects of ${app}` : "Objects"}>
                {rows.length === 0 ? (
                    <Empty>No object has a field yet.</Empty>
                ) : (
                    <Table
                        label="Objects"
                        rows={rows}
                        id={(one) => `${one.app}/${one.object}`}
                        columns={[
                            { name: "App", cell: (one) => <a href={href("objects", [one.app])}>{one.app}</a> },
                            { name: "Object", cell: (one) => <a href={href("objects", [one.app, one.object])}>{one.object}</a> },
                            { name: "Fields", number: true, cell: (one) => count(Object.keys(one.fields).length) },
                            { name: "On the disk", number: true, wide: true, cell: (one) => bytes(one.bytes) },
                        ]}
                    />
                )}
                <div class="actions">
                    {after && <a href={href("objects", app ? [app] : [])}>First page</a>}
                    {data.objects.length > PAGE && last && (
                        <a href={href("objects", app ? [app] : [], { app: last.app, after: last.object })}>Next page</a>
                    )}
                </div>
            </Card>
        </>
    );
}

function One(props: { app: string; object: string }) {
    const { app, object } = props;
    const load = (signal: AbortSignal) => objects.get({ app, object }, { signal });
    const { data, error, refresh } = useLive(load, [app, object], 5000);
    // A change that is seen is read anew at once.
    const lost = useStream((signal) => objects.watch({ app, object }, { signal, timeoutMs: 0 }), refresh, [app, object]);
    if (!data) return <Empty error={error} loading />;
    return (
        <>
            <p>
                <a href={href("objects", [app])}>Objects of {app}</a>
            </p>
            <h2 class="name">
                {object} <small>of {app}</small>
            </h2>
            {(error ?? lost) && <Empty error={error ?? lost} />}
            {data.fields.length === 0 && <Empty>The object has no field.</Empty>}
            {data.more && <p class="warn">There are more fields than these.</p>}
            {data.fields.map((field) => (
                <Card key={field.name} title={field.name} actions={<small>{field.type}</small>}>
                    <Value text={field.json} />
                    {may("operate") && <Change app={app} object={object} field={field} done={refresh} />}
                </Card>
            ))}
        </>
    );
}

type Operation = MessageInitShape<typeof UpdateRequestSchema>["operation"];

interface Edit {
    label: string;
    /** The text of the input to an operation; throws with a sentence for the reader. */
    operation: (text: string, field: FieldState) => Operation;
    /** What the input has at first. */
    initial?: (field: FieldState) => string;
    /** Needs no text. */
    plain?: boolean;
}

const encode = (text: string) => new TextEncoder().encode(text);
const integer = (text: string) => {
    if (!/^-?\d+$/.test(text.trim())) throw new Error("a whole number is needed");
    return BigInt(text.trim());
};
const json = (text: string) => {
    try {
        JSON.parse(text);
    } catch {
        throw new Error("this is not JSON; a text has quotation marks");
    }
    return encode(text);
};

/** What can be done to a field, by its type. */
const EDITS: Record<string, Edit[]> = {
    counter: [{ label: "Add", operation: (text) => ({ case: "counterAdd", value: integer(text) }) }],
    "g-counter": [{ label: "Add", operation: (text) => ({ case: "gCounterAdd", value: integer(text) }) }],
    "bounded-counter": [{ label: "Add", operation: (text) => ({ case: "boundedCounterAdd", value: integer(text) }) }],
    register: [{ label: "Set", initial: (field) => field.json, operation: (text) => ({ case: "registerSet", value: json(text) }) }],
    "mv-register": [{ label: "Set", operation: (text) => ({ case: "mvRegisterSet", value: json(text) }) }],
    "g-set": [{ label: "Add", operation: (text) => ({ case: "gSetAdd", value: json(text) }) }],
    set: [
        { label: "Add", operation: (text) => ({ case: "setAdd", value: json(text) }) },
        { label: "Remove", operation: (text) => ({ case: "setRemove", value: json(text) }) },
    ],
    "ew-flag": [
        { label: "On", plain: true, operation: () => ({ case: "ewFlagSet", value: true }) },
        { label: "Off", plain: true, operation: () => ({ case: "ewFlagSet", value: false }) },
    ],
    "dw-flag": [
        { label: "On", plain: true, operation: () => ({ case: "dwFlagSet", value: true }) },
        { label: "Off", plain: true, operation: () => ({ case: "dwFlagSet", value: false }) },
    ],
    list: [{ label: "Append", operation: (text) => ({ case: "listPush", value: json(text) }) }],
    text: [
        {
            label: "Replace",
            initial: (field) => String(JSON.parse(field.json)),
            // Only what differs is replaced, so that changes elsewhere in the text stay.
            operation: (text, field) => ({ case: "textSplice", value: splice(String(JSON.parse(field.json)), text) }),
        },
    ],
    json: [
        {
            label: "Replace",
            initial: (field) => field.json,
            operation: (text) => {
                json(text);
                return { case: "jsonSet", value: { pointer: "", value: text } };
            },
        },
    ],
};

/** The shortest splice that makes `after` of `before`, in Unicode characters. */
export function splice(before: string, after: string): { at: number; delete: number; insert: string } {
    const [old, now] = [Array.from(before), Array.from(after)];
    let at = 0;
    while (at < old.length && at < now.length && old[at] === now[at]) at += 1;
    let end = 0;
    while (end < old.length - at && end < now.length - at && old.at(-1 - end) === now.at(-1 - end)) end += 1;
    return { at, delete: old.length - at - end, insert: now.slice(at, now.length - end).join("") };
}

function Change(props: { app: string; object: string; field: FieldState; done: () => void }) {
    const { app, object, field, done } = props;
    const edits = EDITS[field.type] ?? [];
    const initial = edits[0]?.initial?.(field);
    const [text, setText] = useState<string>();
    const [error, setError] = useState<string>();
    const run = async (edit: Edit) => {
        setError(undefined);
        try {
            const operation = edit.operation(text ?? initial ?? "", field);
            await objects.update({ app, object, field: field.name, operation });
            setText(undefined);
            done();
        } catch (cause) {
            setError(messageOf(cause));
        }
    };
    const remove = async () => {
        await objects.delete({ app, object, field: field.name });
        done();
    };
    return (
        <div class="actions edit">
            {edits.some((edit) => !edit.plain) && (
                <input
                    aria-label={`New value of ${field.name}`}
                    value={text ?? initial ?? ""}
                    onInput={(event) => setText(event.currentTarget.value)}
                    spellcheck={false}
                    autocapitalize="none"
                />
            )}
            {edits.map((edit) => (
                <button key={edit.label} type="button" onClick={() => void run(edit)}>
                    {edit.label}
                </button>
            ))}
            <Action run={remove} confirm={`Delete the field ${field.name} of ${object}?`} danger>
                Delete
            </Action>
            <Failure text={error} />
        </div>
    );
}
