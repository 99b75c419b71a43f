//! Users with ACL rules: what the proxy refuses before any node sees it, and what happens when the rules change.

use capstan_testkit::redis::{Wire, command};

use super::{Setup, until};

const KEY: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments\r\n";
const CHANNEL: &str =
    "-NOPERM this user has no permissions to access one of the channels used as arguments\r\n";

fn no(command: &str) -> String {
    format!("-NOPERM this user has no permissions to run the '{command}' command\r\n")
}

/// The settings of a database with these users.
fn settings(users: &[(&str, &str)]) -> String {
    let user = |(name, rules): &(&str, &str)| serde_json::json!({ "name": name, "commands": rules });
    serde_json::json!({ "users": users.iter().map(user).collect::<Vec<_>>() }).to_string()
}

/// A proxy with these users, and a connection that may change them.
async fn setup(nodes: usize, users: &[(&str, &str)]) -> anyhow::Result<(Setup, Wire)> {
    let setup = Setup::start(nodes).await?;
    let mut steering = setup.client()?;
    assert_eq!(steering.say("NMCTL PEER db")?, "+OK\r\n");
    change(&mut steering, 2, users)?;
    Ok((setup, steering))
}

/// Pushes these users.
fn change(steering: &mut Wire, epoch: u32, users: &[(&str, &str)]) -> anyhow::Result<()> {
    let settings = settings(users);
    let words = ["NMCTL", "SETCONF", &epoch.to_string(), "NOFLAG", "db", &settings];
    let reply = steering.ask(&words)?;
    anyhow::ensure!(reply == b"+OK\r\n", "{}", String::from_utf8_lossy(&reply));
    Ok(())
}

fn logged_in(setup: &Setup, user: &str, password: &str) -> anyhow::Result<Wire> {
    let mut wire = setup.client()?;
    let reply = wire.say(&format!("AUTH {user} {password}"))?;
    anyhow::ensure!(reply == "+OK\r\n", "{reply}");
    Ok(wire)
}

const OPEN: (&str, &str) = ("default", "on nopass ~* &* +@all");

