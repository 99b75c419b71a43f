//! How a machine becomes a host: a token that works once, and renewals until the host is revoked.

use std::time::Duration;

use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{Authority, Description, KeyRequest, describe};
use capstan_access::enroll::{self, NewHost, Signer, Ticket, Welcome};
use capstan_access::keys::{JoinId, JoinKey, SignerKey};
use capstan_access::spec::SignerRecord;
use capstan_access::{AccessError, Refused, Secret};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::record::{Extra, Key as _};
use capstan_meta::{Range, Store};
use capstan_testkit::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

struct Cluster {
    store: Store,
    signer: Signer,
    _dir: TempDir,
}

/// A store in which a process that signs is registered.
async fn cluster() -> Cluster {
    let (store, dir) = (Store::new(Embedded::in_memory(Options::default())), TempDir::new("enroll").unwrap());
    let (authority, key) = Authority::create("test", 1000 * HOUR).unwrap();
    let (certificate, key_file) = (dir.join("ca.pem"), dir.join("ca.key"));
    files::replace(&certificate, authority.certificate(), Readers::All).unwrap();
    files::replace(&key_file, key.reveal(), Readers::Owner).unwrap();
    let record = SignerRecord {
        address: "10.0.0.1:7700".parse().unwrap(),
        authority: authority.fingerprint().clone(),
        extra: Extra::default(),
    };
    store.put(SignerKey { signer: "box1.1".parse().unwrap() }.put(&record)).await.unwrap();
    let secret = |text: &str| Secret::new(text);
    let welcome = Welcome {
        settings: vec![("meta.endpoints".to_owned(), secret("https://10.0.0.1:2379"))],
        of_role: vec![("redis".to_owned(), "redis.secret".to_owned(), secret("planted-redis-secret"))],
        meta_authority: None,
    };
    Cluster { store, signer: Signer { certificate, key: key_file, life: HOUR, welcome }, _dir: dir }
}

fn new_host(roles: &[&str], ttl: Duration) -> NewHost {
    NewHost {
        host: "box2".parse().unwrap(),
        addresses: vec!["10.0.0.2".parse().unwrap()],
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        ttl,
    }
}

async fn ticket(cluster: &Cluster, roles: &[&str]) -> Ticket {
    enroll::ticket_create(&cluster.store, &new_host(roles, HOUR), "test").await.unwrap()
}

fn request() -> String {
    KeyRequest::generate().unwrap().request
}

fn first(chain: &str) -> Description {
    describe(chain.as_bytes()).unwrap().remove(0)
}

#[tokio::test]
async fn a_token_admits_one_host_once() {
    let cluster = cluster().await;
    let (store, signer) = (&cluster.store, &cluster.signer);
    let ticket = ticket(&cluster, &["redis"]).await;
    assert_eq!(ticket.signers, ["10.0.0.1:7700".parse().unwrap()]);
    assert_eq!(&ticket.authority, signer.authority().unwrap().fingerprint());
    let token = ticket.token.text();
    let broken = signer.admit(store, token.reveal(), "not a request").await;
    assert!(matches!(broken, Err(AccessError::Invalid(_))), "{broken:?}");
    let admitted = signer.admit(store, token.reveal(), &request()).await.unwrap();
    let own = first(&admitted.chain);
    assert_eq!((own.subject.as_str(), admitted.host.as_str()), ("box2", "box2"));
    assert!(own.addresses.contains(&"10.0.0.2".parse().unwrap()), "{own:?}");
    let names: Vec<&str> = admitted.settings.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["meta.endpoints", "redis.secret"]);
    let again = signer.admit(store, token.reveal(), &request()).await;
    assert_eq!(again.unwrap_err(), AccessError::Refused(Refused::Invalid), "it was used");
}

#[tokio::test]
async fn of_two_machines_with_one_token_one_joins() {
    let cluster = cluster().await;
    let token = ticket(&cluster, &[]).await.token.text();
    let (a, b) = (request(), request());
    let (a, b) = tokio::join!(
        cluster.signer.admit(&cluster.store, token.reveal(), &a),
        cluster.signer.admit(&cluster.store, token.reveal(), &b)
    );
    assert_eq!([&a, &b].iter().filter(|admitted| admitted.is_ok()).count(), 1, "{a:?} {b:?}");
}

