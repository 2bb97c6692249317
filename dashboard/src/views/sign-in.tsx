// Sign-in with a user's name and password, or with the admin token.
import { useState } from "preact/hooks";
import { signIn } from "../connection";

export function SignIn() {
    const [withToken, setWithToken] = useState(false);
    const [error, setError] = useState<string | null>(null);
    const [busy, setBusy] = useState(false);
    const submit = async (event: SubmitEvent) => {
        event.preventDefault();
        const data = new FormData(event.currentTarget as HTMLFormElement);
        const text = (name: string) => String(data.get(name) ?? "");
        setBusy(true);
        setError(await signIn(withToken ? { token: text("token").trim() } : { user: text("user"), password: text("password") }));
        setBusy(false);
    };
    return (
        <section class="card sign-in">
            <h1>Sign in to this node</h1>
            <form onSubmit={submit}>
                {withToken ? (
                    <label>
                        Admin token
                        <input name="token" type="password" autocomplete="current-password" required key="token" />
                        <small>In the file `token` of the node's data directory.</small>
                    </label>
                ) : (
                    <>
                        <label>
                            User
                            <input name="user" autocomplete="username" autocapitalize="none" required key="user" />
                        </label>
                        <label>
                            Password
                            <input name="password" type="password" autocomplete="current-password" required key="password" />
                        </label>
                    </>
                )}
                {error && (
                    <p class="bad" role="alert">
                        {error}
                    </p>
                )}
                <div class="actions">
                    <button type="submit" class="primary" disabled={busy}>
                        Sign in
                    </button>
                    <button type="button" onClick={() => setWithToken(!withToken)}>
                        {withToken ? "With name and password" : "With the admin token"}
                    </button>
                </div>
            </form>
        </section>
    );
}