fn all_as_expected(wire: &mut Wire, expected: &[(&str, &str)]) -> anyhow::Result<()> {
    for (said, expected) in expected {
        assert_eq!(wire.say(said)?, *expected, "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_rules_do_not_permit_reaches_no_node() -> anyhow::Result<()> {
    let app = ("app", "on >pw ~app:* %R~shared:* +@all -@dangerous &news:*");
    let (setup, _steering) = setup(2, &[OPEN, app]).await?;
    assert_eq!(setup.client()?.say("SET shared:1 v")?, "+OK\r\n", "default is not restricted");
    let mut wire = logged_in(&setup, "app", "pw")?;
    all_as_expected(
        &mut wire,
        &[
            ("SET app:1 v", "+OK\r\n"),
            ("GET app:1", "$1\r\nv\r\n"),
            ("GET shared:1", "$1\r\nv\r\n"),
            ("SET shared:1 w", KEY),
            ("GET other", KEY),
            ("BLPOP other 1", KEY),
            ("SUBSCRIBE other", CHANNEL),
            ("PUBLISH other m", CHANNEL),
            ("PUBLISH news:1 m", ":0\r\n"),
            ("FLUSHALL", &no("flushall")),
            ("CONFIG GET port", &no("config|get")),
        ],
    )?;
    assert_eq!(wire.ask(&["EVAL", "return 1", "1", "other"])?, KEY.as_bytes());
    let script = String::from_utf8(wire.ask(&["EVAL", "return 1", "1", "app:1"])?)?;
    assert!(script.starts_with("-NOPERM a script is not confined"), "{script}");
    let pipeline = [command(&["SET", "app:1", "x"]), command(&["SET", "b", "x"]), command(&["GET", "app:1"])];
    wire.send(&pipeline.concat())?;
    let replies: Vec<_> = (0..3).map(|_| wire.reply()).collect::<Result<_, _>>()?;
    assert_eq!(replies, [&b"+OK\r\n"[..], KEY.as_bytes(), b"$1\r\nx\r\n"]);
    for node in &setup.nodes {
        assert_eq!(Wire::connect(node.address())?.say("EXISTS other b")?, ":0\r\n");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_with_a_refused_command_is_aborted() -> anyhow::Result<()> {
    let rules = "on >pw ~app:* &* +@all -exec";
    let (setup, mut steering) = setup(1, &[OPEN, ("app", "on >pw ~app:* +@all"), ("never", rules)]).await?;
    let mut wire = logged_in(&setup, "app", "pw")?;
    all_as_expected(
        &mut wire,
        &[
            ("MULTI", "+OK\r\n"),
            ("SET app:1 v", "+QUEUED\r\n"),
            ("SET b v", KEY),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
            ("GET app:1", "$-1\r\n"),
            ("WATCH b", KEY),
            ("MULTI", "+OK\r\n"),
            ("SUBSCRIBE x", CHANNEL),
            ("DISCARD", "+OK\r\n"),
        ],
    )?;
    let mut never = logged_in(&setup, "never", "pw")?;
    let aborted = format!("-EXECABORT Transaction discarded because of: {}", &no("exec")[1..]);
    all_as_expected(
        &mut never,
        &[("MULTI", "+OK\r\n"), ("SET app:1 v", "+QUEUED\r\n"), ("EXEC", &aborted), ("GET app:1", "$-1\r\n")],
    )?;
    // Commands that were queued under other rules are not executed.
    assert_eq!(wire.say("MULTI")?, "+OK\r\n");
    assert_eq!(wire.say("SET app:1 v")?, "+QUEUED\r\n");
    change(&mut steering, 3, &[OPEN, ("app", "on >pw ~app:* +@all -set")])?;
    assert_eq!(wire.say("EXEC")?, "-EXECABORT Transaction discarded because of previous errors.\r\n");
    assert_eq!(wire.say("GET app:1")?, "$-1\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn new_rules_apply_to_connected_clients() -> anyhow::Result<()> {
    let (setup, mut steering) =
        setup(1, &[OPEN, ("app", "on >old ~* &* +@all"), ("gone", "on >pw ~* &* +@all")]).await?;
    let mut app = logged_in(&setup, "app", "old")?;
    let (mut gone, mut anonymous) = (logged_in(&setup, "gone", "pw")?, setup.client()?);
    assert_eq!(gone.say("SET k v")?, "+OK\r\n");
    assert_eq!(anonymous.say("GET k")?, "$1\r\nv\r\n");
    let mut blocked = logged_in(&setup, "gone", "pw")?;
    blocked.command(&["BLPOP", "queue", "0"])?;
    let mut stays = logged_in(&setup, "app", "old")?;
    stays.command(&["SUBSCRIBE", "news:1"])?;
    assert!(stays.reply()?.ends_with(b":1\r\n"));
    let mut listens = setup.client()?;
    listens.command(&["SUBSCRIBE", "news:1"])?;
    assert!(listens.reply()?.ends_with(b":1\r\n"));
    let mut leaves = logged_in(&setup, "app", "old")?;
    leaves.command(&["PSUBSCRIBE", "*"])?;
    assert!(leaves.reply()?.ends_with(b":1\r\n"));

    // Two passwords are valid while one is rotated; the default user is switched off.
    change(&mut steering, 3, &[("default", "off"), ("app", "on >old >new ~* &news:* +@all -get")])?;
    assert_eq!(app.say("GET k")?, no("get"));
    assert_eq!(anonymous.say("GET k")?, "-NOAUTH Authentication required.\r\n");
    assert_eq!(gone.rest()?, b"", "a client whose user is removed is disconnected");
    assert_eq!(blocked.rest()?, b"", "so is one that waits in a node");
    assert_eq!(listens.rest()?, b"", "so is a subscriber that would have to authenticate now");
    assert_eq!(leaves.rest()?, b"", "so is a subscriber that may no longer be one");
    for password in ["old", "new"] {
        assert_eq!(logged_in(&setup, "app", password)?.say("PUBLISH news:1 m")?, ":1\r\n");
        assert!(stays.reply()?.starts_with(b"*3\r\n$7\r\nmessage\r\n"));
    }

    // The old password is removed, and the user switched off: connections stay, as in Redis.
    change(&mut steering, 4, &[("default", "off"), ("app", "on >new ~* &* +@all")])?;
    assert!(logged_in(&setup, "app", "old").is_err());
    change(&mut steering, 5, &[("default", "off"), ("app", "off >new ~* &* +@all")])?;
    assert!(logged_in(&setup, "app", "new").is_err());
    assert_eq!(app.say("GET k")?, "$1\r\nv\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_default_user_is_that_of_clients_without_auth() -> anyhow::Result<()> {
    let (setup, mut steering) =
        setup(1, &[("default", "on nopass ~public:* +get +set"), ("app", "on >pw ~* &* +@all")]).await?;
    let mut wire = setup.client()?;
    all_as_expected(
        &mut wire,
        &[
            ("SET public:1 v", "+OK\r\n"),
            ("GET private", KEY),
            ("DEL public:1", &no("del")),
            ("ACL WHOAMI", &no("acl|whoami")),
            ("AUTH app wrong", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
            ("AUTH app pw", "+OK\r\n"),
            ("DEL public:1", ":1\r\n"),
            ("ACL WHOAMI", "$3\r\napp\r\n"),
            ("RESET", "+RESET\r\n"),
            ("DEL public:1", &no("del")),
        ],
    )?;
    change(&mut steering, 3, &[("default", "on >pw ~* &* +@all")])?;
    let mut wire = setup.client()?;
    all_as_expected(
        &mut wire,
        &[("GET k", "-NOAUTH Authentication required.\r\n"), ("AUTH pw", "+OK\r\n"), ("GET k", "$-1\r\n")],
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn acl_commands_show_users_and_change_none() -> anyhow::Result<()> {
    let (setup, _steering) =
        setup(1, &[OPEN, ("app", "on ~a:* %R~b +@read (~c +set)"), ("low", "on nopass +acl|whoami")]).await?;
    let mut wire = setup.client()?;
    all_as_expected(
        &mut wire,
        &[
            ("ACL WHOAMI", "$7\r\ndefault\r\n"),
            ("ACL USERS", "*3\r\n$3\r\napp\r\n$7\r\ndefault\r\n$3\r\nlow\r\n"),
            ("ACL DRYRUN app GET a:1", "+OK\r\n"),
            ("ACL DRYRUN app SET c x", "+OK\r\n"),
            ("ACL DRYRUN app GET x", "$50\r\nThis user has no permissions to access the 'x' key\r\n"),
            ("ACL DRYRUN low GET x", "$53\r\nThis user has no permissions to run the 'get' command\r\n"),
        ],
    )?;
    let list = wire.say("ACL LIST")?;
    for line in [
        "user app on ~a:* %R~b resetchannels -@all +@read (~c resetchannels -@all +set)\r\n",
        "user default on nopass ~* &* +@all\r\n",
        "user low on nopass resetchannels -@all +acl|whoami\r\n",
    ] {
        assert!(list.contains(line), "{list}");
    }
    let user = wire.say("ACL GETUSER app")?;
    assert!(user.contains("$4\r\nkeys\r\n$9\r\n~a:* %R~b\r\n"), "{user}");
    assert_eq!(wire.say("ACL GENPASS")?.len(), "$64\r\n\r\n".len() + 64);
    for (said, named) in [
        ("ACL SETUSER x on", "`capstan redis user set CLUSTER NAME RULES...`"),
        ("ACL DELUSER app", "`capstan redis user delete CLUSTER NAME`"),
        ("ACL LOAD", "capstan redis user set"),
        ("ACL SAVE", "capstan redis user set"),
    ] {
        let refused = wire.say(said)?;
        assert!(refused.starts_with("-NOPERM ") && refused.contains(named), "{refused}");
    }
    let mut low = logged_in(&setup, "low", "x")?;
    assert_eq!(low.say("ACL WHOAMI")?, "$3\r\nlow\r\n");
    assert_eq!(low.say("ACL LIST")?, no("acl|list"));
    until("the proxy still serves", || Ok(wire.say("PING")? == "+PONG\r\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_cannot_be_read_are_not_accepted() -> anyhow::Result<()> {
    let (setup, mut steering) = setup(1, &[("default", "off"), ("app", "on >pw ~* &* +@all")]).await?;
    assert!(change(&mut steering, 3, &[("default", "on nopass +nosuch")]).is_err());
    assert_eq!(setup.client()?.say("GET k")?, "-NOAUTH Authentication required.\r\n");
    Ok(())
}
