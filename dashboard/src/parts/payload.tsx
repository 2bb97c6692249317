// Bytes of a message or an event, as text, JSON or in hexadecimal. They are never read as markup.
import { useState } from "preact/hooks";
import { bytes } from "../format";
import { Value } from "./basics";
import { pretty } from "./json";

export type Form = "auto" | "text" | "json" | "hex";
const FORMS: [Form, string][] = [
    ["auto", "What fits"],
    ["text", "Text"],
    ["json", "JSON"],
    ["hex", "Hexadecimal"],
];

/** Bytes that are drawn in hexadecimal. */
const MAX_HEX = 16_384;
/** Bytes of a message in a list. */
const SHORT = 1024;

export function FormChoice(props: { form: Form; change: (form: Form) => void }) {
    return (
        <label class="inline">
            Payload as
            <select value={props.form} onChange={(event) => props.change(event.currentTarget.value as Form)}>
                {FORMS.map(([value, name]) => (
                    <option key={value} value={value}>
                        {name}
                    </option>
                ))}
            </select>
        </label>
    );
}

/** `total`: bytes of the whole payload, of which `data` may be the beginning. */
export function Payload(props: { data: Uint8Array; total: bigint; form: Form; short?: boolean }) {
    const [whole, setWhole] = useState(false);
    const { data, total, form } = props;
    if (total === 0n) return <p class="empty">(empty)</p>;
    const isCut = props.short && !whole && data.length > SHORT;
    const shown = isCut ? data.subarray(0, SHORT) : data;
    const rest = total - BigInt(shown.length);
    return (
        <>
            <Value text={payloadText(shown, form, rest > 0n)} raw />
            {rest > 0n && (
                <small class="rest">
                    and {bytes(rest)} more{" "}
                    {isCut && (
                        <button type="button" onClick={() => setWhole(true)}>
                            Show {bytes(data.length)}
                        </button>
                    )}
                </small>
            )}
        </>
    );
}

/** `isCut`: the end of the payload is missing, perhaps in the middle of a character. */
export function payloadText(data: Uint8Array, form: Form, isCut = false): string {
    if (form === "hex") return hexadecimal(data);
    if (form === "text") return new TextDecoder().decode(data, { stream: isCut });
    try {
        const text = new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: isCut });
        return form === "json" || /^\s*[[{]/.test(text) ? pretty(text) : text;
    } catch {
        return hexadecimal(data);
    }
}

/** Lines of 16 bytes: their offset, the bytes, and those that are ASCII characters. */
function hexadecimal(data: Uint8Array): string {
    const lines: string[] = [];
    for (let at = 0; at < Math.min(data.length, MAX_HEX); at += 16) {
        const line = Array.from(data.subarray(at, at + 16));
        const hex = line.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
        const ascii = line.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
        lines.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${ascii}`);
    }
    if (data.length > MAX_HEX) lines.push(`… ${bytes(data.length - MAX_HEX)} more`);
    return lines.join("\n");
}
