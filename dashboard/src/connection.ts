// The control API of the node that served this page, over gRPC-Web; and whether the node answers.
import { signal } from "@preact/signals";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { Control } from "./api/edgefaas/control/v1/control_pb";
import { History } from "./api/edgefaas/history/v1/history_pb";
import { Invocations } from "./api/edgefaas/invocations/v1/invocations_pb";
import { Messages } from "./api/edgefaas/messages/v1/messages_pb";
import { Objects } from "./api/edgefaas/objects/v1/objects_pb";

/** Time limit for an answer; streams have none. */
const TIMEOUT_MS = 15_000;

/** `away`: the node does not answer. */
export type Link = "up" | "away";

export const link = signal<Link>("up");

/** The facts of the session that the node knows. */
export interface Session {
    /** `null`: the holder of the admin token. */
    user: string | null;
    role: "look" | "operate" | "administer";
    expires_unix_s: number;
    node_id: string;
    /** Names user and role. */
    tag: string;
}

/** `undefined` until the node has answered; `null` without a session. */
export const session = signal<Session | null | undefined>(undefined);

/** Notes for each answer whether the node is there and the session holds. */
const observe: Interceptor = (next) => async (request) => {
    // The node refuses what this page would do as somebody else, who has signed in in another tab.
    if (session.value) request.header.set("x-edgefaas-session", session.value.tag);
    try {
        const response = await next(request);
        link.value = "up";
        return response;
    } catch (cause) {
        note(cause);
        throw cause;
    }
};

/** Takes note of a failed call. */
export function note(cause: unknown) {
    const error = ConnectError.from(cause);
    if (error.code === Code.Unauthenticated) {
        link.value = "up";
        session.value = null;
    } else if (error.code === Code.Aborted) {
        link.value = "up";
        void findSession();
    } else if (isAway(cause)) {
        link.value = "away";
    } else if (error.code !== Code.Canceled) {
        link.value = "up";
    }
}

/** True if no answer came at all: browsers report that as a TypeError. */
function isAway(cause: unknown): boolean {
    const error = ConnectError.from(cause);
    return error.cause instanceof TypeError || cause instanceof TypeError;
}

const transport = createGrpcWebTransport({
    baseUrl: location.origin,
    interceptors: [observe],
    fetch: (input, init) => fetch(input, { ...init, credentials: "same-origin", redirect: "error" }),
    defaultTimeoutMs: TIMEOUT_MS,
});

export const control = createClient(Control, transport);
export const history = createClient(History, transport);
export const invocations = createClient(Invocations, transport);
export const messages = createClient(Messages, transport);
export const objects = createClient(Objects, transport);

/** The message of a call that got no answer. */
export const NO_ANSWER = "the node does not answer";

/** What went wrong, for the reader of the page. */
export function messageOf(cause: unknown): string {
    if (isAway(cause)) return NO_ANSWER;
    return ConnectError.from(cause).rawMessage;
}

async function sessionRequest(method: string, body?: object): Promise<Response> {
    const headers = body ? { "content-type": "application/json" } : undefined;
    return fetch("/session", {
        method,
        headers,
        body: body && JSON.stringify(body),
        credentials: "same-origin",
        cache: "no-store",
    });
}

/** Asks the node for the session of this browser. */
export async function findSession(): Promise<void> {
    try {
        const response = await sessionRequest("GET");
        link.value = "up";
        session.value = response.ok ? await response.json() : null;
    } catch {
        link.value = "away";
    }
}

/** Signs in; throws the reason of a refusal. */
export async function signIn(credentials: { token: string } | { user: string; password: string }): Promise<void> {
    const [response, answer] = await sessionRequest("POST", credentials)
        .then(async (response) => [response, await response.json()] as const)
        .catch(() => {
            throw new Error("the node does not answer");
        });
    if (!response.ok) throw new Error(answer.detail ?? "the node refused the sign-in");
    session.value = answer;
}

export async function signOut(): Promise<void> {
    await sessionRequest("DELETE").catch(() => undefined);
    session.value = null;
}

/** True if the session's role is at least `role`. */
export function may(role: Session["role"]): boolean {
    const roles = ["look", "operate", "administer"];
    return roles.indexOf(session.value?.role ?? "") >= roles.indexOf(role);
}
