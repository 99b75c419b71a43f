//! `COMMAND`: the command table, for clients that locate keys with it.

use bytes::BufMut;

use capstan_redis_protocol::command::{Command, KeyPosition, commands, find, lookup, named};
use capstan_redis_protocol::glob;
use capstan_redis_protocol::resp::{Request, Writer};

pub(super) fn answer<B: BufMut>(sub: &str, request: Request<'_>, out: &mut Writer<'_, B>) {
    match sub {
        "count" => out.integer(commands().len() as i64),
        "info" if request.len() > 2 => write_some(request, out),
        "list" => write_list(request, out),
        "getkeys" => write_keys(request.tail(2), out, |_, request, key, out| {
            out.bulk(request.argument(key.index()));
        }),
        "getkeysandflags" => write_keys(request.tail(2), out, |command, request, key, out| {
            out.array(2);
            out.bulk(request.argument(key.index()));
            let access = key.access_in(command, request);
            out.set(access.clone().count());
            access.for_each(|word| out.simple(word));
        }),
        _ => write_all(out),
    }
}

fn write_all<B: BufMut>(out: &mut Writer<'_, B>) {
    out.array(commands().len());
    commands().iter().for_each(|command| command.describe(out));
}

fn write_some<B: BufMut>(request: Request<'_>, out: &mut Writer<'_, B>) {
    out.array(request.len() - 2);
    for name in request.from(2) {
        match spelt(name) {
            Some(command) => command.describe(out),
            None => out.null(),
        }
    }
}

/// A command, or a subcommand written as `container|sub`.
fn spelt(name: &[u8]) -> Option<&'static Command> {
    match memchr::memchr(b'|', name) {
        None => lookup(name),
        Some(bar) => lookup(&name[..bar])?.subcommand(&name[bar + 1..]),
    }
}

fn write_list<B: BufMut>(request: Request<'_>, out: &mut Writer<'_, B>) {
    if request.len() == 2 {
        return write_names(commands().iter().collect(), out);
    }
    let (filter, by, value) = (request.argument(2), request.argument(3), request.argument(4));
    if request.len() != 5 || !filter.eq_ignore_ascii_case(b"FILTERBY") {
        return out.error("ERR syntax error");
    }
    let keep: &dyn Fn(&Command) -> bool = if by.eq_ignore_ascii_case(b"PATTERN") {
        &|command| glob::matches(value, command.name().as_bytes(), true)
    } else if by.eq_ignore_ascii_case(b"ACLCAT") {
        &|command| command.is_in_category(value)
    } else if by.eq_ignore_ascii_case(b"MODULE") {
        &|_| false
    } else {
        return out.error("ERR syntax error");
    };
    let all = commands().iter().flat_map(|command| std::iter::once(command).chain(command.subcommands()));
    write_names(all.filter(|command| keep(command)).collect(), out);
}

fn write_names<B: BufMut>(commands: Vec<&Command>, out: &mut Writer<'_, B>) {
    out.array(commands.len());
    commands.iter().for_each(|command| out.bulk(command.name()));
}

fn write_keys<B: BufMut>(
    request: Request<'_>,
    out: &mut Writer<'_, B>,
    write: impl Fn(&Command, Request<'_>, KeyPosition, &mut Writer<'_, B>),
) {
    let Ok(command) = named(request) else { return out.error("ERR Invalid command specified") };
    if !command.has_keys() {
        return out.error("ERR The command has no key arguments");
    }
    if find(request).is_err() {
        return out.error("ERR Invalid number of arguments specified for command");
    }
    match command.keys(request) {
        Ok(keys) if !keys.is_empty() && command.keys_are_complete(request) => {
            out.array(keys.len());
            keys.iter().for_each(|key| write(command, request, *key, out));
        }
        _ if command.keys_are_optional() => out.array(0),
        _ => out.error("ERR Invalid arguments specified for command"),
    }
}
