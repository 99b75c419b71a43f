//! Saves documents to a directory and puts them back.
//!
//! Each token is saved as it is at one moment, after everything that was acknowledged before. A manifest, written last,
//! names the collections with their indexes, and every file with its length and its hash: a directory without a valid
//! manifest is no backup.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use bson::Document;
use capstan_meta::{Store, clock};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::client::Client;
use crate::data::command::Write;
use crate::data::read_pair;
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{ClusterKey, Collections};
use crate::spec::{CollectionId, CollectionSpec};
use crate::storage::layout;

/// The file that makes a directory a backup.
const MANIFEST: &str = "manifest.json";
/// The version of the format.
const FORMAT: u32 = 1;
/// Bytes of documents that are put back at a time.
const BATCH_BYTES: usize = 512 * 1024;

/// What a backup has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    format: u32,
    /// When it was begun, in seconds since 1970.
    pub created_at: u64,
    token_digits: u8,
    collections: Vec<Saved>,
    tokens: Vec<SavedToken>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Saved {
    database: String,
    collection: String,
    spec: CollectionSpec,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SavedToken {
    token: String,
    /// The position of its log.
    position: u64,
    bytes: u64,
    sha256: String,
}

impl Manifest {
    /// Collections, tokens and bytes of the backup.
    #[must_use]
    pub fn size(&self) -> (usize, usize, u64) {
        (self.collections.len(), self.tokens.len(), self.tokens.iter().map(|token| token.bytes).sum())
    }

    /// Reads the manifest of a backup.
    pub fn read(dir: &Path) -> Result<Manifest, DocsError> {
        let path = dir.join(MANIFEST);
        let text = std::fs::read(&path).map_err(|error| failed("read", &path, &error))?;
        let manifest: Manifest = serde_json::from_slice(&text)
            .map_err(|error| DocsError::refused(format!("{} is not a manifest: {error}", path.display())))?;
        if manifest.format != FORMAT {
            return Err(DocsError::refused(format!(
                "the backup has format {}, not {FORMAT}",
                manifest.format
            )));
        }
        Ok(manifest)
    }
}

fn failed(what: &str, path: &Path, error: &std::io::Error) -> DocsError {
    DocsError::Refused(format!("cannot {what} {}: {error}", path.display()))
}

fn file_of(dir: &Path, token: &str) -> PathBuf {
    dir.join(format!("token-{token}.pairs"))
}

/// Saves everything to a directory that must not be there yet. `progress` is told tokens done and all tokens.
pub async fn back_up(
    client: &Client,
    store: &Store,
    dir: &Path,
    mut progress: impl FnMut(usize, usize),
) -> Result<Manifest, DocsError> {
    let none = || DocsError::NotFound("there is no document store yet".to_owned());
    let digits = store.read(&ClusterKey {}).await?.ok_or_else(none)?.record.token_digits;
    std::fs::create_dir(dir).map_err(|error| failed("create", dir, &error))?;
    let created_at = clock::since_epoch().as_secs();
    let listed = store.list(&Collections {}).await?;
    let collections = listed.iter().map(|(key, found)| Saved {
        database: key.database.to_string(),
        collection: key.collection.to_string(),
        spec: found.record.clone(),
    });
    let collections: Vec<Saved> = collections.collect();
    let tokens: Vec<Token> = Token::all(digits).collect();
    let mut saved = Vec::with_capacity(tokens.len());
    for (at, token) in tokens.iter().enumerate() {
        progress(at, tokens.len());
        let path = file_of(dir, &token.to_string());
        let mut file = std::fs::File::create_new(&path).map_err(|error| failed("create", &path, &error))?;
        let (mut hash, mut bytes) = (Sha256::new(), 0);
        let position = client
            .dump(*token, |chunk| {
                hash.update(chunk);
                bytes += chunk.len() as u64;
                file.write_all(chunk).map_err(|error| failed("write", &path, &error))
            })
            .await?;
        file.sync_all().map_err(|error| failed("write", &path, &error))?;
        saved.push(SavedToken { token: token.to_string(), position, bytes, sha256: hex(hash) });
    }
    progress(tokens.len(), tokens.len());
    let manifest = Manifest { format: FORMAT, created_at, token_digits: digits, collections, tokens: saved };
    write_manifest(dir, &manifest)?;
    Ok(manifest)
}

fn write_manifest(dir: &Path, manifest: &Manifest) -> Result<(), DocsError> {
    let (path, draft) = (dir.join(MANIFEST), dir.join("manifest.draft"));
    let text = serde_json::to_vec_pretty(manifest).map_err(|error| DocsError::Broken(error.to_string()))?;
    let write = || {
        let mut file = std::fs::File::create(&draft)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&draft, &path)?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|error| failed("write", &path, &error))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Puts a backup back: its databases and collections must not be there. Nothing is changed before every file was
/// checked. Returns the number of documents.
pub async fn restore(
    client: &Client,
    dir: &Path,
    mut progress: impl FnMut(usize, usize),
) -> Result<u64, DocsError> {
    let manifest = Manifest::read(dir)?;
    verify(dir, &manifest)?;
    let ids = create(client, &manifest).await?;
    let mut documents = 0;
    for (at, saved) in manifest.tokens.iter().enumerate() {
        progress(at, manifest.tokens.len());
        documents += restore_token(client, dir, saved, &ids).await?;
    }
    // Indexes last: unique ones look at the documents that are there.
    for saved in &manifest.collections {
        for (field, index) in &saved.spec.indexes {
            let path = format!("/db/{}/{}/index/{field}", saved.database, saved.collection);
            client.send("POST", &path, &[], Some(&json!({ "options": index.options }))).await?;
        }
    }
    progress(manifest.tokens.len(), manifest.tokens.len());
    Ok(documents)
}

fn verify(dir: &Path, manifest: &Manifest) -> Result<(), DocsError> {
    for saved in &manifest.tokens {
        let path = file_of(dir, &saved.token);
        let mut file = std::fs::File::open(&path).map_err(|error| failed("read", &path, &error))?;
        let mut hash = Sha256::new();
        let bytes = std::io::copy(&mut file, &mut hash).map_err(|error| failed("read", &path, &error))?;
        if bytes != saved.bytes || hex(hash) != saved.sha256 {
            return Err(DocsError::refused(format!("{} is damaged; nothing was restored", path.display())));
        }
    }
    Ok(())
}

/// The saved collections by the ids that they had.
type Names = BTreeMap<CollectionId, (String, String)>;

async fn create(client: &Client, manifest: &Manifest) -> Result<Names, DocsError> {
    let known = client.send("GET", "/db", &[], None).await?;
    for saved in &manifest.collections {
        let is_known = known.as_array().is_some_and(|known| known.iter().any(|name| *name == saved.database));
        let there = match is_known {
            true => client.send("GET", &format!("/db/{}", saved.database), &[], None).await?,
            false => json!([]),
        };
        if there.as_array().is_some_and(|there| there.iter().any(|name| *name == saved.collection)) {
            let (database, collection) = (&saved.database, &saved.collection);
            return Err(DocsError::refused(format!(
                "collection {collection} of database {database} is there already; nothing was restored"
            )));
        }
    }
    let mut names = Names::new();
    for saved in &manifest.collections {
        client.send("POST", "/db", &[], Some(&json!({ "name": saved.database }))).await?;
        let body =
            json!({ "collection": saved.collection, "options": { "primaryKey": saved.spec.primary_key } });
        client.send("POST", &format!("/db/{}", saved.database), &[], Some(&body)).await?;
        names.insert(saved.spec.id, (saved.database.clone(), saved.collection.clone()));
    }
    Ok(names)
}

/// What is put back at a time, of one collection.
#[derive(Default)]
struct Batch {
    documents: Vec<Document>,
    chunks: Vec<(bson::Binary, bson::Binary)>,
    bytes: usize,
}

async fn restore_token(
    client: &Client,
    dir: &Path,
    saved: &SavedToken,
    names: &Names,
) -> Result<u64, DocsError> {
    let path = file_of(dir, &saved.token);
    let file = std::fs::File::open(&path).map_err(|error| failed("read", &path, &error))?;
    let mut content: Box<dyn Read + Send> = Box::new(BufReader::new(file));
    let mut batches: BTreeMap<CollectionId, Batch> = BTreeMap::new();
    let mut documents = 0;
    while let Some((key, value)) = read_pair(&mut content).map_err(|error| failed("read", &path, &error))? {
        // Index entries and reservations are made again.
        let Some((kind @ (b'd' | b'a'), id, rest)) = layout::split(&key) else { continue };
        if !names.contains_key(&id) {
            continue;
        }
        let batch = batches.entry(id).or_default();
        batch.bytes += value.len();
        if kind == b'd' {
            let document = bson::deserialize_from_slice(&value);
            batch.documents.push(document.map_err(|error| DocsError::Broken(error.to_string()))?);
            documents += 1;
        } else {
            batch.chunks.push((binary(rest.to_vec()), binary(value)));
        }
        if batch.bytes >= BATCH_BYTES {
            let batch = std::mem::take(batch);
            put(client, &saved.token, names.get(&id), batch).await?;
        }
    }
    for (id, batch) in batches {
        put(client, &saved.token, names.get(&id), batch).await?;
    }
    Ok(documents)
}

fn binary(bytes: Vec<u8>) -> bson::Binary {
    bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes }
}

async fn put(
    client: &Client,
    token: &str,
    name: Option<&(String, String)>,
    batch: Batch,
) -> Result<(), DocsError> {
    let Some((database, collection)) = name.filter(|_| batch.bytes > 0) else { return Ok(()) };
    let write = Write::Restore { documents: batch.documents, chunks: batch.chunks };
    let body = bson::serialize_to_vec(&write).map_err(|error| DocsError::Broken(error.to_string()))?;
    // tidy: allow, because it is a path of the HTTP API
    client.post_bytes(&format!("/cluster/restore/{database}/{collection}/{token}"), body).await
}
