//! Unreadable settings: a database is closed rather than opened to everyone.

use bytes::Bytes;
use capstan_control::epoch::Epoch;
use capstan_meta::record::Key;
use capstan_redis::broker;
use capstan_redis::decide::Content;
use capstan_redis::keys::ConfigKey;
use capstan_redis::nmctl::{PasswordHash, Settings};
use capstan_redis::spec::{ClusterSpec, Serving, User};
use capstan_redis_proxy::state::{ProxyState, Routing, Verdict};

use super::deeds::c;
use super::world::*;

fn user(hash: &str) -> User {
    User {
        name: "default".to_owned(),
        password_sha256: vec![hash.to_owned()],
        commands: capstan_redis::spec::Commands::All,
    }
}

/// What is pushed to the proxy of the first host about the cluster.
async fn pushed(store: &capstan_meta::Store) -> Settings {
    let tree = tree(store).await;
    let content = Content::unsettled(&tree, &proxy(1)).unwrap();
    content.settings.first().unwrap().1.clone()
}

/// Whether a proxy with these settings admits a client without AUTH, and one with this password.
fn lets_in(settings: Settings, password: &str) -> (bool, bool) {
    use capstan_redis::nmctl::{Message, SetConf};
    let conf = SetConf { epoch: Epoch(1), databases: vec![(c(), settings)], ..SetConf::default() };
    let state = match ProxyState::default().accept(&Message::SetConf(conf)).unwrap() {
        Verdict::Accept(state) => *state,
        Verdict::Unchanged => ProxyState::default(),
    };
    let routing = Routing::of(&state, &proxy(1), |_| None);
    let open = matches!(routing.entrance(), capstan_redis_proxy::state::Entrance::Open(_));
    (open, routing.log_in(None, password.as_bytes()).is_ok())
}

#[test]
fn a_password_that_cannot_be_read_closes_the_database() {
    block_on(async {
        let good = PasswordHash::of(b"secret").to_string();
        for (hash, with_password) in [(good.as_str(), true), ("not a hash", false), ("", false)] {
            let store = embedded_store();
            pool(&store, 1, 1).await;
            let serving = Serving { users: vec![user(hash)], ..Serving::default() };
            let spec = ClusterSpec { serving, ..ClusterSpec::of(1) };
            broker::create_cluster(&store, &c(), &spec).await.unwrap();
            assert_eq!(lets_in(pushed(&store).await, "secret"), (false, with_password), "{hash:?}");
        }
    });
}

#[test]
fn a_configuration_that_cannot_be_read_closes_the_database() {
    block_on(async {
        let store = embedded_store();
        pool(&store, 1, 1).await;
        broker::create_cluster(&store, &c(), &ClusterSpec::of(1)).await.unwrap();
        assert!(lets_in(pushed(&store).await, "secret").0, "a cluster without users is open");
        let path = ConfigKey { cluster: c() }.path();
        let damaged = capstan_meta::Put::new(path.to_string(), Bytes::from_static(b"{\"users\": 7"));
        store.put(damaged).await.unwrap();
        assert_eq!(lets_in(pushed(&store).await, "secret"), (false, false));
    });
}
