//! Saves documents to a directory and puts them back.
//!
//! Each token is saved as it is at one moment, after everything that was acknowledged before. A manifest, written last,
//! names the collections with their indexes, and every file with its length and its hash: a directory without a valid
//! manifest is no backup.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read, Write as _};
use std::path::{Path, PathBuf};

use bson::Document;
use capstan_meta::{Store, clock};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::client::Client;
use crate::data::command::Write;
use crate::data::{PAIR_HEAD, pair_lengths, read_pair};
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{ClusterKey, Collections};
use crate::spec::{BackupScope, CollectionId, CollectionSpec, IndexSpec};
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
    progress: impl FnMut(usize, usize),
) -> Result<Manifest, DocsError> {
    save(client, store, dir, &BackupScope::default(), progress).await
}

/// [`back_up`] of some collections.
pub(super) async fn save(
    client: &Client,
    store: &Store,
    dir: &Path,
    scope: &BackupScope,
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
    let collections: Vec<Saved> =
        collections.filter(|saved| scope.has(&saved.database, &saved.collection)).collect();
    let ids: BTreeSet<CollectionId> = collections.iter().map(|saved| saved.spec.id).collect();
    let tokens: Vec<Token> = Token::all(digits).collect();
    let mut saved = Vec::with_capacity(tokens.len());
    for (at, token) in tokens.iter().enumerate() {
        progress(at, tokens.len());
        let path = file_of(dir, &token.to_string());
        let mut file = std::fs::File::create_new(&path).map_err(|error| failed("create", &path, &error))?;
        let (mut hash, mut bytes, mut sieve) = (Sha256::new(), 0, Sieve::new(&ids));
        let position = client
            .dump(*token, |chunk| {
                let kept = sieve.push(chunk).map_err(|error| failed("write", &path, &error))?;
                hash.update(&kept);
                bytes += kept.len() as u64;
                file.write_all(&kept).map_err(|error| failed("write", &path, &error))
            })
            .await?;
        sieve.finish(*token)?;
        file.sync_all().map_err(|error| failed("write", &path, &error))?;
        saved.push(SavedToken { token: token.to_string(), position, bytes, sha256: hex(hash) });
    }
    progress(tokens.len(), tokens.len());
    let manifest = Manifest { format: FORMAT, created_at, token_digits: digits, collections, tokens: saved };
    write_manifest(dir, &manifest)?;
    Ok(manifest)
}

/// Keeps the documents and the files of some collections of a stream of pairs, whatever pieces it comes in.
struct Sieve<'c> {
    keep: &'c BTreeSet<CollectionId>,
    /// The beginning of a pair whose end has not come yet.
    rest: Vec<u8>,
}

impl<'c> Sieve<'c> {
    fn new(keep: &'c BTreeSet<CollectionId>) -> Sieve<'c> {
        Sieve { keep, rest: Vec::new() }
    }

    fn push(&mut self, chunk: &[u8]) -> std::io::Result<Vec<u8>> {
        self.rest.extend_from_slice(chunk);
        let (mut kept, mut at) = (Vec::new(), 0);
        while let Some(head) = self.rest.get(at..).and_then(|rest| rest.first_chunk::<PAIR_HEAD>()) {
            let (key, value) = pair_lengths(*head)?;
            let Some(pair) = self.rest.get(at..at + PAIR_HEAD + key + value) else { break };
            if pair.get(PAIR_HEAD..PAIR_HEAD + key).is_some_and(|key| self.keeps(key)) {
                kept.extend_from_slice(pair);
            }
            at += pair.len();
        }
        self.rest.drain(..at);
        Ok(kept)
    }

    /// Index entries and reservations are made again by a restore.
    fn keeps(&self, key: &[u8]) -> bool {
        matches!(layout::split(key), Some((b'd' | b'a', id, _)) if self.keep.contains(&id))
    }

    fn finish(self, token: Token) -> Result<(), DocsError> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(DocsError::Busy(format!("the dump of token {token} was cut off"))),
        }
    }
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

/// What of a backup is put back, and as what.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) scope: BackupScope,
    /// Stands behind the name of every collection.
    pub(super) suffix: String,
    pub(super) indexes: Indexes,
}

/// Which indexes are made again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Indexes {
    #[default]
    All,
    /// Without those that delete documents whose time is over.
    WithoutExpiry,
    None,
}

impl Indexes {
    fn has(self, index: &IndexSpec) -> bool {
        let expires = index.expires_at || index.expires_after_seconds.is_some();
        match self {
            Indexes::All => true,
            Indexes::WithoutExpiry => !expires,
            Indexes::None => false,
        }
    }
}

/// Puts a backup back: its databases and collections must not be there. Nothing is changed before every file was
/// checked. Returns the number of documents.
pub async fn restore(
    client: &Client,
    dir: &Path,
    progress: impl FnMut(usize, usize),
) -> Result<u64, DocsError> {
    restore_some(client, dir, &Selection::default(), progress).await
}

/// [`restore`] of some collections, perhaps under other names.
pub(super) async fn restore_some(
    client: &Client,
    dir: &Path,
    selection: &Selection,
    mut progress: impl FnMut(usize, usize),
) -> Result<u64, DocsError> {
    let mut manifest = Manifest::read(dir)?;
    verify(dir, &manifest)?;
    manifest.collections.retain(|saved| selection.scope.has(&saved.database, &saved.collection));
    manifest.collections.iter_mut().for_each(|saved| saved.collection.push_str(&selection.suffix));
    let ids = create(client, &manifest).await?;
    let mut documents = 0;
    for (at, saved) in manifest.tokens.iter().enumerate() {
        progress(at, manifest.tokens.len());
        documents += restore_token(client, dir, saved, &ids).await?;
    }
    // Indexes last: unique ones look at the documents that are there.
    for saved in &manifest.collections {
        for (field, index) in saved.spec.indexes.iter().filter(|(_, index)| selection.indexes.has(index)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::machine::put_pair;

    #[test]
    fn a_sieve_keeps_the_same_pairs_whatever_pieces_they_come_in() {
        let (mine, other) = (CollectionId(1), CollectionId(2));
        let document = |collection, id: i32| layout::document(collection, &bson::Bson::Int32(id));
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for id in 0..20 {
            put_pair(&mut stream, &document(other, id), b"theirs");
            put_pair(&mut stream, &layout::index(mine, 0), b"");
            for out in [&mut stream, &mut expected] {
                put_pair(out, &document(mine, id), format!("mine {id}").as_bytes());
                put_pair(out, &layout::attachments(mine, &bson::Bson::Int32(id)), b"piece");
            }
        }
        let keep = BTreeSet::from([mine]);
        for length in [1, 7, 8, 9, 100, stream.len()] {
            let (mut sieve, mut kept) = (Sieve::new(&keep), Vec::new());
            for chunk in stream.chunks(length) {
                kept.extend(sieve.push(chunk).unwrap());
            }
            sieve.finish("7".parse().unwrap()).unwrap();
            assert_eq!(kept, expected, "pieces of {length} bytes");
        }
        // A stream that was cut off is no dump, and one with a wrong length is no stream of pairs.
        let mut sieve = Sieve::new(&keep);
        sieve.push(stream.get(..stream.len() - 1).unwrap()).unwrap();
        assert!(sieve.finish("7".parse().unwrap()).is_err());
        assert!(Sieve::new(&keep).push(&[0xff; 20]).is_err());
    }
}
