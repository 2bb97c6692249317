//! Input of secrets, without echo, and confirmations.

use std::io::{IsTerminal, Read, Write};

use anyhow::Context;

use crate::exit::{Exit, Failure};

/// Reads a secret: on a terminal without echo, otherwise all of stdin without one newline at its end. Errors call it
/// `what`.
///
/// # Errors
/// The input is empty or not UTF-8.
pub fn secret(question: &str, what: &str) -> anyhow::Result<String> {
    let value = if std::io::stdin().is_terminal() { ask(question, what)? } else { read_all(what)? };
    if value.is_empty() {
        return Err(Failure::new(Exit::Usage, format!("{what} is empty; nothing was changed")));
    }
    Ok(value)
}

/// Reads a password, on a terminal twice.
///
/// # Errors
/// The input is empty or not UTF-8, or the two differ.
pub fn new_password(user: &str) -> anyhow::Result<String> {
    let what = format!("the password of {user}");
    let password = secret(&format!("New password of {user}"), &what)?;
    if std::io::stdin().is_terminal() && ask("Once more", &what)? != password {
        return Err(Failure::new(Exit::Usage, "the passwords differ; nothing was changed"));
    }
    Ok(password)
}

/// Asks on the terminal for a confirmation; false if the answer is not `y` or `yes`.
///
/// # Errors
/// Stdin is no terminal. `what` is the action, such as `the deletion of 3 objects`, and `option` confirms it on the command
/// line.
pub fn confirm(question: &str, what: &str, option: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        let message =
            format!("stdin is not a terminal, so you cannot confirm {what}; confirm it with {option}");
        return Err(Failure::new(Exit::Usage, message));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush().context("the question cannot be shown")?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("the answer cannot be read")?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
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
