// A form that sends its fields: disabled meanwhile, and the error is shown beside its button.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { messageOf } from "../connection";
import { Failure } from "./basics";

/** The text of a field by its name; empty if there is no such field, and for a box that is not checked. */
export type Fields = (name: string) => string;

export function Form(props: {
    label: string;
    send: (text: Fields) => Promise<unknown>;
    /** The fields keep what they have when it was sent; otherwise they are empty again. */
    keep?: boolean;
    primary?: boolean;
    /** What the form is about: its error goes when this changes. */
    about?: string;
    class?: string;
    /** Beside the button. */
    more?: ComponentChildren;
    children: ComponentChildren;
}) {
    const [error, setError] = useState<string>();
    const [busy, setBusy] = useState(false);
    useEffect(() => setError(undefined), [props.about]);
    const submit = async (event: SubmitEvent) => {
        event.preventDefault();
        if (busy) return;
        const form = event.currentTarget as HTMLFormElement;
        const data = new FormData(form);
        setBusy(true);
        setError(undefined);
        try {
            await props.send((name) => String(data.get(name) ?? ""));
            if (!props.keep) form.reset();
        } catch (cause) {
            setError(messageOf(cause));
        }
        setBusy(false);
    };
    return (
        <form onSubmit={submit} class={props.class}>
            {props.children}
            <div class="actions">
                <button type="submit" class={props.primary ? "primary" : ""} aria-disabled={busy}>
                    {props.label}
                </button>
                {props.more}
                <Failure text={error} />
            </div>
        </form>
    );
}

/** A line of text with its label. */
export function Field(props: {
    name: string;
    label: string;
    value?: string;
    required?: boolean;
    placeholder?: string;
    note?: string;
    list?: string;
}) {
    const { name, label, value, note, ...rest } = props;
    return (
        <label>
            {label}
            <input type="text" name={name} defaultValue={value} autocapitalize="none" autocomplete="off" spellcheck={false} {...rest} />
            {note && <small>{note}</small>}
        </label>
    );
}

const QOS = ["at most once", "at least once", "exactly once"];

/** The field `qos`, from 0 to 2. */
export function QosChoice(props: { qos: number }) {
    return (
        <label>
            QoS
            <select name="qos">
                {QOS.map((meaning, qos) => (
                    <option key={qos} value={qos} selected={qos === props.qos}>
                        {qos}: {meaning}
                    </option>
                ))}
            </select>
        </label>
    );
}
