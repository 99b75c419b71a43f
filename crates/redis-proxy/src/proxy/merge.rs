//! What is the one reply to a command that several nodes have answered?

use capstan_redis_protocol::resp::{Form, Protocol, View, Writer};

use super::accounts;

/// How the replies are merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Merge {
    /// Integers are summed: `DEL`, `EXISTS`, `DBSIZE`.
    Sum,
    /// All are equal: `+OK` of `MSET`, the digest of `SCRIPT LOAD`. The first is used.
    Same,
    /// Arrays are concatenated: `KEYS`.
    Concat,
    /// Arrays are merged by position: the n-th value of the client's command is the next of part `n`.
    Pick(Vec<u32>),
    /// Arrays of 0 and 1: 1 where all have 1 (`SCRIPT EXISTS`).
    Every,
    /// Arrays of pairs: the numbers of equal names are summed (`PUBSUB NUMSUB`).
    SumPairs,
    /// The union of arrays (`PUBSUB CHANNELS`).
    Union,
    /// Any that is not null: `RANDOMKEY`. The number is the part to begin with.
    AnyOf(u32),
    /// Known replies, with the parts filling the gaps: `EXEC`.
    Fill(Vec<Option<Vec<u8>>>),
    /// The minimum: `WAIT`.
    Least,
    /// Entries that begin with a number and a time: this many of the newest (`SLOWLOG GET`).
    Newest(usize),
    /// `LATENCY HISTOGRAM`.
    Histograms,
    /// The proxy's `INFO`, merged with that of the nodes.
    Info(String),
    /// A node's `CONFIG GET`, with the proxy's own values where it has them.
    Settings(Vec<(String, String)>),
    /// The first that is not an error, among parts of equal rank (`SCRIPT KILL`).
    FirstGood,
}

/// Merges the replies, in the order of the parts. An error of any part is the result.
pub(super) fn merge(how: &Merge, parts: &[Vec<u8>], protocol: Protocol) -> Vec<u8> {
    let good = |part: &&Vec<u8>| {
        part.first().and_then(|first| Form::of(*first)).is_some_and(|form| !form.is_error())
    };
    match how {
        Merge::Fill(pieces) => return filled(pieces, parts, protocol),
        Merge::Info(own) => return accounts::info(own, parts, protocol),
        Merge::Settings(own) => return accounts::settings(own, parts, protocol),
        Merge::FirstGood => return parts.iter().find(good).or(parts.first()).cloned().unwrap_or_default(),
        Merge::Sum
        | Merge::Same
        | Merge::Concat
        | Merge::Pick(_)
        | Merge::Every
        | Merge::SumPairs
        | Merge::Union
        | Merge::AnyOf(_)
        | Merge::Least
        | Merge::Newest(_)
        | Merge::Histograms => {}
    }
    if let Some(error) = parts.iter().find(|part| !good(part)) {
        return error.clone();
    }
    let mut reply = Vec::new();
    let mut writer = Writer::new(&mut reply, protocol);
    match how {
        Merge::Sum => writer.integer(integers(parts).sum()),
        Merge::Least => writer.integer(integers(parts).min().unwrap_or(0)),
        Merge::Same | Merge::FirstGood | Merge::Fill(_) | Merge::Info(_) | Merge::Settings(_) => {
            writer.raw(parts.first().map_or(&[], |part| part))
        }
        Merge::Concat => {
            let all: Vec<&[u8]> = parts.iter().flat_map(|part| children(part)).collect();
            array(&mut writer, &all);
        }
        Merge::Pick(owners) => {
            let mut queues: Vec<_> = parts.iter().map(|part| children(part)).collect();
            let next =
                |owner: &u32| queues.get_mut(*owner as usize).and_then(Iterator::next).unwrap_or(b"$-1\r\n");
            let all: Vec<&[u8]> = owners.iter().map(next).collect();
            array(&mut writer, &all);
        }
        Merge::Every => every(&mut writer, parts),
        Merge::SumPairs => sum_pairs(&mut writer, parts),
        Merge::Union => {
            let mut all: Vec<&[u8]> = parts.iter().flat_map(|part| children(part)).collect();
            all.sort_unstable();
            all.dedup();
            array(&mut writer, &all);
        }
        Merge::AnyOf(begin) => any_of(&mut writer, parts, *begin as usize),
        Merge::Newest(count) => accounts::newest(&mut writer, parts, *count),
        Merge::Histograms => accounts::histograms(&mut writer, parts),
    }
    reply
}

/// An array of the pieces, in which an error is an element like any other.
fn filled(pieces: &[Option<Vec<u8>>], parts: &[Vec<u8>], protocol: Protocol) -> Vec<u8> {
    let (mut reply, mut parts) = (Vec::new(), parts.iter());
    let mut writer = Writer::new(&mut reply, protocol);
    writer.array(pieces.len());
    for piece in pieces {
        match piece.as_ref().or_else(|| parts.next()) {
            Some(piece) => writer.raw(piece),
            None => writer.null(),
        }
    }
    reply
}

