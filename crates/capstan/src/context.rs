//! What every command uses: the options, the settings, stdout, and the metadata store.

use std::path::Path;

use anyhow::{Context as _, Result};

use capstan_meta::Store;

use crate::cli::Options;
use crate::commands::action::OperatorAction;
use crate::config::{Config, Flag, Layers, Sources};
use crate::connect;
use crate::logging::LogFormat;
use crate::output::Out;

/// The context of a command.
pub(crate) struct Context {
    /// The options that all commands share.
    pub(crate) options: Options,
    /// The output for data.
    pub(crate) out: Out,
    /// Settings from the command's own flags, such as `--dir`.
    pub(crate) flags: Vec<Flag>,
    /// What the command changes, until it is recorded as an event.
    pub(crate) action: Option<OperatorAction>,
}

impl Context {
    /// A context for these options.
    pub(crate) fn new(options: Options) -> Context {
        let out = Out::stdout(options.output);
        Context { options, out, flags: Vec::new(), action: None }
    }

    /// All layers of settings, valid or not.
    pub(crate) fn layers(&self) -> Result<Layers> {
        let file = self.options.config.as_deref().map(read).transpose()?;
        Ok(Layers::of(&Sources { file, environment: std::env::vars().collect(), flags: self.flags() }))
    }

    /// The settings, all valid.
    pub(crate) fn config(&self) -> Result<Config> {
        Ok(Config::of(&self.layers()?)?)
    }

    /// The metadata store for this command.
    pub(crate) async fn store(&self) -> Result<Store> {
        let layers = self.layers()?;
        let mut config = Config::of(&layers)?;
        connect::discover(&layers, &mut config.meta);
        connect::connect(&config.meta).await
    }

    /// The operator: the current user.
    pub(crate) fn operator(&self) -> String {
        std::env::var("USER").unwrap_or_else(|_| "operator".to_owned())
    }

    /// Records what the command changes, once. Commands that wait for what they began call it before they wait.
    pub(crate) async fn record_action(&mut self) {
        let Some(action) = self.action.take() else { return };
        match self.store().await {
            Ok(store) => action.record(&store, &self.operator()).await,
            Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot record event"),
        }
    }

    fn flags(&self) -> Vec<Flag> {
        let set = self
            .options
            .set
            .iter()
            .map(|(key, value)| Flag::new(&format!("--set {key}={value}"), key, value));
        let mut flags: Vec<Flag> = self.flags.iter().cloned().chain(set).collect();
        if !self.options.meta.is_empty() {
            flags.push(Flag::new("--meta", "meta.endpoints", self.options.meta.join(",")));
        }
        if let Some(format) = self.options.log {
            let word = match format {
                LogFormat::Text => "text",
                LogFormat::Json => "json",
            };
            flags.push(Flag::new("--log", "log.format", word));
        }
        flags.extend(self.options.log_level.iter().map(|level| Flag::new("--log-level", "log.level", level)));
        flags
    }
}

fn read(path: &Path) -> Result<(std::path::PathBuf, String)> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the settings file {}", path.display()));
    match text {
        Ok(text) => Ok((path.to_owned(), text)),
        // A missing settings file is an error in the configuration, not a failure of the command.
        Err(error) => Err(crate::config::Invalid(vec![format!("{error:#}")]).into()),
    }
}
