//! What travels over a queue while a token is copied: requests for batches and batches. Pure.
//!
//! A message names its job by a random id, and a batch names the key behind which it begins. That is what makes lost,
//! doubled, late and reordered messages harmless: the receiver takes the one batch that continues what it has.

use std::io::{self, Read};

use bson::Binary;
use bson::spec::BinarySubtype;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::storage::StorageError;

/// The first byte of a ticket. A pair begins with the high byte of a length, which is never so large.
const MARK: u8 = 0xff;
/// The version of tickets and messages.
const VERSION: u8 = 1;
/// The longest ticket that is believed.
const MAX_TICKET: usize = 4 * 1024;

/// What a receiver gets in place of a snapshot: which job to ask for, and which node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticket {
    pub(crate) job: String,
    pub(crate) from: String,
}

impl Ticket {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StorageError> {
        let body = bson::serialize_to_vec(self).map_err(|error| StorageError(error.to_string()))?;
        Ok([&[MARK, VERSION][..], &body].concat())
    }

    /// Reads the ticket that a snapshot consists of, or gives back what was read of a snapshot of pairs.
    pub(crate) fn read(from: &mut dyn Read) -> io::Result<Result<Ticket, Vec<u8>>> {
        let mut first = [0; 1];
        if from.read(&mut first)? == 0 {
            return Ok(Err(Vec::new()));
        }
        if first[0] != MARK {
            return Ok(Err(first.to_vec()));
        }
        let mut rest = Vec::new();
        from.take(MAX_TICKET as u64).read_to_end(&mut rest)?;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
        match rest.split_first() {
            Some((&VERSION, body)) => {
                let ticket = bson::deserialize_from_slice(body);
                ticket.map(Ok).map_err(|error| invalid(format!("a ticket cannot be read: {error}")))
            }
            Some(_) | None => Err(invalid("a ticket has another version".to_owned())),
        }
    }
}

/// Some pairs of a copy in key order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// The key behind which it begins; nothing: at the beginning.
    after: Option<Binary>,
    /// The pairs, each as two lengths and the bytes.
    pairs: Binary,
    /// The last key; nothing if there are no more pairs.
    next: Option<Binary>,
    /// A hash of the above.
    check: Binary,
}

impl Batch {
    pub(crate) fn new(after: Option<&[u8]>, pairs: Vec<u8>, next: Option<Vec<u8>>) -> Batch {
        let check = binary(digest(after, &pairs, next.as_deref()));
        Batch {
            after: after.map(|key| binary(key.to_vec())),
            pairs: binary(pairs),
            next: next.map(binary),
            check,
        }
    }

    /// Whether it is as it was sent.
    pub(crate) fn is_sound(&self) -> bool {
        self.check.bytes == digest(self.after(), self.pairs(), self.next())
    }

    pub(crate) fn after(&self) -> Option<&[u8]> {
        self.after.as_ref().map(|key| &key.bytes[..])
    }

    pub(crate) fn next(&self) -> Option<&[u8]> {
        self.next.as_ref().map(|key| &key.bytes[..])
    }

    pub(crate) fn pairs(&self) -> &[u8] {
        &self.pairs.bytes
    }
}

fn digest(after: Option<&[u8]>, pairs: &[u8], next: Option<&[u8]>) -> Vec<u8> {
    let mut hash = Sha256::new();
    for part in [after, Some(pairs), next] {
        let length = part.map_or(u64::MAX, |part| part.len() as u64);
        hash.update(length.to_be_bytes());
        hash.update(part.unwrap_or_default());
    }
    hash.finalize().to_vec()
}

fn binary(bytes: Vec<u8>) -> Binary {
    Binary { subtype: BinarySubtype::Generic, bytes }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// To the master: the pairs behind a key, please.
    RequestNextBatch { job: String, to: String, after: Option<Binary> },
    /// To the receiver.
    DataBatch { job: String, batch: Batch },
    /// To the receiver: the master has no such job any more.
    Unknown { job: String },
    /// To the master: the receiver has everything.
    Completed { job: String },
}

impl Message {
    pub(crate) fn request(job: &str, to: &str, after: Option<&[u8]>) -> Message {
        let after = after.map(|key| binary(key.to_vec()));
        Message::RequestNextBatch { job: job.to_owned(), to: to.to_owned(), after }
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, StorageError> {
        let body = bson::serialize_to_vec(self).map_err(|error| StorageError(error.to_string()))?;
        Ok([&[VERSION][..], &body].concat())
    }

    /// Decodes a message; nothing if it is not one, or is damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        let (&VERSION, body) = bytes.split_first()? else { return None };
        let message: Message = bson::deserialize_from_slice(body).ok()?;
        match &message {
            Message::DataBatch { batch, .. } if !batch.is_sound() => None,
            Message::DataBatch { .. }
            | Message::RequestNextBatch { .. }
            | Message::Unknown { .. }
            | Message::Completed { .. } => Some(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_the_wire_and_damaged_ones_are_refused() {
        let batch = Batch::new(Some(b"k1"), b"pairs".to_vec(), Some(b"k2".to_vec()));
        let job = "0123".to_owned();
        let messages = [
            Message::request(&job, "n4", None),
            Message::request(&job, "n4", Some(b"k1")),
            Message::DataBatch { job: job.clone(), batch },
            Message::Unknown { job: job.clone() },
            Message::Completed { job },
        ];
        for message in messages {
            let bytes = message.encode().unwrap();
            assert_eq!(Message::decode(&bytes).as_ref(), Some(&message));
            for end in 0..bytes.len() {
                assert_ne!(Message::decode(&bytes[..end]).as_ref(), Some(&message));
            }
        }
        let batch = Batch::new(None, b"pairs".to_vec(), None);
        let mut bytes = Message::DataBatch { job: "1".to_owned(), batch }.encode().unwrap();
        let at = bytes.windows(5).position(|window| window == b"pairs").unwrap();
        bytes[at] ^= 1;
        assert_eq!(Message::decode(&bytes), None);
    }

    #[test]
    fn a_ticket_is_told_from_a_snapshot_of_pairs() {
        let ticket = Ticket { job: "0123".to_owned(), from: "n1".to_owned() };
        let bytes = ticket.encode().unwrap();
        assert_eq!(Ticket::read(&mut &bytes[..]).unwrap(), Ok(ticket));
        assert_eq!(Ticket::read(&mut &b""[..]).unwrap(), Err(Vec::new()));
        assert_eq!(Ticket::read(&mut &[0, 0, 0, 1][..]).unwrap(), Err(vec![0]));
        assert!(Ticket::read(&mut &bytes[..5]).is_err());
        assert!(Ticket::read(&mut &[MARK, 9][..]).is_err());
    }
}
