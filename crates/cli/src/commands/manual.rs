//! `edgefaas completions SHELL`, `edgefaas man FOLDER`

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
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
    let mut command = Cli::<UserCommand>::command();
    command.set_bin_name("edgefaas");
    command.build();
    let mut script = Vec::new();
    shell.try_generate(&command, &mut script)?;
    Ok(script)
}

/// Writes a manual page for each command, such as `edgefaas-users-add.1`.
pub fn pages(folder: &Path) -> anyhow::Result<()> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::<UserCommand>::command(), folder));
    written.with_context(|| {
        format!("the manual pages cannot be written to {}; choose another folder", folder.display())
    })
}
