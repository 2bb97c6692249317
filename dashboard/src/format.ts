// Numbers, sizes and times as text.

const numbers = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value: number | bigint): string {
    return numbers.format(value);
}

/** A number with its noun, such as `1 message`. */
export function counted(value: number | bigint, one: string, many = `${one}s`): string {
    return `${count(value)} ${Number(value) === 1 ? one : many}`;
}

/** In the units of the CLI and of the warnings. */
export function bytes(value: number | bigint): string {
    let left = Number(value);
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(left) >= 1024 && unit < units.length - 1) {
        left /= 1024;
        unit += 1;
    }
    return `${unit === 0 ? left.toFixed(0) : left.toFixed(1)} ${units[unit]}`;
}

export function rate(value: number): string {
    if (value === 0) return "0/s";
    return value < 10 ? `${value.toFixed(1)}/s` : `${numbers.format(value)}/s`;
}

export function duration(us: number | bigint): string {
    const value = Number(us);
    if (value < 1000) return `${value.toFixed(0)} µs`;
    if (value < 1_000_000) return `${(value / 1000).toPrecision(3)} ms`;
    return span(value / 1_000_000);
}

/** Seconds as text, such as `2 d 3 h`. */
export function span(seconds: number): string {
    if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : seconds.toFixed(0)} s`;
    const parts: [number, string][] = [
        [Math.floor(seconds / 86400), "d"],
        [Math.floor(seconds / 3600) % 24, "h"],
        [Math.floor(seconds / 60) % 60, "min"],
    ];
    const from = parts.findIndex(([value]) => value > 0);
    return parts
        .slice(from, from + 2)
        .filter(([value]) => value > 0)
        .map(([value, unit]) => `${value} ${unit}`)
        .join(" ");
}

export function time(unixMs: number | bigint): string {
    return new Date(Number(unixMs)).toLocaleString();
}

export function clock(unixMs: number | bigint): string {
    const at = new Date(Number(unixMs));
    return `${at.toLocaleTimeString(undefined, { hour12: false })}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function percent(share: number): string {
    return `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

export function degrees(millicelsius: number): string {
    return `${(millicelsius / 1000).toFixed(1)} °C`;
}
