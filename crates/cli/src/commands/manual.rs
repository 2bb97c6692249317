//! `edgefaas completions SHELL`, `edgefaas man FOLDER`

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Generator;
use clap_complete::shells;
use edgefaas_client::output;

use crate::args::{Cli, Shell, UserCommand};

/// Prints the completions of a shell.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let script = match shell {
        Shell::Bash => script(&shells::Bash),
        Shell::Zsh => script(&shells::Zsh),
        Shell::Fish => script(&shells::Fish),
    };
    output::text(&String::from_utf8(script?)?)
}

fn script(shell: &impl Generator) -> std::io::Result<Vec<u8>> {
    let mut command = visible(&Cli::<UserCommand>::command());
    command.set_bin_name("edgefaas");
    command.build();
    let mut script = Vec::new();
    shell.try_generate(&command, &mut script)?;
    Ok(script)
}

/// A command without its hidden options and subcommands, which the generators of completions would show.
fn visible(command: &Command) -> Command {
    // Names of a command are static; there is one command in a process.
    let name = |text: &str| -> &'static str { text.to_owned().leak() };
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set()).map(visible);
    let mut shown = Command::new(name(command.get_name()))
        .args(arguments)
        .subcommands(subcommands)
        .visible_aliases(command.get_visible_aliases().map(name).collect::<Vec<_>>());
    if let Some(version) = command.get_version() {
        shown = shown.version(name(version));
    }
    match command.get_about() {
        Some(about) => shown.about(about.clone()),
        None => shown,
    }
}

/// Writes a manual page for each command, such as `edgefaas-users-add.1`.
pub fn pages(folder: &Path) -> anyhow::Result<()> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::<UserCommand>::command(), folder));
    written.with_context(|| {
        format!("the manual pages cannot be written to {}; choose another folder", folder.display())
    })
}
