// One trace, by the id of an invocation, of an instance, or of the trace itself.
import { control } from "../connection";
import { useLive } from "../live";
import { Card, Empty } from "../parts/basics";
import { Waterfall } from "../parts/waterfall";
import { go, place } from "../router";

export function Traces() {
    const id = place.value.parts[0];
    const submit = (event: SubmitEvent) => {
        event.preventDefault();
        const wanted = String(new FormData(event.currentTarget as HTMLFormElement).get("id") ?? "").trim();
        if (wanted) go("traces", [wanted]);
    };
    return (
        <>
            <form onSubmit={submit} class="row">
                <label>
                    Id of an invocation, an instance or a trace
                    <input name="id" key={id} defaultValue={id} spellcheck={false} />
                </label>
                <button type="submit">Show</button>
            </form>
            {id && <Trace key={id} id={id} />}
        </>
    );
}

function Trace(props: { id: string }) {
    const { data, error } = useLive((signal) => control.trace({ id: props.id }, { signal }), [props.id]);
    if (!data) return <Empty error={error} loading />;
    return (
        <Card title="Trace" actions={<small>{data.spans[0]?.traceId}</small>}>
            <Waterfall spans={data.spans} />
        </Card>
    );
}
