//! The `capstan` binary: configuration, command line, composition of roles.
//!
//! Read first: [`cli`] (the commands), [`config`] (the settings), [`exit`] (the exit codes).

mod catalogue;
mod cli;
mod commands;
mod config;
mod connect;
mod context;
mod daemon;
mod exit;
mod https;
mod logging;
mod output;

use std::process::ExitCode;

use clap::Parser as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::cli::Cli;
use crate::context::Context;
use crate::exit::Exit;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The allocator requests huge pages, with which a process of 2 MB would use 10. Disabled first of all, because a
    // huge page stays one. A kernel without this option ignores it.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_thp_disable(true);
    allow_open_files();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error).into(),
    };
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(error) if output::is_broken_pipe(&error) => Exit::Done.into(),
        Err(error) => {
            output::say(format!("capstan: {error:#}"));
            Exit::of(&error).into()
        }
    }
}

/// Raises the limit of open files: the default is about a thousand, and every client is one.
fn allow_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Without permission the process continues with the present limit.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let mut context = Context::new(cli.options);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(commands::run(cli.command, &mut context));
    context.out.flush()?;
    // Cancelled tasks may be in a blocking call: the process does not wait for them.
    runtime.shutdown_background();
    result
}

/// Help and version are not errors; everything else about the command line is.
fn usage(error: &clap::Error) -> Exit {
    let printed = error.print();
    if error.use_stderr() || printed.is_err() { Exit::Usage } else { Exit::Done }
}
