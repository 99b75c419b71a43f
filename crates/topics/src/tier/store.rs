//! The object storage: a directory or anything that speaks S3.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};

use crate::error::TopicsError;
use crate::spec::TopicName;

/// How long one operation may take. What fails is tried again with the next round.
const WITHIN: Duration = Duration::from_secs(30);

/// Where old messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierOptions {
    /// `file:///directory` or `s3://bucket/prefix`. Credentials of S3 are taken from the usual variables
    /// (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`).
    pub url: String,
    /// Access key and secret key of S3, if they are not those of the variables.
    pub credentials: Option<Credentials>,
    /// The address of a server that speaks S3; `None`: that of the region.
    pub endpoint: Option<String>,
    /// The region.
    pub region: String,
    /// Bytes of closed files of each topic that stay in its log although they are uploaded.
    pub local_bytes: u64,
    /// How often files are looked for that can be uploaded.
    pub interval: Duration,
}

/// What S3 asks for.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub access_key: String,
    /// The secret.
    pub secret_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({})", self.access_key)
    }
}

impl TierOptions {
    /// A tier at this place, with the usual behaviour.
    #[must_use]
    pub fn new(url: &str) -> TierOptions {
        TierOptions {
            url: url.to_owned(),
            credentials: None,
            endpoint: None,
            region: "us-east-1".to_owned(),
            local_bytes: 256 << 20,
            interval: Duration::from_secs(30),
        }
    }
}

/// An object storage that is open. Clones are the same.
#[derive(Clone, Debug)]
pub struct Tier {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    pub(crate) options: TierOptions,
}

impl Tier {
    /// Opens the storage that the options name. Nothing is asked of it yet.
    pub fn open(options: TierOptions) -> Result<Tier, TopicsError> {
        let wrong =
            |why: String| TopicsError::Invalid(format!("{} is no object storage: {why}", options.url));
        if let Some(dir) = options.url.strip_prefix("file://") {
            std::fs::create_dir_all(dir).map_err(|error| wrong(error.to_string()))?;
            let objects = LocalFileSystem::new_with_prefix(dir).map_err(|error| wrong(error.to_string()))?;
            // What is renamed into place must not be lost with the power.
            let objects: Arc<dyn ObjectStore> = Arc::new(objects.with_fsync(true));
            return Ok(Tier { objects, prefix: Path::default(), options });
        }
        let Some(rest) = options.url.strip_prefix("s3://") else {
            return Err(wrong("write file:///directory or s3://bucket/prefix".to_owned()));
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let mut builder =
            AmazonS3Builder::from_env().with_bucket_name(bucket).with_region(options.region.as_str());
        if let Some(Credentials { access_key, secret_key }) = &options.credentials {
            builder = builder.with_access_key_id(access_key).with_secret_access_key(secret_key);
        }
        if let Some(endpoint) = &options.endpoint {
            let plain = endpoint.starts_with("http://");
            builder = builder.with_endpoint(endpoint).with_allow_http(plain);
        }
        let objects = builder.build().map_err(|error| wrong(error.to_string()))?;
        Ok(Tier { objects: Arc::new(objects), prefix: Path::from(prefix), options })
    }

    /// The place of a topic: with its number, so that one that is created again never finds what was before.
    pub(crate) fn place(&self, topic: &TopicName, id: u64) -> Path {
        let parts = [topic.namespace.to_string(), topic.local.to_string(), format!("{id:016x}")];
        parts.into_iter().fold(self.prefix.clone(), |path, part| path.join(part))
    }

    pub(crate) async fn put(&self, at: &Path, content: Bytes) -> Result<(), TopicsError> {
        within(self.objects.put(at, PutPayload::from_bytes(content))).await.map(drop)
    }

    pub(crate) async fn get(&self, at: &Path, from: u64, to: u64) -> Result<Bytes, TopicsError> {
        within(self.objects.get_range(at, from..to)).await
    }

    pub(crate) async fn delete(&self, at: &Path) -> Result<(), TopicsError> {
        match within(self.objects.delete(at)).await {
            // Deleted by an attempt whose answer was lost.
            Err(TopicsError::NoSuchObject(_)) => Ok(()),
            deleted => deleted,
        }
    }

    /// Everything below a place.
    pub(crate) async fn list(&self, below: &Path) -> Result<Vec<Path>, TopicsError> {
        within(self.objects.list(Some(below)).map_ok(|meta| meta.location).try_collect()).await
    }

    /// Everything that there is, with the numbers of the topics that it belongs to.
    pub(crate) async fn all(&self) -> Result<Vec<(u64, Path)>, TopicsError> {
        let listed: Vec<Path> = self.list(&self.prefix).await?;
        let id = |path: &Path| {
            let parts: Vec<_> = path.parts().collect();
            let part = parts.len().checked_sub(2).and_then(|at| parts.get(at))?;
            u64::from_str_radix(part.as_ref(), 16).ok()
        };
        Ok(listed.into_iter().filter_map(|path| Some((id(&path)?, path))).collect())
    }
}

async fn within<T>(
    operation: impl Future<Output = Result<T, object_store::Error>>,
) -> Result<T, TopicsError> {
    match tokio::time::timeout(WITHIN, operation).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(object_store::Error::NotFound { path, .. })) => Err(TopicsError::NoSuchObject(path)),
        Ok(Err(error)) => Err(TopicsError::Tier(error.to_string())),
        Err(_) => Err(TopicsError::Tier("it does not answer".to_owned())),
    }
}
