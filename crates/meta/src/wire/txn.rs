//! How does a request on the wire become one of the store's, and an answer of the store one on the wire?

use bytes::Bytes;
use tonic::{Code, Status};

use super::codec::WireKv;
use super::proto::etcdserverpb as pb;
use super::service::inner_header;
use super::status::{refuse, status};
use crate::error::MetaError;
use crate::kv::{KeyRange, LeaseId, Revision};
use crate::request::*;

pub(super) fn range(request: pb::RangeRequest) -> Result<Range, Status> {
    let order = pb::range_request::SortOrder::try_from(request.sort_order);
    let target = pb::range_request::SortTarget::try_from(request.sort_target);
    let (Ok(order), Ok(target)) = (order, target) else {
        return Err(status(if request.key.is_empty() {
            MetaError::EmptyKey
        } else {
            MetaError::InvalidSort
        }));
    };
    Ok(Range {
        keys: KeyRange::span(request.key, request.range_end),
        revision: Revision(request.revision),
        limit: usize::try_from(request.limit).unwrap_or(0),
        order: match order {
            pb::range_request::SortOrder::None => SortOrder::None,
            pb::range_request::SortOrder::Ascend => SortOrder::Ascend,
            pb::range_request::SortOrder::Descend => SortOrder::Descend,
        },
        sort_by: match target {
            pb::range_request::SortTarget::Key => SortTarget::Key,
            pb::range_request::SortTarget::Version => SortTarget::Version,
            pb::range_request::SortTarget::Create => SortTarget::CreateRevision,
            pb::range_request::SortTarget::Mod => SortTarget::ModRevision,
            pb::range_request::SortTarget::Value => SortTarget::Value,
        },
        detail: match (request.count_only, request.keys_only) {
            (true, _) => Detail::CountOnly,
            (false, true) => Detail::KeysOnly,
            (false, false) => Detail::Whole,
        },
        min_mod_revision: Revision(request.min_mod_revision),
        max_mod_revision: Revision(request.max_mod_revision),
        min_create_revision: Revision(request.min_create_revision),
        max_create_revision: Revision(request.max_create_revision),
    })
}

pub(super) fn put(request: pb::PutRequest) -> Put {
    Put {
        // Both share the connection's buffer; the store copies what it keeps.
        key: request.key,
        value: request.value,
        lease: LeaseId(request.lease),
        prev_kv: request.prev_kv,
        ignore_value: request.ignore_value,
        ignore_lease: request.ignore_lease,
    }
}

pub(super) fn delete(request: pb::DeleteRangeRequest) -> Delete {
    Delete { keys: KeyRange::span(request.key, request.range_end), prev_kv: request.prev_kv }
}

pub(super) fn txn(request: pb::TxnRequest) -> Result<Txn, Status> {
    Ok(Txn {
        compares: request.compare.into_iter().map(compare).collect::<Result<_, _>>()?,
        success: request.success.into_iter().map(op).collect::<Result<_, _>>()?,
        failure: request.failure.into_iter().map(op).collect::<Result<_, _>>()?,
    })
}

fn op(op: pb::RequestOp) -> Result<Op, Status> {
    use pb::request_op::Request;
    match op.request {
        Some(Request::RequestRange(request)) => Ok(Op::Range(range(request)?)),
        Some(Request::RequestPut(request)) => Ok(Op::Put(put(request))),
        Some(Request::RequestDeleteRange(request)) => Ok(Op::Delete(delete(request))),
        Some(Request::RequestTxn(request)) => Ok(Op::Txn(txn(request)?)),
        None => Err(status(MetaError::KeyNotFound)),
    }
}

fn compare(compare: pb::Compare) -> Result<Compare, Status> {
    use pb::compare::{CompareResult, CompareTarget as Kind, TargetUnion};
    let (Ok(result), Ok(kind)) = (CompareResult::try_from(compare.result), Kind::try_from(compare.target))
    else {
        return Err(refuse(Code::InvalidArgument, "invalid compare in txn request"));
    };
    // A target that does not match its kind counts as none, which is zero.
    let target = match (kind, compare.target_union) {
        (Kind::Version, Some(TargetUnion::Version(version))) => CompareTarget::Version(version),
        (Kind::Version, _) => CompareTarget::Version(0),
        (Kind::Create, Some(TargetUnion::CreateRevision(at))) => CompareTarget::CreateRevision(Revision(at)),
        (Kind::Create, _) => CompareTarget::CreateRevision(Revision::ZERO),
        (Kind::Mod, Some(TargetUnion::ModRevision(at))) => CompareTarget::ModRevision(Revision(at)),
        (Kind::Mod, _) => CompareTarget::ModRevision(Revision::ZERO),
        (Kind::Value, Some(TargetUnion::Value(value))) => CompareTarget::Value(value),
        (Kind::Value, _) => CompareTarget::Value(Bytes::new()),
        (Kind::Lease, Some(TargetUnion::Lease(lease))) => CompareTarget::Lease(LeaseId(lease)),
        (Kind::Lease, _) => CompareTarget::Lease(LeaseId::NONE),
    };
    let relation = match result {
        CompareResult::Equal => Relation::Equal,
        CompareResult::Greater => Relation::Greater,
        CompareResult::Less => Relation::Less,
        CompareResult::NotEqual => Relation::NotEqual,
    };
    Ok(Compare { keys: KeyRange::span(compare.key, compare.range_end), target, relation })
}

pub(super) fn range_response(header: Option<pb::ResponseHeader>, result: RangeResult) -> pb::RangeResponse {
    pb::RangeResponse {
        header,
        kvs: result.kvs.into_iter().map(WireKv).collect(),
        more: result.more,
        count: signed(result.count),
    }
}

pub(super) fn put_response(header: Option<pb::ResponseHeader>, result: PutResult) -> pb::PutResponse {
    pb::PutResponse { header, prev_kv: result.prev.map(WireKv) }
}

pub(super) fn delete_response(
    header: Option<pb::ResponseHeader>,
    result: DeleteResult,
) -> pb::DeleteRangeResponse {
    pb::DeleteRangeResponse {
        header,
        deleted: signed(result.deleted),
        prev_kvs: result.prev_kvs.into_iter().map(WireKv).collect(),
    }
}

pub(super) fn txn_response(header: Option<pb::ResponseHeader>, result: TxnResult) -> pb::TxnResponse {
    pb::TxnResponse {
        header,
        succeeded: result.succeeded,
        responses: result.responses.into_iter().map(op_response).collect(),
    }
}

fn op_response(result: OpResult) -> pb::ResponseOp {
    use pb::response_op::Response;
    let response = match result {
        OpResult::Range(r) => Response::ResponseRange(range_response(inner_header(r.revision), r)),
        OpResult::Put(r) => Response::ResponsePut(put_response(inner_header(r.revision), r)),
        OpResult::Delete(r) => Response::ResponseDeleteRange(delete_response(inner_header(r.revision), r)),
        OpResult::Txn(r) => Response::ResponseTxn(txn_response(inner_header(r.revision), r)),
    };
    pb::ResponseOp { response: Some(response) }
}

/// Counts are signed on the wire.
fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
