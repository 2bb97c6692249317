// Secrets of apps, and users with their roles.
import { useState } from "preact/hooks";
import { control, may, messageOf, session } from "../connection";
import { useLive } from "../live";
import { Action, Badge, Card, Empty, Table } from "../parts/basics";

export function Settings() {
    return (
        <>
            <Secrets />
            <Users />
        </>
    );
}

/** A form whose fields are sent once; it is empty again when that worked. */
function Form(props: { label: string; send: (text: (name: string) => string) => Promise<unknown>; children: preact.ComponentChildren }) {
    const [error, setError] = useState<string>();
    const [busy, setBusy] = useState(false);
    const submit = async (event: SubmitEvent) => {
        event.preventDefault();
        const form = event.currentTarget as HTMLFormElement;
        const data = new FormData(form);
        setBusy(true);
        setError(undefined);
        try {
            await props.send((name) => String(data.get(name) ?? ""));
            form.reset();
        } catch (cause) {
            setError(messageOf(cause));
        }
        setBusy(false);
    };
    return (
        <form onSubmit={submit} class="add">
            <div class="fields">{props.children}</div>
            <div class="actions">
                <button type="submit" disabled={busy}>
                    {props.label}
                </button>
                {error && (
                    <span class="bad" role="alert">
                        {error}
                    </span>
                )}
            </div>
        </form>
    );
}

function Secrets() {
    const load = async (signal: AbortSignal) => ({
        secrets: (await control.listSecrets({}, { signal })).secrets,
        apps: (await control.list({}, { signal })).apps.map((app) => app.name),
    });
    const { data, error, refresh } = useLive(load, [], 5000);
    if (!data) return <Empty error={error} loading />;
    const set = async (text: (name: string) => string) => {
        await control.setSecret({ app: text("app"), name: text("name"), value: text("value") });
        refresh();
    };
    const remove = async (app: string, name: string) => {
        await control.removeSecret({ app, name });
        refresh();
    };
    return (
        <Card title="Secrets">
            {data.secrets.length === 0 ? (
                <Empty>No secret is set.</Empty>
            ) : (
                <Table
                    label="Secrets"
                    rows={data.secrets}
                    id={(one) => `${one.app} ${one.name}`}
                    columns={[
                        { name: "App", cell: (one) => one.app || <small>none</small> },
                        { name: "Name", cell: (one) => one.name },
                        {
                            name: "Actions",
                            cell: (one) =>
                                may("administer") && (
                                    <Action run={() => remove(one.app, one.name)} confirm={`Remove the secret ${one.name} of ${one.app}?`} danger>
                                        Remove
                                    </Action>
                                ),
                        },
                    ]}
                />
            )}
            <p>
                <small>Values are never shown. A function has a new value from its next invocation on.</small>
            </p>
            {may("administer") && (
                <Form label="Set secret" send={set}>
                    <label>
                        App
                        <input name="app" list="apps" required autocapitalize="none" spellcheck={false} />
                    </label>
                    <datalist id="apps">
                        {data.apps.map((app) => (
                            <option key={app} value={app} />
                        ))}
                    </datalist>
                    <label>
                        Name
                        <input name="name" required autocapitalize="none" spellcheck={false} />
                    </label>
                    <label>
                        Value
                        <input name="value" type="password" required autocomplete="off" />
                    </label>
                </Form>
            )}
        </Card>
    );
}

const ROLES = ["", "look", "operate", "administer"];

function Users() {
    const { data, error, refresh } = useLive((signal) => control.listUsers({}, { signal }), [], 5000);
    if (!data) return <Empty error={error} loading />;
    const add = async (text: (name: string) => string) => {
        await control.addUser({ name: text("name"), password: text("password"), role: text("role") });
        refresh();
    };
    const setRole = async (name: string, role: string) => {
        await control.setRole({ name, role });
        refresh();
    };
    const remove = async (name: string) => {
        await control.removeUser({ name });
        refresh();
    };
    return (
        <Card title="Users">
            {data.users.length === 0 ? (
                <Empty>There is no user; the admin token alone signs in.</Empty>
            ) : (
                <Table
                    label="Users"
                    rows={data.users}
                    id={(user) => user.name}
                    columns={[
                        { name: "Name", cell: (user) => user.name },
                        {
                            name: "Role",
                            cell: (user) =>
                                may("administer") && user.name !== session.value?.user ? (
                                    <Role name={user.name} role={user.role} set={setRole} />
                                ) : (
                                    <Badge tone="quiet">{user.role || "MQTT only"}</Badge>
                                ),
                        },
                        {
                            name: "Actions",
                            cell: (user) =>
                                may("administer") &&
                                user.name !== session.value?.user && (
                                    <Action run={() => remove(user.name)} confirm={`Remove the user ${user.name}?`} danger>
                                        Remove
                                    </Action>
                                ),
                        },
                    ]}
                />
            )}
            {may("administer") && (
                <Form label="Add user" send={add}>
                    <label>
                        New user
                        <input name="name" required autocomplete="off" autocapitalize="none" spellcheck={false} />
                    </label>
                    <label>
                        Password
                        <input name="password" type="password" required autocomplete="new-password" />
                    </label>
                    <label>
                        Role
                        <select name="role" aria-label="Role of the new user">
                            {ROLES.map((role) => (
                                <option key={role} value={role}>
                                    {role || "MQTT only"}
                                </option>
                            ))}
                        </select>
                    </label>
                </Form>
            )}
        </Card>
    );
}

function Role(props: { name: string; role: string; set: (name: string, role: string) => Promise<void> }) {
    const [error, setError] = useState<string>();
    const change = (role: string) => props.set(props.name, role).catch((cause) => setError(messageOf(cause)));
    return (
        <>
            <select aria-label={`Role of ${props.name}`} value={props.role} onChange={(event) => void change(event.currentTarget.value)}>
                {ROLES.map((role) => (
                    <option key={role} value={role}>
                        {role || "MQTT only"}
                    </option>
                ))}
            </select>
            {error && (
                <span class="bad" role="alert">
                    {error}
                </span>
            )}
        </>
    );
}
