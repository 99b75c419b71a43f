//! Users of a cluster: changes of their rules, what is pushed to proxies, and records that cannot be read.

use bytes::Bytes;
use capstan_meta::Store;
use capstan_meta::record::Key;
use capstan_redis::agent::{Kind, Wanted};
use capstan_redis::api;
use capstan_redis::broker;
use capstan_redis::check;
use capstan_redis::decide::Content;
use capstan_redis::decide::{self, Change};
use capstan_redis::error::BrokerError;
use capstan_redis::health::{CONFIG_UNREADABLE, findings};
use capstan_redis::host::{self, Identity, NodeSecret};
use capstan_redis::keys::ConfigKey;
use capstan_redis::nmctl::Settings;
use capstan_redis::spec::{ClusterSpec, Commands, Serving, User};

use super::deeds::c;
use super::world::*;

async fn with_cluster(users: Vec<User>) -> Store {
    let store = embedded_store();
    pool(&store, 2, 1).await;
    let spec = ClusterSpec { serving: Serving { users, ..Serving::default() }, ..ClusterSpec::of(2) };
    broker::create_cluster(&store, &c(), &spec).await.unwrap();
    complete(&store).await;
    store
}

/// What is pushed to a proxy.
async fn pushed(store: &Store, at: usize) -> Settings {
    let content = Content::of(&tree(store).await, &proxy(at)).expect("it is pushed at once");
    content.settings.first().unwrap().1.clone()
}

fn sorted(mut nodes: Vec<Wanted>) -> Vec<Wanted> {
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    nodes
}

async fn set(store: &Store, user: &str, rules: &str) -> Result<decide::UserChange, BrokerError> {
    broker::change_user(store, &c(), user, rules).await
}

async fn lines(store: &Store) -> Vec<String> {
    let users = pushed(store, 1).await.users;
    users.iter().map(|user| format!("{} {}", user.name, user.rules().unwrap())).collect()
}

#[test]
fn a_first_user_leaves_the_default_user_as_it_was() {
    block_on(async {
        let store = with_cluster(Vec::new()).await;
        let before = tree(&store).await.hosts[&proxy(2)].epoch.as_ref().unwrap().record;
        let made = set(&store, "app", "on nopass ~app:* +@read").await.unwrap();
        assert!(made.change == Change::Made && made.is_open);
        assert_eq!(
            lines(&store).await,
            ["default on nopass ~* &* +@all", "app on nopass ~app:* resetchannels -@all +@read"]
        );
        // Both proxies get it at once, without the task that bumps further hosts.
        assert_eq!(pushed(&store, 2).await.users.len(), 2);
        assert!(tree(&store).await.hosts[&proxy(2)].epoch.as_ref().unwrap().record > before);
        assert_eq!(set(&store, "app", "on").await.unwrap().change, Change::Already);
        let example = async || api::connect(&store, &c()).await.unwrap().example;
        assert!(!example().await.contains("--askpass"), "clients need no user");
        let closed = set(&store, "default", "off").await.unwrap();
        assert!(!closed.is_open);
        assert!(example().await.ends_with("--user c/app --askpass"));
        complete(&store).await;
        assert_sound(&tree(&store).await);
    });
}

#[test]
fn passwords_are_rotated_with_overlap() {
    block_on(async {
        let old = User::new("app", "old", Commands::All).unwrap();
        let store = with_cluster(vec![old]).await;
        let accepts = async |password: &str| pushed(&store, 1).await.users[0].accepts(password.as_bytes());
        assert!(accepts("old").await);
        set(&store, "app", ">new").await.unwrap();
        assert!(accepts("old").await && accepts("new").await);
        set(&store, "app", "<old").await.unwrap();
        assert!(!accepts("old").await && accepts("new").await);
        let again = set(&store, "app", "<old").await;
        assert!(matches!(again, Err(BrokerError::Invalid(text)) if text.contains("no such password")));
        assert_eq!(pushed(&store, 1).await.users.len(), 1, "a cluster with users gets no default user");
    });
}

