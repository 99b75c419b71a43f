//! Which connections does a node with certificates serve? Those of clients that trust its authority, over TLS.

use std::time::Duration;

use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{Authority, HostNames, KeyRequest};
use capstan_access::tls::{LiveTls, TlsFiles};
use capstan_docs::{DocsError, api};
use capstan_testkit::{TempDir, eventually};
use serde_json::json;

use crate::cluster::{Cluster, SOON};

const HOUR: Duration = Duration::from_secs(3600);
const PLANTED: &str = "planted-document-4471";

/// The certificate of a host on the loopback address, and its authority.
fn certificates(dir: &TempDir, name: &str, authority: &Authority) -> LiveTls {
    let KeyRequest { key, request } = KeyRequest::generate().unwrap();
    let names = HostNames { host: name.parse().unwrap(), addresses: vec!["127.0.0.1".parse().unwrap()] };
    let chain = authority.sign(&request, &names, HOUR).unwrap();
    let (own, ca) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}-ca.pem")));
    files::replace(&own, &(chain + key.reveal()), Readers::Owner).unwrap();
    files::replace(&ca, authority.certificate(), Readers::All).unwrap();
    LiveTls::open(TlsFiles { cert: own.clone(), key: own, authority: Some(ca) }).unwrap()
}

fn https(tls: &LiveTls) -> reqwest::Client {
    let client = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls.client().unwrap());
    client.build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_certificates_serve_tls_only_and_reach_each_other_over_it() {
    let dir = TempDir::new("docs-tls").unwrap();
    let (authority, _) = Authority::create("test authority", 1_000 * HOUR).unwrap();
    let tls = certificates(&dir, "box1", &authority);
    let cluster = Cluster::start_encrypted(2, tls.clone(), https(&tls)).await;
    cluster.collection(Some("k")).await;
    // Over all tokens: each node leads some, so that both pass requests on.
    for k in 0..32 {
        let document = json!({ "doc": { "k": k, "text": PLANTED } });
        let (status, answer) = cluster.send("POST", k, "/db/db/c", Some(document)).await;
        assert_eq!(status, 202, "{answer}");
    }
    for number in 0..2 {
        let (status, counted) = cluster.send("GET", number, "/db/db/c/count", None).await;
        assert!(status == 200 && counted["count"] == 32, "{counted}");
    }
    for tap in &cluster.taps {
        assert!(tap.bytes() > 1_000, "{} bytes went through", tap.bytes());
        assert!(!tap.has_seen(PLANTED) && !tap.has_seen("docs-secret"), "clear text between nodes");
    }

    // A plain client is told why, in its own protocol.
    let address = cluster.nodes["n1"].http;
    let plain = reqwest::Client::builder().no_proxy().build().unwrap();
    let refused = plain.get(format!("http://{address}/db/db")).send().await.unwrap();
    assert_eq!(refused.status(), 400);
    assert!(refused.text().await.unwrap().contains("served over TLS only"));
    let client = api::Client::connect(&cluster.store, None).await.unwrap();
    let refused = client.send("GET", "/db", &[], None).await.unwrap_err();
    assert!(matches!(&refused, DocsError::Refused(text) if text.contains("TLS only")), "{refused}");

    // Neither side accepts a certificate of another authority.
    let (other, _) = Authority::create("another", 1_000 * HOUR).unwrap();
    let stranger = certificates(&dir, "stranger", &other);
    let failed = https(&stranger).get(format!("https://{address}/db/db")).send().await.unwrap_err();
    assert!(failed.is_connect(), "{failed:?}");
    let client = api::Client::connect(&cluster.store, Some(&stranger)).await.unwrap();
    assert!(matches!(client.send("GET", "/db", &[], None).await, Err(DocsError::Busy(_))));
    let client = api::Client::connect(&cluster.store, Some(&tls)).await.unwrap();
    client.send("GET", "/db", &[], None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_used_by_the_next_connection_and_a_bad_one_by_none() {
    let dir = TempDir::new("docs-renewal").unwrap();
    let (authority, _) = Authority::create("test authority", 1_000 * HOUR).unwrap();
    let tls = certificates(&dir, "box1", &authority);
    let cluster = Cluster::start_encrypted(1, tls.clone(), https(&tls)).await;
    cluster.collection(Some("k")).await;
    let before = std::fs::read(dir.join("box1.pem")).unwrap();
    // The same name and files, another authority: clients that trust the new one alone are let in by the new files only.
    let (next, _) = Authority::create("next", 1_000 * HOUR).unwrap();
    let new = certificates(&dir, "box1", &next);
    assert_ne!(std::fs::read(dir.join("box1.pem")).unwrap(), before);
    let url = cluster.url(0, "/db/db");
    eventually("a new connection sees the new certificate", SOON, async || {
        https(&new).get(&url).send().await.map(drop).map_err(|error| format!("{error:?}"))
    })
    .await;
    assert!(matches!(cluster.get("/db/db").await.0, 200 | 201));
    // Files that cannot be used leave the former certificate in place, and never lead to plain traffic.
    std::fs::write(dir.join("box1.pem"), "damaged").unwrap();
    let plain = reqwest::Client::builder().no_proxy().build().unwrap();
    let trusting = certificates(&dir, "box2", &next);
    for _ in 0..20 {
        let refused = plain.get(url.replace("https:", "http:")).send().await.unwrap();
        assert_eq!(refused.status(), 400);
        assert!(https(&trusting).get(&url).send().await.unwrap().status().is_success());
    }
}
