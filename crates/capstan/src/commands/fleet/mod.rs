//! `capstan fleet`: updates of the hosts.

mod members;
mod release;
mod reply;
mod rules;
mod screen;
mod show;
mod simulate;
mod steer;
mod vault;
mod watch;

use anyhow::Result;
use capstan_control::keys::HostId;
use capstan_fleet::api::Asker;
use capstan_fleet::{Fleet, FleetError, Lrn};
use clap::Subcommand;

use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Make a fleet of these hosts
    Init(members::InitArgs),
    /// Add a host to the fleet
    Join(members::JoinArgs),
    /// Remove a host from the fleet
    Leave(members::LeaveArgs),
    /// List the hosts of the fleet
    Hosts,
    /// Show the progress of the rollout
    Status(show::StatusArgs),
    /// Show what a host is waiting for
    Why {
        /// The host: its number or its name
        host: String,
    },
    /// Show what a release would do: waves, hosts, order, time; changes nothing
    Plan {
        /// The release; by default the newest one
        release: Option<String>,
    },
    /// Roll a release out to the fleet
    Apply(steer::ApplyArgs),
    /// Start no new steps; running steps continue
    Pause(steer::WishArgs),
    /// Resume a paused rollout
    Resume,
    /// Stop the update on every host at once
    Stop(steer::WishArgs),
    /// Clear a stopped update and start over
    Recover(steer::RecoverArgs),
    /// Start the next wave now
    Promote,
    /// Go back to an older release
    Rollback(steer::RollbackArgs),
    /// Retry a failed host
    Retry {
        /// The host: its number or its name
        host: String,
    },
    /// Continue without a host
    Skip(steer::SkipArgs),
    /// Make, sign, check and publish releases
    #[command(subcommand)]
    Release(release::ReleaseCommand),
    /// Show, check and set the policies of host groups
    #[command(subcommand)]
    Policy(rules::PolicyCommand),
    /// Show and set the configuration of the fleet
    #[command(subcommand)]
    Config(rules::ConfigCommand),
    /// List past updates
    History(show::HistoryArgs),
    /// Manage the secrets that unseal Vault
    #[command(subcommand)]
    Vault(vault::VaultCommand),
    /// Show what a policy costs and saves: rollout time and broken hosts, for sizes of the canary
    Simulate(simulate::SimulateArgs),
}

impl FleetCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let host = |action: &str, host: &str| Some(OperatorAction::new(action, format!("fleet host {host}")));
        let rollout = |action: &str| Some(OperatorAction::new(action, "fleet rollout"));
        match self {
            FleetCommand::Init(args) => Some(args.action()),
            FleetCommand::Join(args) => Some(args.action()),
            FleetCommand::Leave(args) => Some(args.action()),
            FleetCommand::Apply(args) => Some(args.action()),
            FleetCommand::Pause(args) => Some(args.action("paused")),
            FleetCommand::Stop(args) => Some(args.action("stopped")),
            FleetCommand::Rollback(args) => Some(args.action()),
            FleetCommand::Skip(args) => Some(args.action()),
            FleetCommand::Resume => rollout("resumed"),
            FleetCommand::Recover(_) => rollout("cleared away the stopped"),
            FleetCommand::Promote => rollout("started the next wave of the"),
            FleetCommand::Retry { host: name } => host("asked to retry", name),
            FleetCommand::Policy(command) => command.action(),
            FleetCommand::Config(command) => command.action(),
            FleetCommand::Vault(command) => command.action(),
            FleetCommand::Hosts | FleetCommand::Status(_) | FleetCommand::Why { .. } => None,
            FleetCommand::Plan { .. } | FleetCommand::History(_) | FleetCommand::Simulate(_) => None,
            FleetCommand::Release(_) => None,
        }
    }
}

/// Carries out the command.
pub(crate) async fn run(command: FleetCommand, context: &mut Context) -> Result<Exit> {
    match command {
        FleetCommand::Init(args) => members::init(args, context).await,
        FleetCommand::Join(args) => members::join(args, context).await,
        FleetCommand::Leave(args) => members::leave(args, context).await,
        FleetCommand::Hosts => members::hosts(context).await,
        FleetCommand::Status(args) => show::status(args, context).await,
        FleetCommand::Why { host } => show::why(&host, context).await,
        FleetCommand::Plan { release } => show::plan(release, context).await,
        FleetCommand::Apply(args) => steer::apply(args, context).await,
        FleetCommand::Pause(args) => steer::pause(args, context).await,
        FleetCommand::Resume => steer::resume(context).await,
        FleetCommand::Stop(args) => steer::stop(args, context).await,
        FleetCommand::Recover(args) => steer::recover(args, context).await,
        FleetCommand::Promote => steer::promote(context).await,
        FleetCommand::Rollback(args) => steer::rollback(args, context).await,
        FleetCommand::Retry { host } => steer::retry(&host, context).await,
        FleetCommand::Skip(args) => steer::skip(args, context).await,
        FleetCommand::Release(command) => release::run(command, context).await,
        FleetCommand::Policy(command) => rules::policy(command, context).await,
        FleetCommand::Config(command) => rules::config(command, context).await,
        FleetCommand::History(args) => show::history(args, context).await,
        FleetCommand::Vault(command) => vault::run(command, context).await,
        FleetCommand::Simulate(args) => simulate::simulate(args, context).await,
    }
}

/// The fleet that the settings name.
async fn fleet(context: &Context) -> Result<Fleet> {
    let settings = context.config()?.fleet;
    let trust = settings.trust.as_deref().map(crate::daemon::read_trust).transpose()?;
    Ok(Fleet::new(context.store().await?, settings.tree).trusting(trust))
}

/// The requester: the current user.
fn asker(reason: &str) -> Asker {
    let by = std::env::var("USER").ok().filter(|user| !user.is_empty());
    Asker { by: by.unwrap_or_else(|| "operator".to_owned()), reason: reason.to_owned() }
}

/// The number of a host, given by its number or by its name in the kernel.
async fn named(fleet: &Fleet, host: &str) -> Result<Lrn, FleetError> {
    if let Ok(lrn) = host.parse::<Lrn>() {
        return Ok(lrn);
    }
    let id: HostId = host.parse()?;
    let hosts = fleet.hosts().await?.hosts;
    let found = hosts.iter().find(|line| line.host.as_ref() == Some(&id));
    found.map(|line| line.lrn).ok_or_else(|| {
        FleetError::NotFound(format!("host {host} (`capstan fleet hosts` shows numbers and names)"))
    })
}
