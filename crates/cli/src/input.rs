//! What is asked for and must not be seen.

use std::io::{IsTerminal, Read};

use anyhow::Context;

use crate::exit::{Exit, Failure};

/// Asks without echo on a terminal; else all of stdin, without one newline at its end. `what` is what it is
/// called in errors.
///
/// # Errors
/// It is empty or no UTF-8.
pub fn secret(question: &str, what: &str) -> anyhow::Result<String> {
    let value = if std::io::stdin().is_terminal() { ask(question, what)? } else { read_all(what)? };
    if value.is_empty() {
        return Err(Failure::new(Exit::Usage, format!("{what} is empty; nothing was done")));
    }
    Ok(value)
}

/// The same, asked twice on a terminal.
///
/// # Errors
/// It is empty, no UTF-8, or not twice the same.
pub fn new_password(user: &str) -> anyhow::Result<String> {
    let what = format!("the password of {user}");
    let password = secret(&format!("New password of {user}"), &what)?;
    if std::io::stdin().is_terminal() && ask("Once more", &what)? != password {
        return Err(Failure::new(Exit::Usage, "the passwords are not the same; nothing was done"));
    }
    Ok(password)
}

fn ask(question: &str, what: &str) -> anyhow::Result<String> {
    eprint!("{question}: ");
    console::Term::stderr().read_secure_line().with_context(|| format!("{what} cannot be read"))
}

fn read_all(what: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("stdin cannot be read")?;
    let text = String::from_utf8(bytes).map_err(|_| {
        Failure::new(Exit::Usage, format!("{what} is not UTF-8 text; encode it, such as in base64"))
    })?;
    Ok(text.strip_suffix('\n').map(str::to_owned).unwrap_or(text))
}
