// What a warning or an event is about, with the way to it.
import { href } from "../router";

interface Kind {
    /** Beginnings of codes of warnings and of kinds of events. */
    pattern: RegExp;
    noun: string;
    /** Where such a subject is shown. */
    to?: (name: string) => string;
}

const KINDS: Kind[] = [
    { pattern: /^dead/, noun: "function", to: (name) => href("invocations", ["dead"], { function: name }) },
    { pattern: /^(function|queue)/, noun: "function", to: (name) => href("functions", [name]) },
    { pattern: /^workflow/, noun: "workflow", to: (name) => href("workflows", ["of", name]) },
    // The subject may be a workflow: the page of functions leads to it.
    { pattern: /^secret/, noun: "function or workflow", to: (name) => href("functions", [name]) },
    { pattern: /^(deploy|app)/, noun: "app", to: () => href("functions") },
    { pattern: /^bridge/, noun: "bridge" },
    { pattern: /^member/, noun: "member", to: () => href("cluster") },
    { pattern: /^(cluster|copy|revoked)/, noun: "cluster", to: () => href("cluster") },
];

/** `noun`: with what the subject is, such as `member north`. */
export function Subject(props: { kind: string; name: string; noun?: boolean }) {
    const { name } = props;
    const kind = KINDS.find(({ pattern }) => pattern.test(props.kind));
    return (
        <>
            {props.noun && kind && `${kind.noun} `}
            {kind?.to ? <a href={kind.to(name)}>{name}</a> : name}
        </>
    );
}
