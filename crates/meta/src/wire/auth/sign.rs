//! With what are tokens signed? The methods of JSON Web Tokens that etcd takes.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ED25519, EcdsaKeyPair, Ed25519KeyPair, RsaKeyPair, UnparsedPublicKey,
    VerificationAlgorithm,
};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, SubjectPublicKeyInfoDer};

/// How a token is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method {
    name: &'static str,
    family: Family,
    bits: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Hmac,
    RsaPkcs1,
    RsaPss,
    Ecdsa,
    Ed25519,
}

const METHODS: [Method; 12] = [
    Method { name: "HS256", family: Family::Hmac, bits: 256 },
    Method { name: "HS384", family: Family::Hmac, bits: 384 },
    Method { name: "HS512", family: Family::Hmac, bits: 512 },
    Method { name: "RS256", family: Family::RsaPkcs1, bits: 256 },
    Method { name: "RS384", family: Family::RsaPkcs1, bits: 384 },
    Method { name: "RS512", family: Family::RsaPkcs1, bits: 512 },
    Method { name: "PS256", family: Family::RsaPss, bits: 256 },
    Method { name: "PS384", family: Family::RsaPss, bits: 384 },
    Method { name: "PS512", family: Family::RsaPss, bits: 512 },
    Method { name: "ES256", family: Family::Ecdsa, bits: 256 },
    Method { name: "ES384", family: Family::Ecdsa, bits: 384 },
    Method { name: "EdDSA", family: Family::Ed25519, bits: 256 },
];

impl Method {
    pub(super) fn named(name: &str) -> Option<Method> {
        METHODS.into_iter().find(|method| method.name == name)
    }

    pub(super) fn name(self) -> &'static str {
        self.name
    }

    fn hmac(self) -> hmac::Algorithm {
        match self.bits {
            256 => hmac::HMAC_SHA256,
            384 => hmac::HMAC_SHA384,
            _ => hmac::HMAC_SHA512,
        }
    }

    fn padding(self) -> &'static dyn signature::RsaEncoding {
        match (self.family, self.bits) {
            (Family::RsaPss, 256) => &signature::RSA_PSS_SHA256,
            (Family::RsaPss, 384) => &signature::RSA_PSS_SHA384,
            (Family::RsaPss, _) => &signature::RSA_PSS_SHA512,
            (_, 256) => &signature::RSA_PKCS1_SHA256,
            (_, 384) => &signature::RSA_PKCS1_SHA384,
            (_, _) => &signature::RSA_PKCS1_SHA512,
        }
    }

    fn verification(self) -> &'static dyn VerificationAlgorithm {
        match (self.family, self.bits) {
            (Family::Ecdsa, 256) => &ECDSA_P256_SHA256_FIXED,
            (Family::Ecdsa, _) => &ECDSA_P384_SHA384_FIXED,
            (Family::Ed25519, _) => &ED25519,
            (Family::RsaPss, 256) => &signature::RSA_PSS_2048_8192_SHA256,
            (Family::RsaPss, 384) => &signature::RSA_PSS_2048_8192_SHA384,
            (Family::RsaPss, _) => &signature::RSA_PSS_2048_8192_SHA512,
            (Family::RsaPkcs1 | Family::Hmac, 256) => &signature::RSA_PKCS1_2048_8192_SHA256,
            (Family::RsaPkcs1 | Family::Hmac, 384) => &signature::RSA_PKCS1_2048_8192_SHA384,
            (Family::RsaPkcs1 | Family::Hmac, _) => &signature::RSA_PKCS1_2048_8192_SHA512,
        }
    }
}

/// The keys of one method.
pub(super) enum Keys {
    Secret(Box<hmac::Key>),
    Pair { method: Method, public: Vec<u8>, private: Option<Private> },
}

/// What signs.
pub(super) enum Private {
    Rsa(Box<RsaKeyPair>),
    Ecdsa(Box<EcdsaKeyPair>),
    Ed25519(Box<Ed25519KeyPair>),
}

impl Keys {
    /// Reads keys: bytes of any kind for HMAC, PEM for the others.
    pub(super) fn read(
        method: Method,
        public: Option<&[u8]>,
        private: Option<&[u8]>,
    ) -> Result<Keys, String> {
        if method.family == Family::Hmac {
            let secret = private.or(public).filter(|secret| !secret.is_empty());
            let secret = secret.ok_or("priv-key is missing")?;
            return Ok(Keys::Secret(Box::new(hmac::Key::new(method.hmac(), secret))));
        }
        let public = SubjectPublicKeyInfoDer::from_pem_slice(public.ok_or("pub-key is missing")?);
        let public = public.map_err(|error| error.to_string())?.to_vec();
        let private = private.map(|pem| Private::read(method, pem)).transpose()?;
        let keys = Keys::Pair { method, public, private };
        keys.check_pair()?;
        Ok(keys)
    }

