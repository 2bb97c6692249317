// A chart of samples over time, with its figures as text: the last value or the one under the pointer, the least and the greatest.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

export type Tone = "accent" | "second" | "bad";

export interface Series {
    name: string;
    tone: Tone;
    /** One for each time; `null` where it is not known. */
    values: (number | null)[];
}

export interface ChartProps {
    title: string;
    /** Milliseconds since the Unix epoch, ascending. */
    times: number[];
    series: Series[];
    format: (value: number) => string;
    /** The values are bytes: the lines of the grid are at powers of two. */
    isBytes?: boolean | undefined;
    /** The time between two samples. A longer one is a gap in the line. */
    stepMs: number;
}

const HEIGHT = 150;
/** From a byte to more than a pebibyte. */
const POWERS = Array.from({ length: 51 }, (_, exponent) => 2 ** exponent);
/** The time that a chart covers at least, in steps: a node that has just started has few samples. */
const MIN_STEPS = 24;

const darkScheme = matchMedia("(prefers-color-scheme: dark)");

export function Chart(props: ChartProps) {
    const { title, series, format } = props;
    const box = useRef<HTMLDivElement>(null);
    const plot = useRef<uPlot>(undefined);
    const [under, setUnder] = useState<number | null>();
    const [dark, setDark] = useState(darkScheme.matches);
    const data = useMemo(() => aligned(props), [props.times, props.series]);
    const minSpanS = (MIN_STEPS * props.stepMs) / 1000;
    const shape = series.map((one) => one.name).join();
    useEffect(() => {
        const change = () => setDark(darkScheme.matches);
        darkScheme.addEventListener("change", change);
        return () => darkScheme.removeEventListener("change", change);
    }, []);
    useEffect(() => {
        const element = box.current;
        if (!element) return;
        const made = new uPlot(options(element.clientWidth, props, minSpanS, setUnder), data, element);
        plot.current = made;
        const resized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
        resized.observe(element);
        return () => {
            resized.disconnect();
            made.destroy();
        };
    }, [dark, shape, minSpanS]);
    useEffect(() => plot.current?.setData(data), [data]);
    const at = under ?? undefined;
    const time = at === undefined ? undefined : data[0][at];
    return (
        <figure class="chart">
            <figcaption>
                {title} {time !== undefined && <small>{new Date(time * 1000).toLocaleString()}</small>}
            </figcaption>
            <div ref={box} class="plot" aria-hidden="true" />
            <table>
                <thead>
                    <tr>
                        <th scope="col">
                            <span class="hidden">Value</span>
                        </th>
                        <th scope="col">{time === undefined ? "last" : "then"}</th>
                        <th scope="col">least</th>
                        <th scope="col">most</th>
                    </tr>
                </thead>
                <tbody>
                    {series.map((one, index) => {
                        const known = one.values.filter((value) => value !== null);
                        const shown = at === undefined ? known.at(-1) : data[index + 1]?.[at];
                        const text = (value: number | null | undefined) => (value === null || value === undefined ? "unknown" : format(value));
                        return (
                            <tr key={one.name}>
                                <th scope="row">
                                    <span class={`mark ${one.tone}`} aria-hidden="true" /> {one.name}
                                </th>
                                <td>{text(shown)}</td>
                                <td>{text(known.reduce<number | undefined>((least, value) => Math.min(least ?? value, value), undefined))}</td>
                                <td>{text(known.reduce<number | undefined>((most, value) => Math.max(most ?? value, value), undefined))}</td>
                            </tr>
                        );
                    })}
                </tbody>
            </table>
        </figure>
    );
}

type Data = [times: number[], ...values: (number | null)[][]];

/** As uPlot takes it, with a point without values in each gap. */
function aligned({ times, series, stepMs }: ChartProps): Data {
    const seconds: number[] = [];
    const columns: (number | null)[][] = series.map(() => []);
    times.forEach((time, index) => {
        const before = times[index - 1];
        if (before !== undefined && time - before > 1.5 * stepMs) {
            seconds.push((before + stepMs) / 1000);
            for (const column of columns) column.push(null);
        }
        seconds.push(time / 1000);
        series.forEach((one, number) => columns[number]?.push(one.values[index] ?? null));
    });
    return [seconds, ...columns];
}

/** A colour of the style sheet. */
function colour(name: string): string {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function options(width: number, { series, format, isBytes }: ChartProps, minSpanS: number, setUnder: (index: number | null | undefined) => void): uPlot.Options {
    const [text, line] = [colour("soft"), colour("line")];
    const axis: uPlot.Axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: "11px system-ui" };
    return {
        width,
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
            x: { range: (self) => spanOf(self.data[0], minSpanS) },
            y: { range: (_, __, max) => [0, (max || 1) * 1.1] },
        },
        axes: [
            { ...axis, space: 60, size: 28, values: (_, splits, __, ___, stepS) => splits.map((at) => timeText(at, stepS)) },
            { ...axis, ...(isBytes && { incrs: POWERS }), size: 64, values: (_, splits) => splits.map((value) => format(value)) },
        ],
        series: [
            {},
            ...series.map((one) => ({
                stroke: colour(one.tone),
                width: 1.5,
                fill: one.tone === "accent" ? colour("accent-fill") : undefined,
                points: { show: false },
            })),
        ],
        hooks: { setCursor: [(self) => setUnder(self.cursor.idx)] },
    };
}

/** From the first time to the last one; uPlot itself makes a day of a single time. */
function spanOf(times: ArrayLike<number>, minSpanS: number): [number, number] {
    const last = times[times.length - 1] ?? 0;
    return [Math.min(times[0] ?? last, last - minSpanS), last];
}

function timeText(atS: number, stepS: number): string {
    const at = new Date(atS * 1000);
    if (stepS >= 86_400 || (at.getHours() === 0 && at.getMinutes() === 0)) {
        return at.toLocaleDateString(undefined, { day: "numeric", month: "short" });
    }
    return at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hour12: false });
}
