// The pages of one view.
import type { ComponentChildren } from "preact";
import { href } from "../router";

export interface Tab {
    /** The part of the address behind the view. */
    part: string;
    name: ComponentChildren;
}

export function Tabs(props: { view: string; label: string; tabs: Tab[]; current: string }) {
    return (
        <nav class="tabs" aria-label={props.label}>
            {props.tabs.map(({ part, name }) => (
                <a key={part} href={href(props.view, part ? [part] : [])} aria-current={part === props.current ? "page" : undefined}>
                    {name}
                </a>
            ))}
        </nav>
    );
}