    /// A private key must belong to the public one.
    fn check_pair(&self) -> Result<(), String> {
        let Keys::Pair { private: Some(_), .. } = self else { return Ok(()) };
        let proof = b"pair";
        if self.verify(proof, &self.sign(proof)?) {
            Ok(())
        } else {
            Err("pub-key is not that of priv-key".into())
        }
    }

    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let unspecified = |_| "signing failed".to_owned();
        match self {
            Keys::Secret(key) => Ok(hmac::sign(key, message).as_ref().to_vec()),
            Keys::Pair { private: None, .. } => Err("there is no priv-key".into()),
            Keys::Pair { method, private: Some(Private::Rsa(pair)), .. } => {
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(method.padding(), &SystemRandom::new(), message, &mut out).map_err(unspecified)?;
                Ok(out)
            }
            Keys::Pair { private: Some(Private::Ecdsa(pair)), .. } => {
                let signed = pair.sign(&SystemRandom::new(), message).map_err(unspecified)?;
                Ok(signed.as_ref().to_vec())
            }
            Keys::Pair { private: Some(Private::Ed25519(pair)), .. } => {
                Ok(pair.sign(message).as_ref().to_vec())
            }
        }
    }

    pub(super) fn verify(&self, message: &[u8], signed: &[u8]) -> bool {
        match self {
            Keys::Secret(key) => hmac::verify(key, message, signed).is_ok(),
            Keys::Pair { method, public, .. } => {
                UnparsedPublicKey::new(method.verification(), public).verify(message, signed).is_ok()
            }
        }
    }
}

impl Private {
    fn read(method: Method, pem: &[u8]) -> Result<Private, String> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| error.to_string())?;
        let der = key.secret_der();
        let rejected = |error: aws_lc_rs::error::KeyRejected| error.to_string();
        let curve = if method.bits == 256 {
            &ECDSA_P256_SHA256_FIXED_SIGNING
        } else {
            &ECDSA_P384_SHA384_FIXED_SIGNING
        };
        Ok(match (method.family, &key) {
            (Family::RsaPkcs1 | Family::RsaPss | Family::Hmac, PrivateKeyDer::Pkcs1(_)) => {
                Private::Rsa(Box::new(RsaKeyPair::from_der(der).map_err(rejected)?))
            }
            (Family::RsaPkcs1 | Family::RsaPss | Family::Hmac, _) => {
                Private::Rsa(Box::new(RsaKeyPair::from_pkcs8(der).map_err(rejected)?))
            }
            (Family::Ecdsa, PrivateKeyDer::Sec1(_)) => {
                Private::Ecdsa(Box::new(EcdsaKeyPair::from_private_key_der(curve, der).map_err(rejected)?))
            }
            (Family::Ecdsa, _) => {
                Private::Ecdsa(Box::new(EcdsaKeyPair::from_pkcs8(curve, der).map_err(rejected)?))
            }
            (Family::Ed25519, _) => {
                Private::Ed25519(Box::new(Ed25519KeyPair::from_pkcs8(der).map_err(rejected)?))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(algorithm: &'static rcgen::SignatureAlgorithm) -> (Vec<u8>, Vec<u8>) {
        let pair = rcgen::KeyPair::generate_for(algorithm).unwrap();
        (pair.public_key_pem().into_bytes(), pair.serialize_pem().into_bytes())
    }

    #[test]
    fn every_method_takes_its_own_signatures_and_no_others() {
        let rsa = pem(&rcgen::PKCS_RSA_SHA256);
        let (p256, p384) = (pem(&rcgen::PKCS_ECDSA_P256_SHA256), pem(&rcgen::PKCS_ECDSA_P384_SHA384));
        let ed = pem(&rcgen::PKCS_ED25519);
        for method in METHODS {
            let (public, private) = match (method.family, method.bits) {
                (Family::Hmac, _) => (None, Some(&b"secret"[..])),
                (Family::RsaPkcs1 | Family::RsaPss, _) => (Some(&rsa.0[..]), Some(&rsa.1[..])),
                (Family::Ecdsa, 256) => (Some(&p256.0[..]), Some(&p256.1[..])),
                (Family::Ecdsa, _) => (Some(&p384.0[..]), Some(&p384.1[..])),
                (Family::Ed25519, _) => (Some(&ed.0[..]), Some(&ed.1[..])),
            };
            let keys = Keys::read(method, public, private).unwrap_or_else(|why| panic!("{method:?}: {why}"));
            let mut signed = keys.sign(b"message").unwrap();
            assert!(keys.verify(b"message", &signed), "{method:?}");
            assert!(!keys.verify(b"massage", &signed), "{method:?}");
            signed[0] ^= 1;
            assert!(!keys.verify(b"message", &signed), "{method:?}");
        }
    }

    #[test]
    fn keys_that_do_not_belong_together_are_refused() {
        let (one, other) = (pem(&rcgen::PKCS_ED25519), pem(&rcgen::PKCS_ED25519));
        let method = Method::named("EdDSA").unwrap();
        assert!(Keys::read(method, Some(&one.0), Some(&other.1)).is_err());
        assert!(Keys::read(method, Some(&one.0), None).unwrap().sign(b"message").is_err());
        assert!(Keys::read(Method::named("RS256").unwrap(), Some(&one.0), Some(&one.1)).is_err());
        assert!(Keys::read(method, None, Some(&one.1)).is_err());
    }
}
