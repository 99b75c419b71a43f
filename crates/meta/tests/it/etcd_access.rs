//! Who may use an etcd: TLS with client certificates, users with passwords, prefixes side by side.

use std::time::Duration;

use capstan_meta::etcd::{Etcd, EtcdIdentity, EtcdOptions, EtcdTls, EtcdUser};
use capstan_meta::{Delete, KeyRange, MetaError, Put, Range, Remedy, Revision, Store, Watch, WatchMessage};
use capstan_testkit as testkit;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::subjects::block_on;

/// An authority and what it has signed, PEM.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    fn pem(&self) -> Vec<u8> {
        self.issuer.pem().into_bytes()
    }

    /// A certificate for this name and its key.
    fn sign(&self, name: &str) -> EtcdIdentity {
        let key = KeyPair::generate().unwrap();
        let cert =
            CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        EtcdIdentity { cert: cert.pem().into_bytes(), key: key.serialize_pem().into_bytes() }
    }
}

#[test]
fn tls_with_client_certificates() {
    block_on(async {
        let (authority, stranger) = (Authority::new(), Authority::new());
        let dir = testkit::TempDir::new("tls").unwrap();
        let server = authority.sign("etcd.test");
        let write = |name: &str, pem: &[u8]| {
            std::fs::write(dir.join(name), pem).unwrap();
            dir.join(name)
        };
        let tls = testkit::etcd::Tls {
            cert: write("cert.pem", &server.cert),
            key: write("key.pem", &server.key),
            client_ca: Some(write("ca.pem", &authority.pem())),
        };
        let etcd = testkit::Etcd::options().tls(tls).start().await.unwrap();
        let options = |ca: &Authority, identity, domain: Option<&str>| EtcdOptions {
            tls: Some(EtcdTls { ca: ca.pem(), identity, domain: domain.map(str::to_owned) }),
            ..EtcdOptions::new([etcd.endpoint()])
        };
        let client = || Some(authority.sign("client"));
        let name = Some("etcd.test");

        let store = Store::new(Etcd::connect(options(&authority, client(), name)).await.unwrap());
        store.put(Put::new("a", "1")).await.unwrap();
        let mut watch = store.watch(Watch::from(KeyRange::all(), Revision(2))).await.unwrap();
        assert!(matches!(watch.next().await.unwrap(), WatchMessage::Events { .. }));

        let refusals = [
            ("no client certificate", options(&authority, None, name)),
            ("a stranger's client certificate", options(&authority, Some(stranger.sign("client")), name)),
            ("another authority than the server's", options(&stranger, client(), name)),
            ("another name than the server's", options(&authority, client(), None)),
        ];
        for (why, options) in refusals {
            let refused = Etcd::connect(options).await;
            assert!(refused.is_err(), "accepted: {why}");
        }
    });
}

#[test]
fn users_with_passwords() {
    block_on(async {
        let etcd = testkit::Etcd::start().await.unwrap();
        for command in [
            "user add root:secret",
            "user grant-role root root",
            "role add some",
            "role grant-permission some readwrite a b",
            "user add guest:word",
            "user grant-role guest some",
            "auth enable",
        ] {
            etcd.ctl(&command.split(' ').collect::<Vec<_>>()).unwrap();
        }
        let connect = async |name: &str, password: &str| {
            let user = EtcdUser { name: name.to_owned(), password: password.to_owned() };
            let options = EtcdOptions { user: Some(user), ..EtcdOptions::new([etcd.endpoint()]) };
            Etcd::connect(options).await.map(Store::new)
        };
        let root = connect("root", "secret").await.unwrap();
        root.put(Put::new("z", "1")).await.unwrap();
        let guest = connect("guest", "word").await.unwrap();
        guest.put(Put::new("a", "1")).await.unwrap();
        assert!(matches!(guest.put(Put::new("z", "2")).await, Err(MetaError::Denied(_))));
        assert!(matches!(guest.range(Range::prefix("")).await, Err(MetaError::Denied(_))));

        let wrong = connect("root", "wrong").await.unwrap_err();
        assert_eq!(wrong.remedy(), Remedy::Report, "{wrong:?}");
        let nobody = Store::new(Etcd::connect(EtcdOptions::new([etcd.endpoint()])).await.unwrap());
        let error = nobody.put(Put::new("a", "2")).await.unwrap_err();
        assert_eq!(error.remedy(), Remedy::Report, "{error:?}");
    });
}

#[test]
fn a_token_that_is_not_valid_any_more_is_renewed() {
    block_on(async {
        let mut etcd = testkit::Etcd::start().await.unwrap();
        for command in ["user add root:secret", "user grant-role root root", "auth enable"] {
            etcd.ctl(&command.split(' ').collect::<Vec<_>>()).unwrap();
        }
        let user = EtcdUser { name: "root".to_owned(), password: "secret".to_owned() };
        let options = EtcdOptions { user: Some(user), ..EtcdOptions::new([etcd.endpoint()]) };
        let store = Store::new(Etcd::connect(options).await.unwrap());
        let mut watch = store.watch(Watch::from(KeyRange::all(), Revision::ZERO)).await.unwrap();
        let before = store.put(Put::new("a", "1")).await.unwrap().revision;
        // Etcd keeps its tokens in memory.
        etcd.restart().await.unwrap();
        let after = testkit::eventually("a put succeeds", Duration::from_secs(20), async || {
            store.put(Put::new("a", "2")).await
        });
        let after = after.await.revision;
        let mut seen = Vec::new();
        while seen.last() != Some(&after) {
            if let WatchMessage::Events { events, .. } = watch.next().await.unwrap() {
                seen.extend(events.iter().map(|event| event.kv.mod_revision));
            }
        }
        assert_eq!(seen, (before.0..=after.0).map(Revision).collect::<Vec<_>>());
    });
}

#[test]
fn installations_in_one_etcd_do_not_see_each_other() {
    block_on(async {
        let etcd = testkit::Etcd::start().await.unwrap();
        let connect = async |prefix: &str| {
            Store::new(Etcd::connect(EtcdOptions::new([etcd.endpoint()]).prefix(prefix)).await.unwrap())
        };
        // One prefix begins with the other one's text, but not with its path.
        let (one, two, all) = (connect("/a/").await, connect("/a0/").await, connect("").await);
        let mut watch = one.watch(Watch::from(KeyRange::all(), Revision(2))).await.unwrap();
        two.put(Put::new("k", "two")).await.unwrap();
        all.put(Put::new("/a", "neither")).await.unwrap();
        one.put(Put::new("k", "one")).await.unwrap();
        let WatchMessage::Events { revision, events } = watch.next().await.unwrap() else { panic!("events") };
        assert_eq!((revision, events.len(), &events[0].kv.key[..]), (Revision(4), 1, &b"k"[..]));
        for (store, value) in [(&one, "one"), (&two, "two")] {
            let found = store.range(Range::of(KeyRange::all())).await.unwrap();
            assert_eq!((found.count, &found.kvs[0].value[..]), (1, value.as_bytes()));
            assert_eq!(store.range(Range::of(KeyRange::from_key("a"))).await.unwrap().count, 1);
        }
        let everything = Delete { keys: KeyRange::from_key("\0"), prev_kv: true };
        let deleted = one.delete(everything).await.unwrap();
        assert_eq!((deleted.deleted, &deleted.prev_kvs[0].key[..]), (1, &b"k"[..]));
        assert_eq!(all.range(Range::of(KeyRange::all())).await.unwrap().count, 2);
    });
}
