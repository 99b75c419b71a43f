//! A listener that other machines can reach requires certificates.

use std::path::Path;

use capstan_testkit::TempDir;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::binary::{Daemon, capstan};

/// An authority, and certificates of the server and of a client, as PEM files.
fn certificates(dir: &Path) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    for name in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), params.signed_by(&key, &authority).unwrap().pem())
            .unwrap();
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test]
async fn a_store_with_certificates_serves_those_who_show_one() {
    let dir = TempDir::new("certificates").unwrap();
    certificates(dir.path());
    let set = |key: &str, file: &str| format!("{key}={}", dir.join(file).display());
    let server = [
        set("meta.serve_cert", "server.pem"),
        set("meta.serve_key", "server.key"),
        set("meta.serve_client_ca", "ca.pem"),
    ];
    let mut args = vec!["meta", "serve", "--listen", "0.0.0.0:0"];
    args.extend(server.iter().flat_map(|setting| ["--set", setting.as_str()]));
    let store = Daemon::start("tls", &args).await;
    let endpoint = store.endpoint("meta").replace("0.0.0.0", "127.0.0.1");
    assert!(endpoint.starts_with("https://"), "{endpoint}");

    let client =
        [set("meta.tls_ca", "ca.pem"), set("meta.tls_cert", "client.pem"), set("meta.tls_key", "client.key")];
    let mut put = vec!["meta", "put", "/k", "v", "--meta", &endpoint];
    put.extend(["--set", client[0].as_str()]);
    let stranger = capstan(dir.path(), &put);
    assert_eq!(stranger.code, 69, "{stranger:#?}");
    put.extend(client[1..].iter().flat_map(|setting| ["--set", setting.as_str()]));
    assert_eq!(capstan(dir.path(), &put).ok(), "revision 2\n");
}