#[tokio::test]
async fn wrong_expired_and_other_tokens_are_refused() {
    let cluster = cluster().await;
    let (store, signer) = (&cluster.store, &cluster.signer);
    let good = ticket(&cluster, &[]).await.token;
    let right = good.text().reveal().to_owned();
    let wrong = format!("cjt_{}_{}", good.id, "0".repeat(64));
    let unknown = format!("cjt_{}_{}", "0".repeat(16), "0".repeat(64));
    for text in ["", "nonsense", &wrong, &unknown, &right.replace("cjt_", "csk_"), &format!("{right}0")] {
        let refused = signer.admit(store, text, &request()).await.unwrap_err();
        assert_eq!(refused, AccessError::Refused(Refused::Invalid), "{text}");
    }
    let key = JoinKey { id: JoinId::new(&good.id).unwrap() };
    let mut record = store.read(&key).await.unwrap().unwrap().record.clone();
    record.expires_at = 1;
    store.put(key.put(&record)).await.unwrap();
    let expired = signer.admit(store, &right, &request()).await.unwrap_err();
    assert_eq!(expired, AccessError::Refused(Refused::Invalid));
    for (addresses, ttl) in [(0, HOUR), (17, HOUR), (1, Duration::ZERO), (1, 1000 * HOUR)] {
        let new = NewHost { addresses: vec!["10.0.0.2".parse().unwrap(); addresses], ..new_host(&[], ttl) };
        assert!(enroll::ticket_create(store, &new, "test").await.is_err(), "{addresses} {ttl:?}");
    }
}

#[tokio::test]
async fn a_certificate_is_renewed_for_its_own_names_until_the_host_is_revoked() {
    let cluster = cluster().await;
    let (store, signer) = (&cluster.store, &cluster.signer);
    // Signed by the authority, but never let in.
    let stranger = describe(
        signer
            .authority()
            .unwrap()
            .sign(
                &request(),
                &capstan_access::certs::HostNames { host: "etcd1".parse().unwrap(), addresses: vec![] },
                HOUR,
            )
            .unwrap()
            .as_bytes(),
    )
    .unwrap()
    .remove(0);
    let refused = signer.renew(store, &stranger, &request()).await.unwrap_err();
    assert_eq!(refused, AccessError::Unenrolled("etcd1".parse().unwrap()));
    let token = ticket(&cluster, &[]).await.token.text();
    let shown = first(&signer.admit(store, token.reveal(), &request()).await.unwrap().chain);
    let greedy = Description { addresses: vec!["10.9.9.9".parse().unwrap()], ..shown.clone() };
    let (host, chain) = signer.renew(store, &greedy, &request()).await.unwrap();
    assert_eq!(host.as_str(), "box2");
    assert_eq!(first(&chain).addresses, shown.addresses, "what it is made out to comes from the metadata");
    enroll::host_revoke(store, &host, "test").await.unwrap();
    let refused = signer.renew(store, &shown, &request()).await.unwrap_err();
    assert_eq!(refused, AccessError::Unenrolled(host.clone()));
    assert!(enroll::host_revoke(store, &host, "test").await.is_err(), "it is not enrolled");
}

#[tokio::test]
async fn no_secret_is_stored_or_shown() {
    let cluster = cluster().await;
    let ticket = ticket(&cluster, &["redis"]).await;
    let secret = ticket.token.text().reveal().rsplit('_').next().unwrap().to_owned();
    let mut shown = format!("{:?} {:?}", cluster.signer, ticket);
    let admitted = cluster.signer.admit(&cluster.store, ticket.token.text().reveal(), &request()).await;
    shown += &format!("{admitted:?}");
    let stored = cluster.store.range(Range::prefix("/")).await.unwrap();
    for kv in &stored.kvs {
        shown += &String::from_utf8_lossy(&kv.value);
    }
    assert!(shown.contains("box2"), "this looked at too little: {shown}");
    assert!(!shown.contains(&secret) && !shown.contains("planted-redis-secret"), "{shown}");
}

#[tokio::test]
async fn without_a_process_that_signs_there_is_no_token() {
    let store = Store::new(Embedded::in_memory(Options::default()));
    let refused = enroll::ticket_create(&store, &new_host(&[], HOUR), "test").await.unwrap_err();
    assert!(refused.to_string().contains("ca.key"), "{refused}");
}
