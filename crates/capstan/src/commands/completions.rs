//! `capstan completions SHELL`: a completion script for a shell.

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  capstan completions bash > ~/.local/share/bash-completion/completions/capstan"
)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: CompletionsArgs, context: &mut Context) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "capstan", &mut script);
    context.out.bytes(&script)?;
    Ok(Exit::Done)
}
