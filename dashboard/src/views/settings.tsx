// Secrets of apps, users with their roles, and the settings in force.
import { Fragment } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { GetSettingsResponse, Setting } from "../api/edgefaas/control/v1/control_pb";
import { control, may, messageOf, session } from "../connection";
import { useLive } from "../live";
import { Action, Badge, Card, Empty, Failure, Table, Value } from "../parts/basics";
import { Field, Form, type Fields } from "../parts/form";
import { place } from "../router";

export function Settings() {
    return (
        <>
            <Secrets />
            <Users />
            <InForce />
        </>
    );
}

function Secrets() {
    const load = async (signal: AbortSignal) => ({
        secrets: (await control.listSecrets({}, { signal })).secrets,
        apps: (await control.list({}, { signal })).apps.map((app) => app.name),
    });
    const { data, error, refresh } = useLive(load, [], 5000);
    const [saved, setSaved] = useState("");
    if (!data) return <Empty error={error} loading />;
    const wanted = place.value.query.get("app") ?? "";
    const secret = place.value.query.get("secret") ?? "";
    const set = async (text: Fields) => {
        const app = text("app").trim();
        setSaved("");
        // The node takes a secret of any app: one that is spelled wrongly would be of no use.
        if (!data.apps.includes(app) && !data.secrets.some((one) => one.app === app)) {
            const others = data.apps.length > 0 ? `; these are: ${data.apps.join(", ")}` : "";
            throw new Error(`no app ${app} is deployed here${others}`);
        }
        await control.setSecret({ app, name: text("name"), value: text("value") });
        setSaved(`The secret ${text("name")} of ${app} is set.`);
        refresh();
    };
    const remove = async (app: string, name: string) => {
        await control.removeSecret({ app, name });
        refresh();
    };
    return (
        <Card title="Secrets">
            {error && <Empty error={error} />}
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
                            actions: true,
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
                <Form label="Set secret" class="add" send={set} more={<span role="status">{saved}</span>}>
                    <div class="fields">
                        <Field key={wanted} name="app" label="App" list="apps" required value={wanted} />
                        <datalist id="apps">
                            {data.apps.map((app) => (
                                <option key={app} value={app} />
                            ))}
                        </datalist>
                        <Field key={`${wanted} ${secret}`} name="name" label="Name" required value={secret} />
                        <SecretValue key={`${wanted} ${secret} value`} focus={secret !== ""} />
                    </div>
                </Form>
            )}
        </Card>
    );
}

/** `focus`: the other fields are filled in, by a link to this one. */
function SecretValue(props: { focus: boolean }) {
    const input = useRef<HTMLInputElement>(null);
    useEffect(() => {
        if (props.focus) input.current?.focus();
    }, []);
    return (
        <label>
            Value
            <input ref={input} name="value" type="password" required autocomplete="off" />
        </label>
    );
}

const ROLES = ["", "look", "operate", "administer"];

function Users() {
    const { data, error, refresh } = useLive((signal) => control.listUsers({}, { signal }), [], 5000);
    if (!data) return <Empty error={error} loading />;
    const add = async (text: Fields) => {
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
            {error && <Empty error={error} />}
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
                            actions: true,
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
                <Form label="Add user" class="add" send={add}>
                    <div class="fields">
                        <Field name="name" label="New user" required />
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
                    </div>
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
            <Failure text={error} />
        </>
    );
}

/** Settings of the node with the place that each comes from. */
function InForce() {
    const { data, error } = useLive((signal) => control.getSettings({}, { signal }), [], 30_000);
    const [search, setSearch] = useState("");
    const wanted = search.trim().toLowerCase();
    const shown = data?.settings.filter((one) => `${one.key} ${one.value} ${one.source}`.toLowerCase().includes(wanted)) ?? [];
    return (
        <Card
            title="Settings in force"
            actions={
                <input type="search" aria-label="Search in the settings" placeholder="Search" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
            }
        >
            {(error || !data) && <Empty error={error} loading />}
            {data && (
                <>
                    <p>
                        <small>
                            {data.file ? `From the file ${data.file}.` : "No configuration file was read."} A change needs a restart of the node.
                        </small>
                    </p>
                    {shown.length === 0 ? (
                        <Empty>No setting has this text.</Empty>
                    ) : (
                        <Table
                            label="Settings in force"
                            rows={shown}
                            id={(one) => one.key}
                            columns={[
                                { name: "Setting", cell: (one) => <code>{one.key}</code> },
                                { name: "Value", cell: (one) => (one.value ? <code>{one.value}</code> : <small>not set</small>) },
                                { name: "From", cell: (one) => <Source setting={one} file={data.file} /> },
                            ]}
                        />
                    )}
                </>
            )}
            {data && <Files settings={data} />}
        </Card>
    );
}

/** The access rules as they were read, and the files of tokens, whose contents are secret. */
function Files(props: { settings: GetSettingsResponse }) {
    const { rulesFile, rules, tokenFile, gatewayTokenFile } = props.settings;
    const files: [string, string][] = [
        ["Admin token", tokenFile],
        ["Token of the HTTP gateway", gatewayTokenFile],
        ["Access rules", rulesFile],
    ];
    return (
        <>
            <dl class="pairs add">
                {files
                    .filter(([, file]) => file !== "")
                    .map(([name, file]) => (
                        <Fragment key={name}>
                            <dt>{name}</dt>
                            <dd>
                                <code>{file}</code>
                            </dd>
                        </Fragment>
                    ))}
            </dl>
            {rules && <Value text={rules} raw />}
        </>
    );
}

const SOURCES: Record<string, string> = { option: "command line", default: "default" };

function Source(props: { setting: Setting; file: string }) {
    const { setting, file } = props;
    if (setting.line > 0) {
        return (
            <span title={`${file}:${setting.line}`}>
                {file.split("/").at(-1)}:{setting.line}
            </span>
        );
    }
    return <Badge tone="quiet">{SOURCES[setting.source] ?? setting.source}</Badge>;
}
