//! Rules by themselves; the integration tests of the proxy compare them with a real server.

use super::*;
use crate::command::{ALL_COMMANDS, Handling, commands, find};
use crate::resp::{Limits, Parsed, RequestParser, Trust};

fn rules(text: &str) -> Rules {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// `ok`, or the error.
fn verdict(rules: &Rules, line: &str) -> String {
    let mut parser = RequestParser::new(Limits::default());
    let Ok(Parsed::Inline { rewritten, .. }) =
        parser.parse(format!("{line}\n").as_bytes(), Trust::Authenticated)
    else {
        panic!("{line}: not a request")
    };
    let request = Request::new(&rewritten, parser.arguments());
    rules.check(find(request).unwrap(), request).map_or_else(Denied::line, |()| "ok".to_owned())
}

const KEY: &str = "NOPERM this user has no permissions to access one of the keys used as arguments";
const CHANNEL: &str = "NOPERM this user has no permissions to access one of the channels used as arguments";

fn no(command: &str) -> String {
    format!("NOPERM this user has no permissions to run the '{command}' command")
}

#[test]
fn rules_are_printed_as_redis_prints_them_and_parsed_again() {
    let hash = "#30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4";
    for (text, printed) in [
        ("", "off resetchannels -@all"),
        ("on nopass allkeys allchannels allcommands", "on nopass ~* &* +@all"),
        ("ON >pw", &format!("on {hash} resetchannels -@all")),
        ("on nopass >pw", &format!("on {hash} resetchannels -@all")),
        ("on >pw nopass", "on nopass resetchannels -@all"),
        ("on >pw <pw >pw resetpass", "on resetchannels -@all"),
        (&format!("{hash} !{}", &hash[1..]), "off resetchannels -@all"),
        ("~a:* %R~b:* %w~c %RW~d &x", "off ~a:* %R~b:* %W~c ~d resetchannels &x -@all"),
        ("%R~a %W~a", "off ~a resetchannels -@all"),
        ("%RW~*", "off %RW~* resetchannels -@all"),
        ("~a resetkeys &x allchannels", "off &* -@all"),
        ("+@read -GET +config|get -@READ", "off resetchannels -@all -get +config|get -@read"),
        ("+get -get +get", "off resetchannels -@all +get"),
        ("+config|get +config", "off resetchannels -@all +config"),
        ("+@all -@dangerous", "off resetchannels +@all -@dangerous"),
        ("+get +@all -@all +set", "off resetchannels -@all +set"),
        (
            "+get (~x +set %W~y &z) ( +get )",
            "off resetchannels -@all +get (~x %W~y resetchannels &z -@all +set) (resetchannels -@all +get)",
        ),
        ("on >pw ~* +@all (+get) reset", "off resetchannels -@all"),
        ("(+get) clearselectors sanitize-payload", "off resetchannels -@all"),
    ] {
        let parsed = rules(text);
        assert_eq!(parsed.to_string(), printed, "{text}");
        assert_eq!(rules(printed), parsed, "{text}");
    }
}

#[test]
fn invalid_rules_are_refused_and_passwords_are_not_repeated() {
    for (text, rule, why) in [
        ("on foo", "foo", "not a rule"),
        ("+nosuch", "+nosuch", "no such command"),
        ("+@nosuch", "+@nosuch", "no such command"),
        ("-config|nosuch", "-config|nosuch", "no such command"),
        ("+config|", "+config|", "no such command"),
        ("+select|0", "+select|0", "first argument"),
        ("~* ~a", "~a", "no effect"),
        ("&* &a", "&a", "no effect"),
        ("%X~a", "%X~a", "R, W or RW"),
        ("%~a", "%~a", "R, W or RW"),
        ("%R", "%R", "not a rule"),
        ("<secret", "<...", "no such password"),
        ("nopass <secret", "<...", "no such password"),
        ("#secret", "#...", "64 lowercase"),
        (">", ">...", "empty"),
        ("(+get", "+get", "not closed"),
        ("(on)", "on", "not a rule"),
    ] {
        let error = text.parse::<Rules>().unwrap_err();
        assert_eq!(error.rule, rule, "{text}");
        assert!(error.why.contains(why), "{text}: {error}");
    }
    let mut kept = rules("on +get");
    assert!(kept.apply("+set +nosuch").is_err());
    assert_eq!(kept, rules("on +get"), "a refused change changes nothing");
    assert!(format!("~{}", "x".repeat(MAX_TEXT)).parse::<Rules>().is_err());
    let nine: String = (0..9).map(|n| format!(">{n} ")).collect();
    assert!(nine.parse::<Rules>().is_err());
}

#[test]
fn two_passwords_are_valid_at_once_while_one_is_rotated() {
    let mut user = rules("on >old");
    user.apply(">new").unwrap();
    assert!(user.accepts(b"old") && user.accepts(b"new") && !user.accepts(b""));
    user.apply("<old").unwrap();
    assert!(!user.accepts(b"old") && user.accepts(b"new"));
    user.apply("off").unwrap();
    assert!(!user.accepts(b"new"));
    assert!(rules("on nopass").accepts(b"anything"));
    assert!(!rules("on").accepts(b""), "a user without a password cannot authenticate");
    assert!(!rules("nopass").accepts(b""), "a new user is off");
}

#[test]
fn commands_keys_and_channels_are_checked_in_this_order() {
    for (text, line, expected) in [
        ("", "get a", no("get")),
        ("", "auth x", "ok".into()),
        ("~* +get", "get a", "ok".into()),
        ("+get", "get a", KEY.into()),
        ("+get ~a:*", "get a:1", "ok".into()),
        ("+get ~a:*", "get b:1", KEY.into()),
        ("+get ~a:*", "get a:", "ok".into()),
        ("+get ~a", "get ab", KEY.into()),
        ("+get ~a?c", "get abc", "ok".into()),
        ("+get ~a?c", "get abd", KEY.into()),
        ("+get ~a\\*", "get a*", "ok".into()),
        ("+get ~a\\*", "get ab", KEY.into()),
        ("+get ~a[bc]*", "get aczz", "ok".into()),
        ("+get ~*a", "get ba", "ok".into()),
        ("+get ~\u{e4}*", "get \u{e4}1", "ok".into()),
        ("+@all ~a:*", "mget a:1 a:2 b", KEY.into()),
        ("+@all %R~a", "get a", "ok".into()),
        ("+@all %R~a", "set a 1", KEY.into()),
        ("+@all %W~a", "set a 1", "ok".into()),
        ("+@all %W~a", "set a get", "ok".into()),
        ("+@all %W~a", "set a 1 get", KEY.into()),
        ("+@all %W~a", "getset a 1", KEY.into()),
        ("+@all %W~a %R~a*", "getset a 1", KEY.into()),
        ("+@all %W~a %R~b", "copy b a", "ok".into()),
        ("+@all %W~a %R~b", "copy a b", KEY.into()),
        ("+@all %R~a", "exists a", "ok".into()),
        ("+@all %R~a", "bitfield a get u8 0", "ok".into()),
        ("+@all %R~a", "bitfield a set u8 0 1", KEY.into()),
        ("+@all ~a", "zunion 5 a", KEY.into()),
        ("+@all ~a", "pfmerge b", KEY.into()),
        ("+@all ~a ~b", "georadius a 0 0 1 m store a store b", KEY.into()),
        ("+@all ~a ~b", "georadius a 0 0 1 m store a storedist b", "ok".into()),
        ("+@all", "publish x 1", CHANNEL.into()),
        ("+@all &x*", "publish xy 1", "ok".into()),
        ("+@all &x*", "subscribe x1 y", CHANNEL.into()),
        ("+@all &x*", "ssubscribe x1", "ok".into()),
        ("+@all &x*", "psubscribe x*", "ok".into()),
        ("+@all &x*", "psubscribe x1", CHANNEL.into()),
        ("+@all", "unsubscribe x", "ok".into()),
        ("+@all -config", "config get x", no("config|get")),
        ("+config|get", "config get x", "ok".into()),
        ("+config|get", "config resetstat", no("config|resetstat")),
        ("+@all -@admin", "config get x", no("config|get")),
        ("+@slow", "config get x", "ok".into()),
        ("~* +@read (~w:* +set)", "set w:1 x", "ok".into()),
        ("~* +@read (~w:* +set)", "set x 1", KEY.into()),
        ("~* +@read (~w:* +set)", "del x", no("del")),
        ("~a +set (~b +get)", "get a", KEY.into()),
    ] {
        assert_eq!(verdict(&rules(text), line), expected, "{text}: {line}");
    }
}

#[test]
fn scripts_need_a_grant_by_name_unless_nothing_is_restricted() {
    for (text, permitted) in [
        ("~* &* +@all", true),
        ("~* +@all", false),
        ("~a &* +@all", false),
        ("~* &* +@all -flushall", false),
        ("~* &* +@all -flushall +eval", true),
        ("~a +@scripting", false),
        ("~a +eval", true),
        ("~a (~a +eval)", true),
        ("~a +eval +evalsha -eval +@scripting", false),
    ] {
        let verdict = verdict(&rules(text), "eval x 1 a");
        assert_eq!(verdict == "ok", permitted, "{text}: {verdict}");
    }
    assert_eq!(verdict(&rules("~a +eval"), "eval x 1 b"), KEY);
    assert!(verdict(&rules("~a +@all"), "fcall x 1 a").contains("'+fcall' by name"));
}

#[test]
fn a_read_only_user_may_run_all_that_changes_nothing() {
    assert!(READ_ONLY.parse::<Rules>().is_ok());
    assert!(EVERYTHING.parse::<Rules>().is_ok_and(|rules| rules.is_unrestricted()));
    let user = Rules::read_only();
    let all = commands().iter().flat_map(|command| match command.subcommands() {
        [] => std::slice::from_ref(command),
        subcommands => subcommands,
    });
    for command in all {
        let served = matches!(
            command.handling(),
            Handling::Key | Handling::Split(_) | Handling::Blocking(_) | Handling::AllNodes(_)
        );
        let changes = served && (command.writes() || !command.reads_only() && command.has_keys());
        let refused = matches!(command.handling(), Handling::Forbidden | Handling::Refused(_));
        if !refused {
            assert_eq!(user.root.commands.contains(command), !changes, "{}", command.name());
        }
    }
}

#[test]
fn every_command_has_a_number_of_its_own() {
    let mut seen = vec![false; ALL_COMMANDS];
    for command in commands().iter().flat_map(|one| std::iter::once(one).chain(one.subcommands())) {
        assert!(!std::mem::replace(&mut seen[command.id()], true), "{}", command.name());
    }
    assert!(seen.into_iter().all(|seen| seen));
}

#[test]
fn a_subscription_is_checked_again_with_new_rules() {
    let user = rules("&news:* (&jobs)");
    assert!(user.may_use_channel(b"news:1", ChannelUse::Named));
    assert!(user.may_use_channel(b"jobs", ChannelUse::Named));
    assert!(user.may_use_channel(b"news:*", ChannelUse::Pattern));
    assert!(!user.may_use_channel(b"news:1", ChannelUse::Pattern));
    assert!(!user.may_use_channel(b"other", ChannelUse::Named));
}
