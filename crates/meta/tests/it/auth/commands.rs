//! `etcdctl user|role|auth` and everything they guard: the same output, or the same error, on both.

use super::{Side, USERS};

/// Commands in order; where an answer is given, it is what both must say.
const MANAGEMENT: &[(&str, Option<&str>)] = &[
    ("auth enable", Some("Error: etcdserver: root user does not exist")),
    ("role add r", Some("Role r created\n")),
    ("role add r", Some("Error: etcdserver: role name already exists")),
    ("role add ''", None),
    ("role get r", None),
    ("role get none", Some("Error: etcdserver: role name not found")),
    ("role list", Some("r\n")),
    ("role grant-permission r read a", None),
    ("role grant-permission r write b d", None),
    ("role grant-permission r readwrite --prefix p/", None),
    ("role grant-permission r readwrite --from-key x", None),
    ("role grant-permission none read a", Some("Error: etcdserver: role name not found")),
    ("role grant-permission r write a", None),
    ("role get r", None),
    ("role revoke-permission r b d", None),
    ("role revoke-permission r b e", Some("Error: etcdserver: permission is not granted to the role")),
    ("role revoke-permission none b e", None),
    ("role revoke-permission r --prefix p/", None),
    ("role revoke-permission r --from-key x", None),
    ("role get r", None),
    ("user add ann:pw", Some("User ann created\n")),
    ("user add ann:pw", Some("Error: etcdserver: user name already exists")),
    ("user add bob --no-password", None),
    ("user list", Some("ann\nbob\n")),
    ("user get ann", None),
    ("user get none", Some("Error: etcdserver: user name not found")),
    ("user grant-role ann r", Some("Role r is granted to user ann\n")),
    ("user grant-role ann r", None),
    ("user grant-role ann none", Some("Error: etcdserver: role name not found")),
    ("user grant-role none r", Some("Error: etcdserver: user name not found")),
    ("user get ann", None),
    ("user get ann --detail", None),
    ("user revoke-role ann r", None),
    ("user revoke-role ann r", Some("Error: etcdserver: role is not granted to the user")),
    ("user revoke-role none r", None),
    ("user grant-role ann r", None),
    ("role delete r", Some("Role r deleted\n")),
    ("role delete r", Some("Error: etcdserver: role name not found")),
    ("user get ann", None),
    ("user delete ann", Some("User ann deleted\n")),
    ("user delete ann", Some("Error: etcdserver: user name not found")),
    ("auth disable", None),
    ("--user root:secret get a", None),
    ("user add root:secret", None),
    // etcdctl gives root its role by itself.
    ("auth enable", Some("Authentication Enabled\n")),
    ("auth enable", None),
    ("user list", Some("Error: etcdserver: user name is empty")),
    ("--user root:wrong user list", None),
    ("--user none:pw user list", None),
    ("--user root:secret user list", Some("bob\nroot\n")),
    ("--user root:secret role list", None),
    ("--user root:secret user delete root", Some("Error: etcdserver: invalid auth management")),
    ("--user root:secret role delete root", Some("Error: etcdserver: invalid auth management")),
    ("--user root:secret user revoke-role root root", Some("Error: etcdserver: invalid auth management")),
    ("--user root:secret auth disable", Some("Authentication Disabled\n")),
    ("user list", Some("bob\nroot\n")),
    ("user delete root", None),
    ("auth enable", Some("Error: etcdserver: root user does not exist")),
];

/// With users asked for: who may do what.
const USE: &[(&str, Option<&str>)] = &[
    ("put a 1", Some("Error: etcdserver: user name is empty")),
    ("get a", Some("Error: etcdserver: user name is empty")),
    ("del a", Some("Error: etcdserver: user name is empty")),
    ("--user ann:pw put a 1", Some("OK\n")),
    ("--user ann:pw put bb 2", Some("OK\n")),
    ("--user ann:pw put c 3", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw get a", Some("a\n1\n")),
    // Two permissions that touch are one.
    ("--user ann:pw get a c", Some("a\n1\nbb\n2\n")),
    ("--user ann:pw get a d", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw get --prefix a", None),
    ("--user ann:pw get --prefix ''", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw get --from-key a", Some("Error: etcdserver: permission denied")),
    ("--user reader:pw get a c", Some("a\n1\nbb\n2\n")),
    ("--user reader:pw put a 2", Some("Error: etcdserver: permission denied")),
    ("--user reader:pw del a", Some("Error: etcdserver: permission denied")),
    ("--user writer:pw put a 2", Some("OK\n")),
    ("--user writer:pw get a", Some("Error: etcdserver: permission denied")),
    ("--user writer:pw put --prev-kv a 3", Some("Error: etcdserver: permission denied")),
    ("--user writer:pw del --prev-kv a", Some("Error: etcdserver: permission denied")),
    ("--user writer:pw del a", Some("1\n")),
    ("--user nobody:pw get a", Some("Error: etcdserver: permission denied")),
    ("--user nobody:pw put a 1", Some("Error: etcdserver: permission denied")),
    ("--user root:secret put zzz 1", Some("OK\n")),
    ("--user root:secret get --prefix '' --keys-only", None),
    // Users are not keys.
    ("--user root:secret get --from-key '' --count-only --write-out=fields", None),
    ("--user ann:pw user list", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw user get ann", None),
    ("--user ann:pw user get reader", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw role get ab", None),
    ("--user ann:pw role get ro", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw role add x", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw role grant-permission ab readwrite x", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw user grant-role ann root", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw auth disable", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw user passwd --interactive=false ann", None),
    ("--user root:secret role revoke-permission bc b c", None),
    ("--user ann:pw get a c", Some("Error: etcdserver: permission denied")),
    ("--user ann:pw put bb 3", Some("Error: etcdserver: permission denied")),
    ("--user root:secret user revoke-role ann ab", None),
    ("--user ann:pw put a 1", Some("Error: etcdserver: permission denied")),
    ("--user root:secret role delete ro", None),
    ("--user reader:pw get a", Some("Error: etcdserver: permission denied")),
    ("--user root:secret user delete ann", None),
    ("--user ann:pw get a", Some("Error: etcdserver: authentication failed, invalid user ID or password")),
    ("--user root:secret auth disable", None),
    ("put c 1", Some("OK\n")),
];

/// Runs the same commands on both and compares.
async fn compare(sides: &[Side; 2], commands: &[(&str, Option<&str>)]) {
    for (number, (line, expected)) in commands.iter().enumerate() {
        let said = |said: Result<String, String>| said.unwrap_or_else(|complaint| complaint);
        let [etcd, embedded] = [said(sides[0].ctl(line).await), said(sides[1].ctl(line).await)];
        assert_eq!(without_ids(&etcd), without_ids(&embedded), "{number}: etcdctl {line}");
        if let Some(expected) = expected {
            assert_eq!(embedded, *expected, "{number}: etcdctl {line}");
        }
    }
}

/// Ids of members and clusters differ, and so do their terms.
fn without_ids(text: &str) -> String {
    let own = |line: &&str| {
        !["\"ClusterID\"", "\"MemberID\"", "\"RaftTerm\""].iter().any(|id| line.starts_with(id))
    };
    text.lines().filter(own).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_roles_are_managed_as_on_etcd() {
    compare(&Side::both().await, MANAGEMENT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_are_enforced_as_on_etcd() {
    let sides = Side::both().await;
    for side in &sides {
        side.prepare(&USERS).await;
        side.prepare(&["auth enable"]).await;
    }
    compare(&sides, USE).await;
}
