//! How do messages become bytes without needless copies? A key-value pair on the wire is the store's own pair (shared,
//! not copied), and an answer is encoded into a buffer that is allocated once.

use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use prost::DecodeError;
use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{self, DecodeContext, WireType};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::kv::{KeyValue, LeaseId, Revision};

/// First allocation for a message in either direction. Most requests fit; larger ones grow to their exact size. (The
/// default of 8 KiB is beyond what allocators keep ready per thread.)
const BUFFER_BYTES: usize = 512;
/// A stream of ready messages is handed to HTTP/2 in pieces of about this size.
const YIELD_BYTES: usize = 32 * 1024;

/// `mvccpb.KeyValue`: the store's own pair, shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WireKv(pub Arc<KeyValue>);

impl Hash for WireKv {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key.hash(state);
        self.0.mod_revision.hash(state);
    }
}

impl Message for WireKv {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        let kv = &*self.0;
        put_bytes(1, &kv.key, buf);
        put_int(2, kv.create_revision.0, buf);
        put_int(3, kv.mod_revision.0, buf);
        put_int(4, kv.version, buf);
        put_bytes(5, &kv.value, buf);
        put_int(6, kv.lease.0, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let kv = Arc::make_mut(&mut self.0);
        match tag {
            1 => encoding::bytes::merge(wire_type, &mut kv.key, buf, ctx),
            2 => encoding::int64::merge(wire_type, &mut kv.create_revision.0, buf, ctx),
            3 => encoding::int64::merge(wire_type, &mut kv.mod_revision.0, buf, ctx),
            4 => encoding::int64::merge(wire_type, &mut kv.version, buf, ctx),
            5 => encoding::bytes::merge(wire_type, &mut kv.value, buf, ctx),
            6 => encoding::int64::merge(wire_type, &mut kv.lease.0, buf, ctx),
            _ => encoding::skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let KeyValue {
            key,
            value,
            create_revision: Revision(create),
            mod_revision: Revision(modified),
            version,
            lease: LeaseId(lease),
        } = &*self.0;
        bytes_len(key)
            + bytes_len(value)
            + int_len(*create)
            + int_len(*modified)
            + int_len(*version)
            + int_len(*lease)
    }

    fn clear(&mut self) {
        self.0 = Arc::default();
    }
}

fn put_bytes(tag: u32, bytes: &[u8], buf: &mut impl BufMut) {
    if !bytes.is_empty() {
        encoding::encode_key(tag, WireType::LengthDelimited, buf);
        encoding::encode_varint(bytes.len() as u64, buf);
        buf.put_slice(bytes);
    }
}

fn put_int(tag: u32, value: i64, buf: &mut impl BufMut) {
    if value != 0 {
        encoding::encode_key(tag, WireType::Varint, buf);
        encoding::encode_varint(value as u64, buf);
    }
}

/// Length of a field with a one-byte key.
fn bytes_len(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { 1 + encoding::encoded_len_varint(bytes.len() as u64) + bytes.len() }
}

/// Length of a field with a one-byte key.
fn int_len(value: i64) -> usize {
    if value == 0 { 0 } else { 1 + encoding::encoded_len_varint(value as u64) }
}

/// Protobuf for gRPC, with buffers of the right size.
#[derive(Debug)]
pub struct WireCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for WireCodec<T, U> {
    fn default() -> WireCodec<T, U> {
        WireCodec(PhantomData)
    }
}

impl<T, U> Codec for WireCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = WireEncoder<T>;
    type Decoder = WireDecoder<U>;

    fn encoder(&mut self) -> WireEncoder<T> {
        WireEncoder(PhantomData)
    }

    fn decoder(&mut self) -> WireDecoder<U> {
        WireDecoder(PhantomData)
    }
}

/// Writes messages of one type.
#[derive(Debug)]
pub struct WireEncoder<T>(PhantomData<T>);

impl<T: Message> Encoder for WireEncoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.reserve(item.encoded_len());
        item.encode_raw(buf);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

/// Reads messages of one type.
#[derive(Debug)]
pub struct WireDecoder<U>(PhantomData<U>);

impl<U: Message + Default> Decoder for WireDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        U::decode(buf)
            .map(Some)
            .map_err(|error| Status::internal(format!("grpc: error unmarshalling request: {error}")))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the derive macro makes of the same message.
    #[derive(Clone, PartialEq, Message)]
    struct Plain {
        #[prost(bytes = "bytes", tag = "1")]
        key: bytes::Bytes,
        #[prost(int64, tag = "2")]
        create_revision: i64,
        #[prost(int64, tag = "3")]
        mod_revision: i64,
        #[prost(int64, tag = "4")]
        version: i64,
        #[prost(bytes = "bytes", tag = "5")]
        value: bytes::Bytes,
        #[prost(int64, tag = "6")]
        lease: i64,
    }

    fn pair(key: &'static str, value: &'static str, numbers: [i64; 4]) -> (Plain, WireKv) {
        let [create, modified, version, lease] = numbers;
        let plain = Plain {
            key: key.into(),
            create_revision: create,
            mod_revision: modified,
            version,
            value: value.into(),
            lease,
        };
        let wire = WireKv(Arc::new(KeyValue {
            key: key.into(),
            value: value.into(),
            create_revision: Revision(create),
            mod_revision: Revision(modified),
            version,
            lease: LeaseId(lease),
        }));
        (plain, wire)
    }

    #[test]
    fn a_shared_pair_is_encoded_like_any_other_message() {
        for (plain, wire) in [
            pair("", "", [0; 4]),
            pair("key", "value", [2, 300, 1, 0]),
            pair("key", "", [i64::MAX, 1 << 40, 127, -1]),
            pair("k", "v", [128, 128, 128, i64::MIN]),
        ] {
            assert_eq!(wire.encode_to_vec(), plain.encode_to_vec());
            assert_eq!(wire.encoded_len(), plain.encoded_len());
            assert_eq!(WireKv::decode(&plain.encode_to_vec()[..]).unwrap(), wire);
        }
    }
}
