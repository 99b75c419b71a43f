//! How does a token get to another node? In batches, and this is how a job goes from one to the next. One table, with the
//! names of the specification.

use serde::{Deserialize, Serialize};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JobState {
    /// The receiver was chosen.
    Started,
    /// The receiver asks for the next batch.
    RequestNextBatch,
    /// The master sends a batch.
    SendDataBatch,
    /// Documents of a batch are under way and are inserted.
    TransferData,
    /// A batch has ended.
    BatchEnd,
    /// There is no more data: the receiver has everything.
    Completed,
}

/// What happens to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// The receiver has opened its copy.
    ReceiverReady,
    /// The master answers a request.
    MasterAnswers,
    /// Documents of the batch are sent.
    Transfer,
    /// Documents of the batch are inserted; the next ones follow.
    Iterate,
    /// The batch is sent.
    BatchSent,
    /// The batch did not come in time.
    Timeout,
    /// The receiver asks again, after a batch of so many documents.
    Requested(u64),
    /// The receiver has everything.
    NoMoreData,
}

/// A job as it is stored: what changes with its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// Its state.
    pub state: JobState,
    /// The receiver has asked for a batch that has not begun.
    pub sent_next_batch: bool,
    /// The batch has ended.
    pub batch_done: bool,
    /// Documents and deletions that the receiver has, of all batches that have ended.
    pub done: u64,
    /// The receiver that asks for batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
}

impl JobProgress {
    /// A job that has just begun.
    #[must_use]
    pub fn started() -> JobProgress {
        JobProgress {
            state: JobState::Started,
            sent_next_batch: false,
            batch_done: false,
            done: 0,
            queue: None,
        }
    }

    /// The job after an event; nothing if the event has no meaning in its state.
    #[must_use]
    pub fn step(&self, event: JobEvent, receiver: &str) -> Option<JobProgress> {
        use JobState::{BatchEnd, Completed, RequestNextBatch, SendDataBatch, Started, TransferData};
        let to = match (self.state, event) {
            (Started, JobEvent::ReceiverReady)
            | (SendDataBatch, JobEvent::Timeout)
            | (BatchEnd, JobEvent::Requested(_)) => RequestNextBatch,
            (RequestNextBatch, JobEvent::MasterAnswers) | (TransferData, JobEvent::Iterate) => SendDataBatch,
            (SendDataBatch, JobEvent::Transfer) => TransferData,
            (SendDataBatch, JobEvent::BatchSent) => BatchEnd,
            (SendDataBatch, JobEvent::NoMoreData) => Completed,
            _ => return None,
        };
        let count = if let JobEvent::Requested(count) = event { count } else { 0 };
        Some(JobProgress {
            state: to,
            sent_next_batch: to == RequestNextBatch,
            batch_done: matches!(to, BatchEnd | Completed),
            done: self.done + count,
            queue: if to == RequestNextBatch { Some(receiver.to_owned()) } else { self.queue.clone() },
        })
    }

    /// The job after several events, as far as they have a meaning.
    #[must_use]
    pub fn steps(&self, events: &[JobEvent], receiver: &str) -> JobProgress {
        events.iter().fold(self.clone(), |job, event| job.step(*event, receiver).unwrap_or(job))
    }
}

/// What the receiver sees when it looks at a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Its copy is not open yet.
    Nothing,
    /// So many more entries of the token were applied since the last look.
    Progress(u64),
    /// Its copy is complete.
    Complete,
}

/// What has happened to a job since the last look, in order.
#[must_use]
pub fn events(state: JobState, seen: Seen, last_batch: u64) -> Vec<JobEvent> {
    use JobEvent::{BatchSent, Iterate, MasterAnswers, NoMoreData, ReceiverReady, Requested, Transfer};
    let mut events = match state {
        JobState::Started => vec![ReceiverReady],
        JobState::BatchEnd => vec![Requested(last_batch)],
        JobState::TransferData => vec![Iterate],
        JobState::RequestNextBatch | JobState::SendDataBatch | JobState::Completed => Vec::new(),
    };
    match seen {
        Seen::Nothing => Vec::new(),
        Seen::Progress(0) => events,
        Seen::Progress(_) => {
            events.extend([MasterAnswers, Transfer, Iterate, BatchSent]);
            events
        }
        Seen::Complete => {
            events.extend([MasterAnswers, NoMoreData]);
            events
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [JobState; 6] = [
        JobState::Started,
        JobState::RequestNextBatch,
        JobState::SendDataBatch,
        JobState::TransferData,
        JobState::BatchEnd,
        JobState::Completed,
    ];
    const EVENTS: [JobEvent; 8] = [
        JobEvent::ReceiverReady,
        JobEvent::MasterAnswers,
        JobEvent::Transfer,
        JobEvent::Iterate,
        JobEvent::BatchSent,
        JobEvent::Timeout,
        JobEvent::Requested(3),
        JobEvent::NoMoreData,
    ];

    #[test]
    fn every_pair_of_state_and_event_is_as_specified() {
        let mut pairs = Vec::new();
        for state in STATES {
            for event in EVENTS {
                let job = JobProgress { state, ..JobProgress::started() };
                if let Some(next) = job.step(event, "docs.n4") {
                    let flags = (next.sent_next_batch, next.batch_done, next.done);
                    pairs.push(format!("{state:?} {event:?} {:?} {flags:?}", next.state));
                }
            }
        }
        let expected = [
            "Started ReceiverReady RequestNextBatch (true, false, 0)",
            "RequestNextBatch MasterAnswers SendDataBatch (false, false, 0)",
            "SendDataBatch Transfer TransferData (false, false, 0)",
            "SendDataBatch BatchSent BatchEnd (false, true, 0)",
            "SendDataBatch Timeout RequestNextBatch (true, false, 0)",
            "SendDataBatch NoMoreData Completed (false, true, 0)",
            "TransferData Iterate SendDataBatch (false, false, 0)",
            "BatchEnd Requested(3) RequestNextBatch (true, false, 3)",
        ];
        assert_eq!(pairs, expected);
    }

    #[test]
    fn a_job_from_its_start_to_its_end() {
        let mut job = JobProgress::started();
        let fields = serde_json::to_value(&job).unwrap();
        let expected =
            serde_json::json!({ "state": "Started", "sentNextBatch": false, "batchDone": false, "done": 0 });
        assert_eq!(fields, expected);
        let mut last = 0;
        let looks = [
            (Seen::Nothing, JobState::Started, 0),
            (Seen::Progress(0), JobState::RequestNextBatch, 0),
            (Seen::Progress(40), JobState::BatchEnd, 0),
            (Seen::Progress(0), JobState::RequestNextBatch, 40),
            (Seen::Progress(7), JobState::BatchEnd, 40),
            (Seen::Complete, JobState::Completed, 47),
        ];
        for (seen, state, done) in looks {
            job = job.steps(&events(job.state, seen, last), "docs.n4");
            if let Seen::Progress(count) = seen {
                last = count;
            }
            assert_eq!((job.state, job.done), (state, done), "{seen:?}");
        }
        assert_eq!(job.queue.as_deref(), Some("docs.n4"));
    }
}
