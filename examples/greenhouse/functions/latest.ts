import type { Context, HttpEvent } from "@edgefaas/sdk";

interface Latest {
  temperature_c: number;
  humidity_pct: number;
  vpd_kpa: number;
  comfort: string;
  at: string;
}

interface Average {
  readings: number;
  temperature_c: number | null;
  humidity_pct: number | null;
}

interface Zone {
  zone: string;
  latest: Latest | null;
  actuators: Record<string, string>;
  average: Average;
}

export default async function latest(event: HttpEvent, context: Context<{ zones: string[] }>) {
  const zones = await Promise.all(context.config.zones.map((zone) => look(zone, context)));
  // Called by name instead of over HTTP, there are no headers.
  if (!event.headers?.get("accept")?.includes("text/html")) return zones;
  return new Response(page(zones), { headers: { "content-type": "text/html; charset=utf-8" } });
}

async function look(zone: string, context: Context<{ zones: string[] }>): Promise<Zone> {
  const state = context.object(`greenhouse/${zone}`);
  const [latest, actuators, average] = await Promise.all([
    state.register<Latest>("latest").get(),
    state.register<Record<string, string>>("actuators").get(),
    context.call<Average>("average", zone),
  ]);
  return { zone, latest: latest ?? null, actuators: actuators ?? {}, average };
}

function page(zones: Zone[]): string {
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta http-equiv="refresh" content="2">
<title>Greenhouse</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 50rem; padding: 0 1rem; }
  table { border-collapse: collapse; width: 100%; }
  th, td { border-bottom: 1px solid #ccc; padding: .4rem .6rem; text-align: right; }
  th:first-child, td:first-child { text-align: left; }
</style>
<h1>Greenhouse</h1>
<table>
<tr><th>Zone<th>°C<th>% humidity<th>kPa deficit<th>Comfort<th>Vent<th>Mist<th>Average °C<th>Readings</tr>
${zones.map(row).join("\n")}
</table>
</html>
`;
}

function row({ zone, latest, actuators, average }: Zone): string {
  const cells = [
    zone,
    latest?.temperature_c.toFixed(1),
    latest?.humidity_pct.toFixed(0),
    latest?.vpd_kpa.toFixed(2),
    latest?.comfort,
    actuators.vent,
    actuators.mist,
    average.temperature_c?.toFixed(1),
    String(average.readings),
  ];
  return `<tr>${cells.map((cell) => `<td>${escaped(cell ?? "–")}`).join("")}</tr>`;
}

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}
