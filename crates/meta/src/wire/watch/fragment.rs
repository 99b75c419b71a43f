//! How is an answer cut that is too large for one message? Into parts that each fit, all but the last marked; an event
//! that alone is too large travels alone.

use prost::Message;

use crate::wire::proto::etcdserverpb::WatchResponse;

/// What a field of events costs beyond the event itself: its key and its length.
const WRAPPING: usize = 6;

/// The answer in as many parts as needed to stay below `limit` bytes each.
pub(super) fn fragments(mut whole: WatchResponse, limit: usize) -> Vec<WatchResponse> {
    if whole.encoded_len() < limit {
        return vec![whole];
    }
    let events = std::mem::take(&mut whole.events);
    let base = whole.encoded_len() + 2;
    let mut parts = Vec::new();
    let mut part = WatchResponse { fragment: true, ..whole.clone() };
    let mut size = base;
    for event in events {
        let cost = event.encoded_len() + WRAPPING;
        if !part.events.is_empty() && size + cost >= limit {
            parts.push(std::mem::replace(&mut part, WatchResponse { fragment: true, ..whole.clone() }));
            size = base;
        }
        size += cost;
        part.events.push(event);
    }
    part.fragment = false;
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kv::KeyValue;
    use crate::wire::codec::WireKv;
    use crate::wire::proto::mvccpb::Event;

    fn answer(sizes: &[usize]) -> WatchResponse {
        let events = sizes.iter().map(|size| Event {
            kv: Some(WireKv(Arc::new(KeyValue {
                key: "k".into(),
                value: vec![b'v'; *size].into(),
                version: 1,
                ..KeyValue::default()
            }))),
            ..Event::default()
        });
        WatchResponse { watch_id: 7, events: events.collect(), ..WatchResponse::default() }
    }

    #[test]
    fn a_small_answer_stays_whole() {
        let parts = fragments(answer(&[10, 10]), 1000);
        assert_eq!(parts, [answer(&[10, 10])]);
    }

    #[test]
    fn parts_fit_and_only_the_last_is_unmarked() {
        let parts = fragments(answer(&[300, 300, 300, 300, 5000, 10]), 1000);
        let shape: Vec<_> = parts.iter().map(|part| (part.events.len(), part.fragment)).collect();
        assert_eq!(shape, [(3, true), (1, true), (1, true), (1, false)]);
        assert!(parts.iter().all(|part| part.watch_id == 7));
        assert!(parts.iter().filter(|part| part.events.len() > 1).all(|part| part.encoded_len() < 1000));
    }
}
