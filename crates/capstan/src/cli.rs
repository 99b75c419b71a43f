//! What can be typed: the tree of commands and the options that all of them share.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::commands::{
    access, bench, brokers, certs, completions, config, controller, docs, events, fleet, host, hosts, join,
    log, meta, namespaces, plan, redis, reference, schemas, status, subscriptions, topics, up,
};
use crate::exit::Exit;
use crate::logging::LogFormat;
use crate::output::Format;

/// One control plane for the stateful services on your own machines.
#[derive(Debug, Parser)]
#[command(
    name = "capstan",
    version,
    propagate_version = false,
    disable_help_subcommand = true,
    max_term_width = 100
)]
#[command(subcommand_required = true, arg_required_else_help = true, after_help = epilogue())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) options: Options,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Options {
    /// Read settings from this TOML file
    #[arg(long, global = true, value_name = "FILE", env = "CAPSTAN_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Set one setting, over file and environment; may be repeated
    #[arg(long, global = true, value_name = "KEY=VALUE", value_parser = pair)]
    pub(crate) set: Vec<(String, String)>,
    /// Endpoints of the metadata store, separated by commas
    #[arg(
        long,
        global = true,
        value_name = "URLS",
        env = "CAPSTAN_META",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub(crate) meta: Vec<String>,
    /// Format of the data on stdout: table or json
    #[arg(
        hide_possible_values = true,
        short,
        long,
        global = true,
        value_name = "FORM",
        env = "CAPSTAN_OUTPUT",
        hide_env_values = true
    )]
    #[arg(default_value = "table", hide_default_value = true)]
    pub(crate) output: Format,
    /// Format of the log lines on stderr: text or json
    #[arg(hide_possible_values = true, long, global = true, value_name = "FORM")]
    pub(crate) log: Option<LogFormat>,
    /// The log level: error, warn, info, debug, trace, or a filter
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything on this machine in one process, with an embedded metadata store
    Up(up::UpArgs),
    /// Run the daemon of one machine of a cluster
    Host(host::HostArgs),
    /// Run the controllers of a cluster
    Controller(controller::ControllerArgs),
    /// Show the health of the cluster and what to do
    Status(status::StatusArgs),
    /// Show what was decided and done, by which process or operator, and why
    Events(events::EventsArgs),
    /// List, drain and undrain the hosts of the cluster
    #[command(subcommand)]
    Hosts(hosts::HostsCommand),
    /// Run Redis clusters
    #[command(subcommand)]
    Redis(redis::RedisCommand),
    /// Create topics, publish to them and consume them
    #[command(subcommand)]
    Topics(topics::TopicsCommand),
    /// List and delete subscriptions of topics
    #[command(subcommand)]
    Subscriptions(subscriptions::SubscriptionsCommand),
    /// Create namespaces of topics and set their limits
    #[command(subcommand)]
    Namespaces(namespaces::NamespacesCommand),
    /// List, unload and activate the brokers of topics
    #[command(subcommand)]
    Brokers(brokers::BrokersCommand),
    /// Register schemas of messages, check changes, bind them to topics
    #[command(subcommand)]
    Schemas(schemas::SchemasCommand),
    /// Manage documents: databases, collections, keys, nodes
    #[command(subcommand)]
    Docs(docs::DocsCommand),
    /// Update the software of the hosts
    #[command(subcommand)]
    Fleet(fleet::FleetCommand),
    /// Manage users, service accounts, access keys, roles and grants
    #[command(subcommand)]
    Access(access::AccessCommand),
    /// Make a private authority and certificates of hosts, and let hosts join
    #[command(subcommand)]
    Certs(certs::CertsCommand),
    /// Make this machine a host of a cluster, with a token of `capstan certs token`
    Join(join::JoinArgs),
    /// Read, write, serve and back up the metadata
    #[command(subcommand)]
    Meta(meta::MetaCommand),
    /// Show what a placement would move, without moving anything
    Plan(plan::PlanArgs),
    /// List, move and check replicated logs
    Log(log::LogArgs),
    /// Check and show the settings
    #[command(subcommand)]
    Config(config::ConfigCommand),
    /// Benchmark this build and its peers on this machine
    Bench(bench::BenchArgs),
    /// Print reference pages
    #[command(subcommand)]
    Reference(reference::ReferenceCommand),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Print the version
    Version,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as meta.dir=/var/lib/capstan")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

/// The end of the help text: what exit codes mean.
fn epilogue() -> String {
    let mut text = String::from("Exit codes:\n");
    for exit in Exit::ALL {
        text.push_str(&format!("  {:>3}  {}\n", exit.code(), exit.meaning()));
    }
    text.push_str("\nEverything binds to loopback by default. Manual: docs/operate.md");
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_tree_of_commands_is_sound() {
        super::Cli::command().debug_assert();
    }
}
