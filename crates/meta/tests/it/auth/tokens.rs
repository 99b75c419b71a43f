//! Signed tokens: the same setting as etcd's, the same claims, and each takes the other's.

use capstan_meta::wire::codec::WireCodec;
use capstan_meta::wire::proto::etcdserverpb as pb;
use capstan_meta::wire::{JwtKeys, Options, TokenKind};
use capstan_testkit::TempDir;
use etcd_client::Client;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::{Side, USERS, denied, refusal};

/// What etcd answers to a token that names an older revision of users and roles.
const OLD: &str = "etcdserver: revision of auth store is old";

struct Keys {
    dir: TempDir,
}

impl Keys {
    fn new(algorithm: &'static rcgen::SignatureAlgorithm) -> Keys {
        let dir = TempDir::new("jwt").unwrap();
        let pair = rcgen::KeyPair::generate_for(algorithm).unwrap();
        std::fs::write(dir.join("pub.pem"), pair.public_key_pem()).unwrap();
        std::fs::write(dir.join("priv.pem"), pair.serialize_pem()).unwrap();
        Keys { dir }
    }

    fn setting(&self, method: &str) -> String {
        let file = |name: &str| self.dir.join(name).display().to_string();
        format!("pub-key={},priv-key={},sign-method={method},ttl=10m", file("pub.pem"), file("priv.pem"))
    }
}

async fn embedded(setting: &str) -> Side {
    let tokens = TokenKind::Jwt(JwtKeys::from_setting(setting).unwrap().into());
    Side::embedded(Options { tokens, ..Options::default() }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signed_tokens_work_as_on_etcd_and_are_taken_by_both() {
    for (method, algorithm) in [("RS256", &rcgen::PKCS_RSA_SHA256), ("ES256", &rcgen::PKCS_ECDSA_P256_SHA256)]
    {
        let keys = Keys::new(algorithm);
        let setting = keys.setting(method);
        let sides = [Side::etcd(&[format!("--auth-token=jwt,{setting}")]).await, embedded(&setting).await];
        let mut tokens = Vec::new();
        for side in &sides {
            side.prepare(&USERS).await;
            side.prepare(&["auth enable"]).await;
            let client = Client::connect([&side.endpoint], None).await.unwrap();
            let said = client.auth_client().authenticate("ann".into(), "pw".into()).await.unwrap();
            tokens.push(said.token().to_owned());
            let mut ann = side.client("ann", "pw").await.unwrap();
            ann.put("a", "1", None).await.unwrap_or_else(|error| panic!("{}: {error}", side.name));
            assert_eq!(refusal(ann.put("z", "1", None).await), denied(), "{}", side.name);
        }
        for side in &sides {
            for token in &tokens {
                // The two count changes of users differently: a token of the other side is either valid or too old, and in
                // both cases its signature and its claims were accepted.
                match read_with(side, token).await {
                    Ok(read) => assert_eq!(read.kvs.len(), 1, "{}", side.name),
                    Err(refused) => assert_eq!(refused.message(), OLD, "{}", side.name),
                }
            }
            for forged in [format!("{}AAAA", tokens[0]), "nonsense".to_owned()] {
                let refused = read_with(side, &forged).await.unwrap_err();
                let invalid = (Code::Unauthenticated, "etcdserver: invalid auth token");
                assert_eq!((refused.code(), refused.message()), invalid, "{}", side.name);
            }
        }
        for side in &sides {
            // A token says which users and roles it was made for.
            let mut ann = side.client("ann", "pw").await.unwrap();
            side.prepare(&["--user root:secret role add later"]).await;
            let old = (Code::InvalidArgument, OLD.to_owned());
            assert_eq!(refusal(ann.put("a", "2", None).await), old, "{}", side.name);
            side.client("ann", "pw").await.unwrap().put("a", "2", None).await.unwrap();
        }
    }
}

/// Reads a key with a token, which the client crate does not offer.
async fn read_with(side: &Side, token: &str) -> Result<pb::RangeResponse, Status> {
    let channel = Channel::from_shared(side.endpoint.clone()).unwrap().connect().await.unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let mut request = Request::new(pb::RangeRequest { key: "a".into(), ..Default::default() });
    request.metadata_mut().insert("token", token.parse().unwrap());
    let path = PathAndQuery::from_static("/etcdserverpb.KV/Range");
    let codec = WireCodec::<pb::RangeRequest, pb::RangeResponse>::default();
    Ok(grpc.unary(request, path, codec).await?.into_inner())
}
