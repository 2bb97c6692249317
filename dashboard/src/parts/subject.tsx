// What a warning or an event is about, with the way to it.
import { href } from "../router";

/** Beginnings of codes of warnings and of kinds of events, and where their subject is shown. */
const PLACES: [RegExp, (name: string) => string][] = [
    [/^dead/, (name) => href("invocations", ["dead"], { function: name })],
    [/^(function|queue)/, (name) => href("functions", [name])],
    [/^secret/, (name) => href("functions", [name])],
    [/^(deploy|app)/, () => href("functions")],
    [/^(peer|member|cluster|copy|revoked)/, () => href("cluster")],
];

export function Subject(props: { kind: string; name: string }) {
    const { kind, name } = props;
    const to = PLACES.find(([pattern]) => pattern.test(kind))?.[1];
    return to ? <a href={to(name)}>{name}</a> : <>{name}</>;
}
