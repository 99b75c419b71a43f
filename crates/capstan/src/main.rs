//! The `capstan` binary: configuration, command line, composing of roles; nothing clever.
//!
//! Read first: [`cli`] (what can be typed), [`config`] (what can be set), [`exit`] (how it ends).

mod bench;
mod catalogue;
mod cli;
mod commands;
mod config;
mod connect;
mod context;
mod daemon;
mod exit;
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
    // The allocator asks for huge pages; a process that needs 2 MB would show 10. First of all, because a page that is
    // huge stays so. Where the kernel does not know the wish, nothing is lost.
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

/// Systems allow a thousand open files by default and many more to who asks: every client is one.
fn allow_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Whoever is refused goes on with what there is.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let mut context = Context::new(cli.options);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(commands::run(cli.command, &mut context));
    context.out.flush()?;
    // What was cancelled may sit in a blocking call: the process does not wait for it.
    runtime.shutdown_background();
    result
}

/// Help and version are no errors; everything else about the command line is.
fn usage(error: &clap::Error) -> Exit {
    let printed = error.print();
    if error.use_stderr() || printed.is_err() { Exit::Usage } else { Exit::Done }
}
