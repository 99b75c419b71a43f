//! What a client shows brokers, and how it knows them.

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, ClientTlsConfig};
use tonic::{Request, Status};

use crate::ClientError;

/// The credential of a client and the authority of its brokers.
#[derive(Clone, Default)]
pub struct Access {
    key: Option<MetadataValue<Ascii>>,
    authority: Option<Certificate>,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (key, authority) = (self.key.is_some(), self.authority.is_some());
        write!(f, "Access {{ key: {key}, authority: {authority} }}")
    }
}

impl Access {
    /// Shows this access key with every request.
    pub fn with_key(self, key: &str) -> Result<Access, ClientError> {
        let wrong = |_| ClientError::Invalid("the access key has characters that no key has".to_owned());
        let mut key = MetadataValue::try_from(format!("Bearer {}", key.trim())).map_err(wrong)?;
        key.set_sensitive(true);
        Ok(Access { key: Some(key), ..self })
    }

    /// Knows brokers (`https://host:port`) by certificates that this authority (PEM) signed.
    #[must_use]
    pub fn with_authority(self, pem: impl AsRef<[u8]>) -> Access {
        Access { authority: Some(Certificate::from_pem(pem)), ..self }
    }

    pub(crate) fn tls(&self) -> Result<ClientTlsConfig, ClientError> {
        let missing = || {
            let why = "the brokers speak TLS: name the authority that signed their certificates";
            ClientError::Invalid(why.to_owned())
        };
        let authority = self.authority.clone().ok_or_else(missing)?;
        Ok(ClientTlsConfig::new().ca_certificate(authority))
    }

    pub(crate) fn signature(&self) -> Signature {
        Signature(self.key.clone())
    }
}

/// Puts the access key into every request.
#[derive(Clone)]
pub struct Signature(Option<MetadataValue<Ascii>>);

impl std::fmt::Debug for Signature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signature")
    }
}

impl Interceptor for Signature {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            request.metadata_mut().insert("authorization", key.clone());
        }
        Ok(request)
    }
}
