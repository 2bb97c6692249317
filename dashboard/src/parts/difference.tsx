// What differs between two revisions of an app, as `diff -u` shows it.
import type { FileDifference } from "../api/edgefaas/control/v1/control_pb";
import { control } from "../connection";
import { bytes, counted } from "../format";
import { useLive } from "../live";
import { Empty } from "./basics";

/** Lines of one file that are drawn. */
const MAX_LINES = 1000;

/** `from` and `to`: digests, or empty for the live revision. */
export function Difference(props: { app: string; from: string; to: string }) {
    const { app, from, to } = props;
    // Revisions do not change, but the live one may become another.
    const { data, error } = useLive((signal) => control.compareRevisions({ app, from, to }, { signal }), [app, from, to], 30_000);
    if (!data) return <Empty error={error} loading />;
    if (data.files.length === 0) return <Empty>They have the same files.</Empty>;
    return (
        <div class="difference">
            {error && <Empty error={error} />}
            {data.files.map((file) => (
                <File key={file.file} file={file} />
            ))}
        </div>
    );
}

function File(props: { file: FileDifference }) {
    const { file, unified, fromBytes, toBytes } = props.file;
    const lines = unified.split("\n");
    if (lines.at(-1) === "") lines.pop();
    const change = fromBytes === undefined ? "added" : toBytes === undefined ? "removed" : "changed";
    const sizes = [fromBytes, toBytes].filter((size) => size !== undefined).map(bytes);
    return (
        <section aria-label={file}>
            <h3>
                {file} <small>{`${change}, ${sizes.join(" → ")}`}</small>
            </h3>
            {lines.length === 0 ? (
                <Empty>It is no text, or too large to compare.</Empty>
            ) : (
                <pre class="value diff" tabIndex={0}>
                    {lines.slice(0, MAX_LINES).map((line, index) => (
                        <span key={index} class={kindOf(line)}>{`${line}\n`}</span>
                    ))}
                    {lines.length > MAX_LINES && `… ${counted(lines.length - MAX_LINES, "more line")}`}
                </pre>
            )}
        </section>
    );
}

/** The sign at the beginning of a line says the same as its colour. */
function kindOf(line: string): string {
    if (line.startsWith("@@")) return "place";
    if (line.startsWith("+")) return "added";
    return line.startsWith("-") ? "removed" : "";
}
