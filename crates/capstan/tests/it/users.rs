//! Users of a Redis cluster, as an operator changes them while clients are connected.

use std::net::SocketAddr;
use std::time::Duration;

use capstan_testkit::eventually;
use capstan_testkit::redis::Wire;

use crate::binary::{DEADLINE, Daemon};

const NOPERM: &str = "-NOPERM this user has no permissions to run the 'del' command\r\n";

/// Waits until a command gets this reply on a connection of its own. Rules are pushed to proxies after they are
/// recorded.
async fn gets(proxy: SocketAddr, login: &str, said: &str, expected: &str) {
    eventually(&format!("{said} gets {expected:?}"), DEADLINE, async || {
        let mut wire = Wire::connect(proxy).map_err(|error| error.to_string())?;
        let ask = |wire: &mut Wire, words: &str| wire.say(words).map_err(|error| error.to_string());
        if !login.is_empty() {
            ask(&mut wire, login)?;
        }
        // Slots of other proxies are refused with MOVED, but only after the rules.
        let reply = ask(&mut wire, said)?;
        if reply == expected { Ok(()) } else { Err(reply) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_are_changed_while_clients_are_connected() {
    let up = Daemon::start("users", &["up", "--port-base", "0", "--set", "host.id=one"]).await;
    let proxy: SocketAddr = up.endpoint("redis").parse().unwrap();
    gets(proxy, "", "ACL WHOAMI", "$7\r\ndefault\r\n").await;

    let set = up.capstan(&[
        "redis",
        "user",
        "set",
        "demo",
        "app",
        "on >first ~app:*",
        "+@read -get",
        "+acl|whoami",
    ]);
    assert!(set.stderr.contains("`capstan redis user set demo default off` stops that"), "{set:#?}");
    set.ok();
    gets(proxy, "AUTH app first", "ACL WHOAMI", "$3\r\napp\r\n").await;
    gets(proxy, "AUTH demo/app first", "DEL app:1", NOPERM).await;

    let list = up.capstan(&["redis", "user", "list", "demo", "-o", "json"]).json();
    assert_eq!(list["users"][0]["name"], "app", "{list}");
    assert_eq!(list["users"][0]["commands"], "-@all +@read -get +acl|whoami", "{list}");
    assert!(!up.capstan(&["events"]).ok().contains("first"), "no event has a password");

    // A second password is valid beside the first; then the user is deleted under its client.
    up.capstan(&["redis", "user", "set", "demo", "app", ">second"]).ok();
    gets(proxy, "AUTH app second", "ACL WHOAMI", "$3\r\napp\r\n").await;
    gets(proxy, "AUTH app first", "ACL WHOAMI", "$3\r\napp\r\n").await;
    let mut connected = Wire::connect(proxy).unwrap();
    assert_eq!(connected.say("AUTH app second").unwrap(), "+OK\r\n");
    up.capstan(&["redis", "user", "delete", "demo", "app"]).ok();
    connected.socket().set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(connected.rest().unwrap(), b"", "its client is disconnected");
    let gone = up.capstan(&["redis", "user", "show", "demo", "app"]);
    assert!(gone.code != 0 && gone.stderr.contains("has no user app"), "{gone:#?}");

    up.capstan(&["redis", "user", "set", "demo", "default", "off"]).ok();
    gets(proxy, "", "GET k", "-NOAUTH Authentication required.\r\n").await;
}
