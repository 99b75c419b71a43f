//! Which commands change something, and what does the record of events say about each?
//!
//! An action is taken from the command line alone, before it runs: what it names is in the event, and secrets, which come from
//! stdin or are generated, cannot be. `capstan access`, `certs`, `hosts remove` and `status ack` write their events in the
//! transactions of their changes. Raw writes (`capstan meta`) and data (messages, documents) have none.

use capstan_control::events;
use capstan_meta::Store;

use crate::cli::Command;

/// A change that an operator makes or asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OperatorAction {
    verb: String,
    object: String,
    reason: String,
}

impl OperatorAction {
    /// The verb is in the past tense: `created`, `asked to drain`.
    pub(crate) fn new(verb: impl Into<String>, object: impl Into<String>) -> OperatorAction {
        OperatorAction { verb: verb.into(), object: object.into(), reason: String::new() }
    }

    /// The same with the reason that was given.
    pub(crate) fn because(self, reason: &str) -> OperatorAction {
        OperatorAction { reason: reason.to_owned(), ..self }
    }

    /// What a command is about to change; nothing if it only reads, or records its events itself.
    pub(super) fn of(command: &Command) -> Option<OperatorAction> {
        match command {
            Command::Hosts(command) => command.action(),
            Command::Redis(command) => command.action(),
            Command::Topics(command) => command.action(),
            Command::Subscriptions(command) => command.action(),
            Command::Namespaces(command) => command.action(),
            Command::Brokers(command) => command.action(),
            Command::Schemas(command) => command.action(),
            Command::Docs(command) => command.action(),
            Command::Fleet(command) => command.action(),
            Command::Log(args) => args.action(),
            Command::Certs(_)
            | Command::Join(_)
            | Command::Access(_)
            | Command::Status(_)
            | Command::Meta(_) => None,
            Command::Up(_) | Command::Host(_) | Command::Controller(_) | Command::Events(_) => None,
            Command::Plan(_) | Command::Config(_) | Command::Bench(_) | Command::Reference(_) => None,
            Command::Completions(_) | Command::Version => None,
        }
    }

    /// Records it as an action of this operator. A failure is only logged: the change has happened.
    pub(crate) async fn record(self, store: &Store, operator: &str) {
        events::record(store, operator, self.verb, self.object, &self.reason).await;
    }

    #[cfg(test)]
    fn sentence(&self) -> String {
        let reason = if self.reason.is_empty() { String::new() } else { format!(": {}", self.reason) };
        format!("{} {}{reason}", self.verb, self.object)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn event(line: &str) -> String {
        let words = std::iter::once("capstan").chain(line.split(' '));
        let cli = Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
        OperatorAction::of(&cli.command).map_or_else(|| "-".to_owned(), |action| action.sentence())
    }

    #[test]
    fn every_change_has_its_sentence() {
        let cases = [
            ("hosts drain a --reason kernel", "asked to drain host a: kernel"),
            ("hosts undrain a", "asked to undrain host a"),
            ("hosts list", "-"),
            ("redis create shop --nodes 3 --user ann:secret", "created redis cluster shop: 3 nodes"),
            ("redis scale shop --nodes 6", "asked to scale redis cluster shop: 6 nodes"),
            ("redis scale shop --nodes 6 --dry-run", "-"),
            ("redis rebalance shop", "asked to rebalance redis cluster shop"),
            (
                "redis move shop --slots 0-9 --to 127.0.0.1:1",
                "asked to move redis cluster shop: slots 0-9 to 127.0.0.1:1",
            ),
            ("redis cancel shop 7", "cancelled move 7 of redis cluster shop"),
            ("redis delete shop --yes", "deleted redis cluster shop"),
            ("redis failover shop 127.0.0.1:1", "asked to replace primary 127.0.0.1:1 of redis cluster shop"),
            (
                "redis accept-loss shop 127.0.0.1:1",
                "accepted the loss of data of 127.0.0.1:1 in redis cluster shop",
            ),
            ("redis show shop", "-"),
            ("topics create /default/a", "created topic /default/a"),
            ("topics delete /default/a", "deleted topic /default/a"),
            ("topics unload /default/a", "asked to unload topic /default/a"),
            (
                "topics set /default/a retention_seconds=9",
                "set limits of topic /default/a: retention_seconds=9",
            ),
            ("topics produce /default/a", "-"),
            ("subscriptions delete /default/a s", "deleted subscription s of topic /default/a"),
            ("namespaces create shop", "created namespace shop"),
            ("brokers unload 2", "asked to unload broker 2"),
            ("schemas delete orders", "deleted schema subject orders"),
            ("docs add b", "added docs node b"),
            ("docs retire b", "asked to retire docs node b"),
            ("docs keys create --app web", "issued docs key for web"),
            ("docs indexes create shop orders total", "created docs index shop/orders/total"),
            ("docs find shop orders", "-"),
            ("fleet apply 1.2.3 --reason cve", "asked to roll out release 1.2.3: cve"),
            ("fleet stop", "stopped fleet rollout"),
            ("fleet retry 3", "asked to retry fleet host 3"),
            ("fleet skip 3 --reason broken", "skipped fleet host 3: broken"),
            ("fleet config set proxy http://user:secret@proxy", "set fleet setting proxy"),
            ("fleet status", "-"),
            ("log elect docs-0 docs.a", "elected docs.a as primary of log docs-0"),
            ("log list", "-"),
            ("meta put /a secret", "-"),
        ];
        for (line, expected) in cases {
            assert_eq!(event(line), expected, "{line}");
        }
    }
}
