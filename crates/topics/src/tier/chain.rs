//! Which object holds a message, and are any missing? Pure: the descriptors of one topic, by their first offset.

use std::collections::BTreeMap;

use crate::status::TierObject;

/// The objects of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain {
    objects: BTreeMap<u64, TierObject>,
}

/// Messages that no object holds although there are some before and behind them: the first offset and the one behind.
pub(crate) type Gap = (u64, u64);

impl Chain {
    pub(crate) fn new(objects: impl IntoIterator<Item = TierObject>) -> Chain {
        Chain { objects: objects.into_iter().map(|object| (object.start_offset, object)).collect() }
    }

    pub(crate) fn push(&mut self, object: TierObject) {
        self.objects.insert(object.start_offset, object);
    }

    pub(crate) fn drop_before(&mut self, offset: u64) {
        self.objects.retain(|_, object| object.end_offset >= offset);
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = &TierObject> {
        self.objects.values()
    }

    /// The first offset.
    pub(crate) fn start(&self) -> Option<u64> {
        self.objects.first_key_value().map(|(start, _)| *start)
    }

    /// The offset behind the last.
    pub(crate) fn end(&self) -> Option<u64> {
        self.objects.last_key_value().map(|(_, object)| object.end_offset + 1)
    }

    /// The object that holds a message, or else the next one behind it.
    pub(crate) fn find(&self, offset: u64) -> Option<&TierObject> {
        let here = self.objects.range(..=offset).next_back().map(|(_, object)| object);
        here.filter(|object| offset <= object.end_offset)
            .or_else(|| self.objects.range(offset..).next().map(|(_, object)| object))
    }

    /// The first object with a message that was taken at this time or later.
    pub(crate) fn at(&self, time: u64) -> Option<&TierObject> {
        self.objects.values().find(|object| object.max_time >= time)
    }

    /// What is missing up to an offset where something else goes on.
    pub(crate) fn gaps(&self, end: Option<u64>) -> Vec<Gap> {
        let starts = self.objects.keys().copied().skip(1).chain(end);
        let ends = self.objects.values().map(|object| object.end_offset + 1);
        ends.zip(starts).filter(|(end, start)| start > end).collect()
    }

    /// The objects that retention drops: oldest first, while the rest is too old or too large.
    pub(crate) fn expired(&self, oldest: u64, max_bytes: u64) -> Vec<&TierObject> {
        let mut bytes: u64 = self.objects.values().map(|object| object.size).sum();
        let mut expired = Vec::new();
        for object in self.objects.values() {
            if object.max_time >= oldest && (max_bytes == 0 || bytes <= max_bytes) {
                break;
            }
            bytes -= object.size;
            expired.push(object);
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(start_offset: u64, end_offset: u64) -> TierObject {
        TierObject {
            completed: true,
            created_at: 0,
            end_offset,
            etag: None,
            object_id: String::new(),
            offset_index: vec![(start_offset, 0)],
            size: 100,
            start_offset,
            checksum: 0,
            max_time: end_offset,
            compacted: None,
        }
    }

    #[test]
    fn messages_are_found_and_gaps_are_seen() {
        let chain = Chain::new([object(0, 9), object(10, 19), object(25, 29)]);
        assert_eq!((chain.start(), chain.end()), (Some(0), Some(30)));
        let found = |offset| chain.find(offset).map(|object| object.start_offset);
        assert_eq!([found(0), found(9), found(10)], [Some(0), Some(0), Some(10)]);
        assert_eq!([found(20), found(29), found(30)], [Some(25), Some(25), None]);
        assert_eq!(chain.gaps(Some(30)), [(20, 25)]);
        assert_eq!(chain.gaps(Some(28)), [(20, 25)], "the log may still have what was uploaded");
        assert_eq!(chain.gaps(Some(31)), [(20, 25), (30, 31)]);
        assert_eq!(Chain::default().gaps(Some(5)), []);
        assert_eq!(chain.at(15).map(|object| object.start_offset), Some(10));
    }

    #[test]
    fn the_oldest_objects_expire_by_time_and_by_size() {
        let chain = Chain::new([object(0, 9), object(10, 19), object(20, 29)]);
        let count = |oldest, bytes| chain.expired(oldest, bytes).len();
        assert_eq!([count(0, 0), count(9, 0), count(10, 0), count(20, 0)], [0, 0, 1, 2]);
        assert_eq!([count(0, 300), count(0, 299), count(0, 1)], [0, 1, 3]);
        let mut chain = chain.clone();
        chain.drop_before(15);
        assert_eq!(chain.start(), Some(10));
    }
}
