//! What is told to people, and how does it survive a change of leaders? A message is written in the transaction of the
//! event that it tells of, and removed when it was sent.
//!
//! So no event is untold, and none is told by two leaders, with one exception that no outbox can avoid: a leader that
//! dies between the webhook's answer and the removal. The successor sends that one message again, with the same id.

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::encoding::Moment;
use crate::keys::NoticeId;
use crate::lrn::{Lrn, go_list};
use crate::status::Request;

/// Messages that may wait. A webhook that has been dead for so long is told nothing about what happened meanwhile.
pub const MAX_WAITING: usize = 100;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoticeKind {
    /// An update began.
    Start,
    /// It is complete.
    Success,
    /// A host failed, or an operator stopped it.
    Failure,
    /// Workers took too long.
    Timeout,
}

impl NoticeKind {
    /// Its name in ids.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NoticeKind::Start => "start",
            NoticeKind::Success => "success",
            NoticeKind::Failure => "failure",
            NoticeKind::Timeout => "timeout",
        }
    }

    fn color(self) -> &'static str {
        match self {
            NoticeKind::Start => "#439FE0",
            NoticeKind::Success => "good",
            NoticeKind::Failure | NoticeKind::Timeout => "danger",
        }
    }

    fn text(self) -> &'static str {
        match self {
            NoticeKind::Start => "Updating boot servers has started.",
            NoticeKind::Success => "Updating boot servers completed successfully.",
            NoticeKind::Failure => "Updating boot servers failed. Please look, then recover.",
            NoticeKind::Timeout => "Updating boot servers timed out. Please look, then recover.",
        }
    }
}

/// `outbox/<ID>`: a message that waits to be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// What happened.
    pub kind: NoticeKind,
    /// To which request.
    pub generation: u64,
    /// Its version.
    pub version: String,
    /// Its hosts.
    pub servers: Vec<Lrn>,
    /// When it was started.
    pub started_at: Moment,
    /// More about it, for a person.
    pub detail: String,
    /// When it happened.
    pub at: Moment,
    /// How often it was tried.
    #[serde(default)]
    pub attempts: u32,
    /// Whose it is to send, and until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// An updater is sending a message, or waits before it tries again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Which one.
    pub by: String,
    /// The end of the claim.
    pub until: Moment,
}

json_records!(Notice);

impl Notice {
    /// A message about a request.
    #[must_use]
    pub fn about(request: &Request, kind: NoticeKind, detail: &str, at: Moment) -> Notice {
        Notice {
            kind,
            generation: request.generation,
            version: request.version.clone(),
            servers: request.servers.clone(),
            started_at: request.started_at,
            detail: detail.to_owned(),
            at,
            attempts: 0,
            claim: None,
            extra: Extra::default(),
        }
    }

    /// Its id: each kind of event happens to a request once, so that an event written twice is one message.
    #[must_use]
    pub fn id(&self) -> NoticeId {
        let text = format!("{:020}-{}", self.generation, self.kind.name());
        NoticeId::new(text).unwrap_or_else(|_| unreachable!("digits and a word"))
    }

    /// The body that a Slack webhook takes.
    #[must_use]
    pub fn slack_json(&self, cluster: &str) -> serde_json::Value {
        let field = |title: &str, value: String, short: bool| serde_json::json!({ "title": title, "value": value, "short": short });
        let mut fields = vec![
            field("Cluster", cluster.to_owned(), true),
            field("Version", self.version.clone(), true),
            field("Servers", go_list(&self.servers), true),
            field("Started at", self.started_at.to_seconds_text(), true),
        ];
        if !self.detail.is_empty() {
            let title = match self.kind {
                NoticeKind::Start | NoticeKind::Success => "Detail",
                NoticeKind::Failure | NoticeKind::Timeout => "Reason",
            };
            fields.push(field(title, self.detail.clone(), false));
        }
        serde_json::json!({
            "attachments": [{
                "color": self.kind.color(),
                "author_name": "Boot server updater",
                "title": self.title(),
                "text": self.kind.text(),
                "fields": fields,
                "footer": self.id().as_str(),
            }]
        })
    }

    fn title(&self) -> &'static str {
        match self.kind {
            NoticeKind::Start => "Update begins",
            NoticeKind::Success => "Update completed",
            NoticeKind::Failure => "Update failed",
            NoticeKind::Timeout => "Update timed out",
        }
    }
}
