//! `ACL`: the users of the connection's database. It changes none of them.

use std::collections::BTreeMap;

use bytes::BufMut;

use super::Context;
use capstan_redis_protocol::acl::{InvalidRule, Rules, SelectorText};
use capstan_redis_protocol::command::{Objection, category_names, commands, find, printed};
use capstan_redis_protocol::resp::{Request, Writer};

pub(super) fn answer<B: BufMut>(
    sub: &str,
    request: Request<'_>,
    context: &Context<'_>,
    out: &mut Writer<'_, B>,
) {
    match sub {
        "cat" => return write_categories(request, out),
        "whoami" => return out.bulk(context.user),
        _ => {}
    }
    let users = match users(context) {
        Ok(users) => users,
        Err(invalid) => return out.error(format!("ERR {invalid}")),
    };
    match sub {
        "users" => {
            out.array(users.len());
            users.keys().for_each(|name| out.bulk(name));
        }
        "list" => {
            out.array(users.len());
            users.iter().for_each(|(name, rules)| out.bulk(format!("user {name} {rules}")));
        }
        "getuser" => match found(&users, request.argument(2)) {
            Some(rules) => write_user(rules, out),
            None => out.null(),
        },
        // `dryrun`, the last of them.
        _ => write_dry_run(&users, request, out),
    }
}

/// The users by name. A database without users has Redis's own: `default`, with all permissions.
fn users(context: &Context<'_>) -> Result<BTreeMap<String, Rules>, InvalidRule> {
    let users = context.database.map(|database| database.settings().users.as_slice()).unwrap_or_default();
    if users.is_empty() {
        return Ok([("default".to_owned(), Rules::clone(&Rules::everything()))].into());
    }
    users.iter().map(|user| Ok((user.name.clone(), user.rules()?))).collect()
}

fn found<'u>(users: &'u BTreeMap<String, Rules>, name: &[u8]) -> Option<&'u Rules> {
    users.get(std::str::from_utf8(name).ok()?)
}

fn write_categories<B: BufMut>(request: Request<'_>, out: &mut Writer<'_, B>) {
    if request.len() > 3 {
        return out.error(Objection::wrong_form(request, "acl").line());
    }
    if request.len() == 2 {
        let names: Vec<&str> = category_names().collect();
        out.array(names.len());
        return names.iter().for_each(|name| out.bulk(name));
    }
    let category = request.argument(2);
    if !category_names().any(|name| name.as_bytes().eq_ignore_ascii_case(category)) {
        return out.error([b"ERR Unknown category '", printed(category), b"'"].concat());
    }
    let all = commands().iter().flat_map(|command| std::iter::once(command).chain(command.subcommands()));
    let names: Vec<&str> =
        all.filter(|command| command.is_in_category(category)).map(|command| command.name()).collect();
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name));
}

fn write_user<B: BufMut>(rules: &Rules, out: &mut Writer<'_, B>) {
    out.map(6);
    out.bulk("flags");
    out.set(rules.flags().count());
    rules.flags().for_each(|flag| out.bulk(flag));
    out.bulk("passwords");
    out.array(rules.passwords().len());
    rules.passwords().iter().for_each(|hash| out.bulk(hash.to_string()));
    write_selector(&rules.root(), out);
    out.bulk("selectors");
    out.array(rules.selectors().len());
    for selector in rules.selectors() {
        out.map(3);
        write_selector(&selector, out);
    }
}

fn write_selector<B: BufMut>(selector: &SelectorText, out: &mut Writer<'_, B>) {
    let SelectorText { commands, keys, channels } = selector;
    for (name, value) in [("commands", commands), ("keys", keys), ("channels", channels)] {
        out.bulk(name);
        out.bulk(value);
    }
}

fn write_dry_run<B: BufMut>(users: &BTreeMap<String, Rules>, request: Request<'_>, out: &mut Writer<'_, B>) {
    let Some(rules) = found(users, request.argument(2)) else {
        return out.error([b"ERR User '", printed(request.argument(2)), b"' not found"].concat());
    };
    let tried = request.tail(3);
    let command = match find(tried) {
        Ok(command) => command,
        Err(wrong @ Objection::WrongArity(_)) => return out.error(wrong.line()),
        Err(_) => return out.error([b"ERR Command '", printed(tried.argument(0)), b"' not found"].concat()),
    };
    match rules.check(command, tried) {
        Ok(()) => out.ok(),
        Err(denied) => out.bulk(denied.dry_run(tried)),
    }
}
