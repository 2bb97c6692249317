// Sign-in with a user's name and password, or with the admin token.
import { useState } from "preact/hooks";
import { signIn } from "../connection";
import { Form, type Fields } from "../parts/form";

export function SignIn() {
    const [withToken, setWithToken] = useState(false);
    const send = (text: Fields) => signIn(withToken ? { token: text("token").trim() } : { user: text("user"), password: text("password") });
    const other = (
        <button type="button" onClick={() => setWithToken(!withToken)}>
            {withToken ? "With name and password" : "With the admin token"}
        </button>
    );
    return (
        <section class="card sign-in">
            <h1>Sign in to this node</h1>
            <Form key={withToken ? "token" : "password"} label="Sign in" send={send} keep primary more={other}>
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
            </Form>
        </section>
    );
}
