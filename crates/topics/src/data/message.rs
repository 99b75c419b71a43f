//! A message: nullable key and value, ordered headers, creation and append time.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use super::envelope::Envelope;
use crate::error::TopicsError;
use crate::wire::capstan::topics::v1 as own;
use crate::wire::danube::{MsgId, StreamMessage};

/// Bytes of the length before a record, at most.
const LENGTH_BYTES: usize = 5;

/// One record, as it is stored.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Record {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub(crate) key: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) value: Option<Bytes>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) headers: Vec<Header>,
    /// Milliseconds since 1970.
    #[prost(uint64, tag = "4")]
    pub(crate) created_at: u64,
    #[prost(string, tag = "5")]
    pub(crate) producer: String,
    /// The number that the producer gave the request.
    #[prost(uint64, tag = "6")]
    pub(crate) request_id: u64,
    #[prost(uint64, optional, tag = "7")]
    pub(crate) schema_id: Option<u64>,
    #[prost(uint32, optional, tag = "8")]
    pub(crate) schema_version: Option<u32>,
    /// Not delivered before this time.
    #[prost(uint64, tag = "9")]
    pub(crate) deliver_at: u64,
}

/// A header: names may come twice, values may be null.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub(crate) value: Option<Bytes>,
}

/// A record at its place in a topic.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) offset: u64,
    pub(crate) producer_id: u64,
    /// When the leader took it, in milliseconds since 1970.
    pub(crate) append_time: u64,
    pub(crate) record: Record,
}

impl Record {
    /// The record that a client of the compatible wire sends.
    pub(crate) fn of_wire(message: StreamMessage) -> Record {
        let mut headers: Vec<Header> = message
            .attributes
            .into_iter()
            .map(|(name, value)| Header { name, value: Some(Bytes::from(value)) })
            .collect();
        headers.sort_by(|a, b| a.name.cmp(&b.name));
        Record {
            key: message.routing_key.map(Bytes::from),
            value: Some(message.payload),
            headers,
            created_at: message.publish_time,
            producer: message.producer_name,
            request_id: message.request_id,
            schema_id: message.schema_id,
            schema_version: message.schema_version,
            deliver_at: 0,
        }
    }

    /// The record that a client of our own wire sends.
    pub(crate) fn of_own(record: own::Record, producer: &str) -> Record {
        let headers =
            record.headers.into_iter().map(|header| Header { name: header.name, value: header.value });
        Record {
            key: record.key,
            value: record.value,
            headers: headers.collect(),
            created_at: record.created_at,
            producer: producer.to_owned(),
            deliver_at: record.deliver_at,
            ..Record::default()
        }
    }

    /// Bytes of key and value, which the limits of namespaces are about.
    pub(crate) fn size(&self) -> usize {
        self.value.as_ref().map_or(0, Bytes::len) + self.key.as_ref().map_or(0, Bytes::len)
    }

    /// Bytes of everything that is stored, headers included: what bounds of memory and of the log are about.
    pub(crate) fn stored_size(&self) -> usize {
        self.encoded_len()
    }

    /// Whether it removes its key where a topic is compacted.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.key.is_some() && self.value.as_ref().is_none_or(Bytes::is_empty)
    }

    /// What ties messages together: their key, otherwise their producer.
    pub(crate) fn ordering_key(&self) -> &[u8] {
        self.key.as_deref().unwrap_or(self.producer.as_bytes())
    }
}

impl Message {
    /// The message as the compatible wire has it.
    pub(crate) fn to_wire(&self, topic: &str, broker: &str, subscription: &str) -> StreamMessage {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let headers = self.record.headers.iter();
        let attributes: HashMap<String, String> = headers
            .map(|header| (header.name.clone(), header.value.as_ref().map(text).unwrap_or_default()))
            .collect();
        StreamMessage {
            request_id: self.record.request_id,
            msg_id: Some(MsgId {
                producer_id: self.producer_id,
                topic_name: topic.to_owned(),
                broker_addr: broker.to_owned(),
                topic_offset: self.offset,
            }),
            payload: self.record.value.clone().unwrap_or_default(),
            // A producer that gives no time gets that of its leader.
            publish_time: if self.record.created_at == 0 { self.append_time } else { self.record.created_at },
            producer_name: self.record.producer.clone(),
            subscription_name: subscription.to_owned(),
            attributes,
            schema_id: self.record.schema_id,
            schema_version: self.record.schema_version,
            routing_key: self.record.key.as_ref().map(text),
        }
    }
}

/// Bytes of the payload of an entry with these records, at most.
pub(crate) fn payload_size(records: &[Record]) -> usize {
    records.iter().map(|record| record.stored_size() + LENGTH_BYTES).sum()
}

/// The payload of an entry with these records.
pub(crate) fn encode(records: &[Record]) -> Result<Bytes, TopicsError> {
    let mut payload = BytesMut::with_capacity(payload_size(records));
    for record in records {
        let encoded = record.encode_length_delimited(&mut payload);
        encoded.map_err(|error| TopicsError::Invalid(format!("a message cannot be stored: {error}")))?;
    }
    Ok(payload.freeze())
}

/// The messages of an entry.
pub(crate) fn decode(entry: &Bytes) -> Result<Vec<Arc<Message>>, TopicsError> {
    let envelope = Envelope::open(entry)?;
    let mut payload = Envelope::payload(entry)?;
    (envelope.base_offset..envelope.end())
        .map(|offset| {
            let record = Record::decode_length_delimited(&mut payload)
                .map_err(|error| TopicsError::Corrupt(format!("message {offset} cannot be read: {error}")))?;
            let (producer_id, append_time) = (envelope.producer_id, envelope.append_time);
            Ok(Arc::new(Message { offset, producer_id, append_time, record }))
        })
        .collect()
}