fn integers(parts: &[Vec<u8>]) -> impl Iterator<Item = i64> {
    parts.iter().filter_map(|part| View::of(part)?.integer())
}

/// The frames inside an array or set.
fn children(part: &[u8]) -> impl Iterator<Item = &[u8]> {
    View::of(part).and_then(View::sequence).into_iter().flatten()
}

fn array(writer: &mut Writer<'_, Vec<u8>>, frames: &[&[u8]]) {
    writer.array(frames.len());
    frames.iter().for_each(|frame| writer.raw(frame));
}

fn every(writer: &mut Writer<'_, Vec<u8>>, parts: &[Vec<u8>]) {
    let mut all: Vec<i64> = Vec::new();
    for part in parts {
        for (place, one) in children(part).filter_map(|child| View::of(child)?.integer()).enumerate() {
            match all.get_mut(place) {
                Some(known) => *known = (*known).min(one),
                None => all.push(one),
            }
        }
    }
    writer.array(all.len());
    all.into_iter().for_each(|one| writer.integer(one));
}

fn sum_pairs(writer: &mut Writer<'_, Vec<u8>>, parts: &[Vec<u8>]) {
    let mut all: Vec<(&[u8], i64)> = Vec::new();
    for part in parts {
        let mut frames = children(part);
        let mut place = 0;
        while let (Some(name), Some(count)) = (frames.next(), frames.next()) {
            let count = View::of(count).and_then(View::integer).unwrap_or(0);
            match all.get_mut(place) {
                Some(known) => known.1 += count,
                None => all.push((name, count)),
            }
            place += 1;
        }
    }
    writer.array(all.len() * 2);
    for (name, count) in all {
        writer.raw(name);
        writer.integer(count);
    }
}

fn any_of(writer: &mut Writer<'_, Vec<u8>>, parts: &[Vec<u8>], begin: usize) {
    let full = |part: &&Vec<u8>| View::of(part).is_some_and(|view| view != View::Null);
    let begin = begin % parts.len().max(1);
    match parts[begin..].iter().chain(&parts[..begin]).find(full) {
        Some(part) => writer.raw(part),
        None => writer.null(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(how: Merge, parts: &[&str]) -> String {
        let parts: Vec<_> = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        String::from_utf8(merge(&how, &parts, Protocol::Resp2)).unwrap()
    }

    #[test]
    fn several_replies_become_one() {
        let table = [
            (Merge::Sum, vec![":1\r\n", ":41\r\n"], ":42\r\n"),
            (Merge::Least, vec![":3\r\n", ":1\r\n"], ":1\r\n"),
            (Merge::Same, vec!["+OK\r\n", "+OK\r\n"], "+OK\r\n"),
            (Merge::Concat, vec!["*1\r\n$1\r\na\r\n", "*0\r\n"], "*1\r\n$1\r\na\r\n"),
            (
                Merge::Pick(vec![1, 0, 1]),
                vec!["*1\r\n$1\r\na\r\n", "*2\r\n$1\r\nb\r\n$-1\r\n"],
                "*3\r\n$1\r\nb\r\n$1\r\na\r\n$-1\r\n",
            ),
            (Merge::Every, vec!["*2\r\n:1\r\n:1\r\n", "*2\r\n:0\r\n:1\r\n"], "*2\r\n:0\r\n:1\r\n"),
            (
                Merge::SumPairs,
                vec!["*2\r\n$1\r\nc\r\n:1\r\n", "*2\r\n$1\r\nc\r\n:2\r\n"],
                "*2\r\n$1\r\nc\r\n:3\r\n",
            ),
            (Merge::Union, vec!["*1\r\n$1\r\na\r\n", "*1\r\n$1\r\na\r\n"], "*1\r\n$1\r\na\r\n"),
            (Merge::AnyOf(1), vec!["$1\r\na\r\n", "$-1\r\n"], "$1\r\na\r\n"),
            (Merge::AnyOf(0), vec!["$-1\r\n", "$-1\r\n"], "$-1\r\n"),
            (
                Merge::Fill(vec![Some(b"+A\r\n".to_vec()), None, Some(b":3\r\n".to_vec())]),
                vec!["-ERR x\r\n"],
                "*3\r\n+A\r\n-ERR x\r\n:3\r\n",
            ),
            (Merge::FirstGood, vec!["-NOTBUSY x\r\n", "+OK\r\n"], "+OK\r\n"),
        ];
        for (how, parts, expected) in table {
            assert_eq!(merged(how.clone(), &parts), expected, "{how:?}");
        }
    }

    #[test]
    fn an_error_of_any_part_is_the_answer() {
        for how in [Merge::Sum, Merge::Same, Merge::Concat, Merge::Pick(vec![0, 1]), Merge::AnyOf(0)] {
            assert_eq!(merged(how, &[":1\r\n", "-OOM no\r\n"]), "-OOM no\r\n");
        }
        assert_eq!(merged(Merge::FirstGood, &["-A\r\n", "-B\r\n"]), "-A\r\n");
    }
}