#[test]
fn a_cluster_is_not_opened_by_deleting_its_users() {
    block_on(async {
        let store = with_cluster(vec![User::new("app", "pw", Commands::Read).unwrap()]).await;
        let delete = async |user: &str| broker::delete_user(&store, &c(), user).await;
        assert!(
            matches!(delete("app").await, Err(BrokerError::Invalid(text)) if text.contains("the last one"))
        );
        assert_eq!(delete("none").await, Err(BrokerError::NoUser { cluster: c(), user: "none".to_owned() }));
        set(&store, "default", "on nopass allkeys allchannels allcommands").await.unwrap();
        assert!(
            matches!(delete("default").await, Err(BrokerError::Invalid(text)) if text.contains("default off"))
        );
        delete("app").await.unwrap();
        set(&store, "default", ">pw").await.unwrap();
        assert!(matches!(delete("default").await, Err(BrokerError::Invalid(_))), "it needs a password");
        set(&store, "default", "nopass").await.unwrap();
        delete("default").await.unwrap();
        assert!(pushed(&store, 1).await.users.is_empty());
    });
}

#[test]
fn invalid_changes_are_refused() {
    block_on(async {
        let store = with_cluster(Vec::new()).await;
        for (user, rules) in [
            ("app", "on +nosuch"),
            ("app", "%X~a"),
            ("a b", "on"),
            ("a/b", "on"),
            ("admin", "on"),
            ("", "on"),
        ] {
            assert!(
                matches!(set(&store, user, rules).await, Err(BrokerError::Invalid(_))),
                "{user:?} {rules}"
            );
        }
        let none = broker::change_user(&store, &cluster("none"), "app", "on").await;
        assert_eq!(none, Err(BrokerError::NoCluster(cluster("none"))));
        for number in 0..99 {
            set(&store, &format!("u{number}"), "on").await.unwrap();
        }
        assert!(
            matches!(set(&store, "more", "on").await, Err(BrokerError::Invalid(text)) if text.contains("at most 100"))
        );
    });
}

#[test]
fn rules_that_cannot_be_read_admit_no_client_and_are_not_replaced() {
    block_on(async {
        let store = with_cluster(Vec::new()).await;
        set(&store, "app", "on >pw ~* &* +@all").await.unwrap();
        complete(&store).await;
        let path = ConfigKey { cluster: c() }.path();
        let record = tree(&store).await.clusters[&c()].config.as_ref().unwrap().record.clone();
        let text = serde_json::to_string(&record).unwrap();
        let me = Identity { proxy: proxy(1), nodes: Kind::Supervised, secret: NodeSecret::new("s") };
        let nodes = host::wanted(&tree(&store).await, &me, &[]);
        assert!(nodes.iter().any(|node| node.owner.is_some()));
        for damaged in
            [text.replace("+@all", "+@nosuch"), text.replace("\"on ", "\"perhaps "), "{".to_owned()]
        {
            store.put(capstan_meta::Put::new(path.to_string(), Bytes::from(damaged))).await.unwrap();
            let users = pushed(&store, 1).await.users;
            assert!(!users.is_empty() && !users.iter().any(|user| user.accepts(b"pw") || user.is_open()));
            let found = findings(&tree(&store).await, std::iter::empty(), 1);
            assert!(found.iter().any(|finding| finding.code == CONFIG_UNREADABLE), "{found:#?}");
            // Running nodes stay as they are: what of their data survives is not known. New ones are not started.
            let tree_now = tree(&store).await;
            assert_eq!(sorted(host::wanted(&tree_now, &me, &nodes)), sorted(nodes.clone()));
            let started = host::wanted(&tree_now, &me, &[]).iter().any(|node| node.owner.is_some());
            assert_eq!(started, tree_now.clusters[&c()].config.is_some());
            // Neither a repair nor a change may open the cluster.
            check::fix(&store).await.unwrap();
            assert!(set(&store, "app", "on").await.is_err());
            assert!(!pushed(&store, 1).await.users.is_empty());
        }
        store.put(capstan_meta::Put::new(path.to_string(), Bytes::from(text))).await.unwrap();
        assert!(pushed(&store, 1).await.users[1].accepts(b"pw"));
        let found = findings(&tree(&store).await, std::iter::empty(), 1);
        assert!(!found.iter().any(|finding| finding.code == CONFIG_UNREADABLE), "{found:#?}");
    });
}
