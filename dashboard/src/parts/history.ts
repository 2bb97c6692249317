// The measured samples of the node: only those that are new are fetched.
import { useRef } from "preact/hooks";
import type { Sample } from "../api/edgefaas/history/v1/history_pb";
import { history } from "../connection";
import { type Live, useLive } from "../live";

export type Span = "hour" | "week";
const SPAN_MS: Record<Span, number> = { hour: 3_600_000, week: 7 * 86_400_000 };
/** A sample of the week comes each 5 minutes. */
const POLL_MS: Record<Span, number> = { hour: 5_000, week: 60_000 };
/** Answers without a new sample before all are fetched again: the clock of the node may have gone back. */
const MAX_EMPTY = 12;

export interface Samples {
    stepMs: number;
    /** Oldest first, within the span. */
    samples: Sample[];
}

export function useHistory(span: Span): Live<Samples> {
    const kept = useRef<{ span: Span; samples: Sample[]; empty: number }>(undefined);
    const load = async (signal: AbortSignal): Promise<Samples> => {
        const before = kept.current?.span === span && kept.current.empty < MAX_EMPTY ? kept.current : { samples: [], empty: 0 };
        const afterUnixMs = before.samples.at(-1)?.unixMs ?? 0n;
        const answer = await history.get({ week: span === "week", afterUnixMs }, { signal });
        const samples = [...before.samples, ...answer.samples];
        const last = samples.at(-1)?.unixMs ?? 0n;
        const within = samples.filter((sample) => sample.unixMs > last - BigInt(SPAN_MS[span]));
        kept.current = { span, samples: within, empty: answer.samples.length > 0 ? 0 : before.empty + 1 };
        return { stepMs: answer.stepMs, samples: within };
    };
    return useLive(load, [span], POLL_MS[span]);
}
