// What starts a function, read from the texts of the control API: `http GET,POST /orders/{id}`, `mqtt sensors/+ (qos 1)`,
// `cron */5 * * * *`, `object tank-* field level (local)`.

export type Kind = "call" | "http" | "mqtt" | "cron" | "object";

/** The fields of an event that a trigger determines. */
export interface Example {
    kind: Kind;
    method?: string | undefined;
    path?: string | undefined;
    topic?: string | undefined;
    qos?: number | undefined;
    schedule?: string | undefined;
    object?: string | undefined;
    field?: string | undefined;
}

const WORDS = "qos [012]|consumes|in order";
const MQTT = new RegExp(`^mqtt (.*?)(?: \\(((?:${WORDS})(?:, (?:${WORDS}))*)\\))?$`);
const HTTP = /^http (?:([^\s/]+) )?(\/.*)$/;
const CRON = /^cron (.*)$/;
const OBJECT = /^object (.*?)(?: field (.*?))?(?: \((?:local|remote)\))?$/;

/** `undefined` for a text of a form that this page does not know. */
export function exampleOf(trigger: string): Example | undefined {
    const http = HTTP.exec(trigger);
    if (http) return { kind: "http", method: http[1]?.split(",")[0], path: http[2] };
    const mqtt = MQTT.exec(trigger);
    if (mqtt) return { kind: "mqtt", topic: mqtt[1], qos: Number(/qos ([12])/.exec(mqtt[2] ?? "")?.[1] ?? 0) };
    const cron = CRON.exec(trigger);
    if (cron) return { kind: "cron", schedule: cron[1] };
    const object = OBJECT.exec(trigger);
    if (object) return { kind: "object", object: object[1], field: object[2] };
    return undefined;
}

/** True for a path, a filter or a pattern that stands for several names: none of them is known. */
export function isPattern(kind: Kind, text: string): boolean {
    return { call: /^$/, http: /[{}]/, mqtt: /[+#]|^\$share\//, cron: /^$/, object: /\*/ }[kind].test(text);
}
