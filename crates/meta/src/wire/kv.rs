//! The KV service: reads, writes, transactions, compaction.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream;
use prost::Message;
use tonic::{Code, Request, Response, Status};

use super::codec::WireKv;
use super::proto::etcdserverpb as pb;
use super::proto::etcdserverpb::kv_server::Kv;
use super::service::Wire;
use super::status::{refuse, status};
use super::txn;
use crate::error::MetaError;
use crate::kv::Revision;
use crate::request::{RangeResult, SortOrder, SortTarget};

/// A part of a streamed range is closed when it has grown to this size.
const CHUNK_BYTES: usize = 512 << 10;

/// A stream of answers.
pub(super) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Wire {
    /// Refuses what is too large to be written, by the size of its parts.
    fn check_size(&self, bytes: usize) -> Result<(), Status> {
        if bytes > self.options.limits.request_bytes { Err(status(MetaError::TooLarge)) } else { Ok(()) }
    }
}

#[tonic::async_trait]
impl Kv for Wire {
    async fn range(
        self: Arc<Self>,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        let range = txn::range(request)?;
        let permit = self.permit(&metadata).await?;
        permit.read(&range.keys)?;
        let result = self.backend.range(range).await.map_err(status)?;
        Ok(Response::new(txn::range_response(self.header(result.revision), result)))
    }

    type RangeStreamStream = Answers<pb::RangeStreamResponse>;

    async fn range_stream(
        self: Arc<Self>,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let (metadata, _, request) = request.into_parts();
        let range = txn::range(request)?;
        let filters = [
            range.min_mod_revision,
            range.max_mod_revision,
            range.min_create_revision,
            range.max_create_revision,
        ];
        let plain = range.order == SortOrder::None && range.sort_by == SortTarget::Key;
        if !plain || filters.iter().any(|filter| *filter != Revision::ZERO) {
            return Err(refuse(Code::Unimplemented, "range stream takes neither order nor revision filters"));
        }
        let permit = self.permit(&metadata).await?;
        permit.read(&range.keys)?;
        let result = self.backend.range(range).await.map_err(status)?;
        let header = self.header(result.revision);
        Ok(Response::new(Box::pin(stream::iter(chunks(header, result).map(Ok)))))
    }

    async fn put(
        self: Arc<Self>,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.check_size(request.key.len() + request.value.len())?;
        let permit = self.permit(&metadata).await?;
        let put = txn::put(request);
        permit.put(&put, &*self.backend).await?;
        let result = self.backend.put(put).await.map_err(status)?;
        Ok(Response::new(txn::put_response(self.header(result.revision), result)))
    }

    async fn delete_range(
        self: Arc<Self>,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.check_size(request.key.len() + request.range_end.len())?;
        let permit = self.permit(&metadata).await?;
        let delete = txn::delete(request);
        permit.delete(&delete)?;
        let result = self.backend.delete(delete).await.map_err(status)?;
        Ok(Response::new(txn::delete_response(self.header(result.revision), result)))
    }

    async fn txn(
        self: Arc<Self>,
        request: Request<pb::TxnRequest>,
    ) -> Result<Response<pb::TxnResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.check_size(request.encoded_len())?;
        let txn = txn::txn(request)?;
        let permit = self.permit(&metadata).await?;
        permit.txn(&txn, &*self.backend).await?;
        let result = self.backend.commit(txn).await.map_err(status)?;
        Ok(Response::new(txn::txn_response(self.header(result.revision), result)))
    }

    async fn compact(
        self: Arc<Self>,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        // Whether the caller waits for the physical removal is the store's affair: it answers when it is done.
        let permit = self.permit(request.metadata()).await?;
        permit.root()?;
        let revision = Revision(request.get_ref().revision);
        let now = self.backend.compact(revision).await.map_err(status)?;
        Ok(Response::new(pb::CompactionResponse { header: self.header(now) }))
    }
}

/// A range in parts: pairs in all of them, everything else in the last. Pairs are shared with the store, so the whole
/// answer is held as pointers until each part is encoded.
fn chunks(
    header: Option<pb::ResponseHeader>,
    result: RangeResult,
) -> impl Iterator<Item = pb::RangeStreamResponse> + Send {
    let RangeResult { kvs, more, count, .. } = result;
    let mut rest = kvs.into_iter().map(WireKv).peekable();
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let mut part = pb::RangeResponse::default();
        let mut size = 0;
        while size < CHUNK_BYTES {
            let Some(kv) = rest.next() else { break };
            size += kv.encoded_len();
            part.kvs.push(kv);
        }
        if rest.peek().is_none() {
            done = true;
            part.header = header;
            part.more = more;
            part.count = i64::try_from(count).unwrap_or(i64::MAX);
        }
        Some(pb::RangeStreamResponse { range_response: Some(part) })
    })
}
