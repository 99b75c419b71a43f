//! Files of a document, kept in pieces on the document's token.

use bson::{Bson, Document, doc};
use bytes::{Bytes, BytesMut};

use crate::data::command::{Command, Read, Reply, Target, Write};
use crate::error::DocsError;
use crate::router::{Concern, Router, unexpected};

/// Bytes of a piece.
const CHUNK: usize = 512 * 1024;
/// Bytes of a file.
pub(super) const MAX_FILE: usize = 128 * 1024 * 1024;
/// Bytes of a file's name.
const MAX_NAME: usize = 255;

/// A file that is being uploaded.
pub(super) struct Upload<'r> {
    router: &'r Router,
    target: &'r Target,
    id: Bson,
    /// The pieces of one upload are stored under a name of their own: two uploads never mix.
    upload: String,
    rest: BytesMut,
    chunks: u32,
    size: usize,
}

impl<'r> Upload<'r> {
    pub(super) fn new(router: &'r Router, target: &'r Target, id: Bson) -> Upload<'r> {
        let upload = format!("{:032x}", rand::random::<u128>());
        Upload { router, target, id, upload, rest: BytesMut::new(), chunks: 0, size: 0 }
    }

    pub(super) async fn push(&mut self, bytes: &Bytes) -> Result<(), DocsError> {
        self.size += bytes.len();
        if self.size > MAX_FILE {
            return Err(DocsError::TooLarge(format!("an attachment has at most {MAX_FILE} bytes")));
        }
        self.rest.extend_from_slice(bytes);
        while self.rest.len() >= CHUNK {
            let piece = self.rest.split_to(CHUNK);
            self.send(&piece).await?;
        }
        Ok(())
    }

    async fn send(&mut self, piece: &[u8]) -> Result<(), DocsError> {
        let bytes = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: piece.to_vec() };
        let write =
            Write::Chunk { id: self.id.clone(), file: self.upload.clone(), number: self.chunks, bytes };
        self.ask(write).await?;
        self.chunks += 1;
        Ok(())
    }

    async fn ask(&self, write: Write) -> Result<Reply, DocsError> {
        let token = self.router.token_of(&self.id);
        self.router.ask(token, Command::Write(self.target.clone(), write)).await
    }

    /// Makes the file visible under its name.
    pub(super) async fn finish(mut self, name: &str, label: &str, kind: &str) -> Result<(), DocsError> {
        if !self.rest.is_empty() {
            let piece = std::mem::take(&mut self.rest);
            self.send(&piece).await?;
        }
        let about = doc! {
            "label": label,
            "_mimetype": kind,
            "_size": i64::try_from(self.size).unwrap_or(i64::MAX),
            "_cre": bson::DateTime::now().try_to_rfc3339_string().unwrap_or_default(),
            "_chunks": i64::from(self.chunks),
            "_upload": self.upload.clone(),
        };
        self.ask(Write::Attach { id: self.id.clone(), file: name.to_owned(), about }).await?;
        Ok(())
    }
}

/// Whether a file may have this name. Asked before its first piece is stored.
pub(super) fn check_name(name: &str) -> Result<(), DocsError> {
    let legal = !name.is_empty()
        && name.len() <= MAX_NAME
        && !name.contains(['/', '\\'])
        && !name.starts_with('$')
        && !name.chars().any(char::is_control);
    if legal { Ok(()) } else { Err(DocsError::refused("the name of the file is not valid")) }
}

/// The files of a document, with what clients may know about them.
pub(super) fn listed(document: &Document) -> Document {
    let files = document.get("_attachment").and_then(Bson::as_document).cloned().unwrap_or_default();
    let shown = files.into_iter().map(|(name, about)| {
        let about = about.as_document().cloned().unwrap_or_default();
        let about: Document =
            about.into_iter().filter(|(key, _)| key != "_upload" && key != "_chunks").collect();
        (name, Bson::Document(about))
    });
    shown.collect()
}

/// A file with its type.
pub(super) async fn content(
    router: &Router,
    target: &Target,
    document: &Document,
    name: &str,
) -> Result<(String, Vec<u8>), DocsError> {
    let missing = || DocsError::refused("Attachment not found");
    let files = document.get("_attachment").and_then(Bson::as_document).ok_or_else(missing)?;
    let about = files.get(name).and_then(Bson::as_document).ok_or_else(missing)?;
    let id = document.get("_id").cloned().unwrap_or(Bson::Null);
    let upload = about.get_str("_upload").map_err(|_| missing())?;
    let chunks = about.get_i64("_chunks").unwrap_or(0);
    let mut out = Vec::new();
    for number in 0..u32::try_from(chunks).unwrap_or(0) {
        let read = Read::Chunk { id: id.clone(), file: upload.to_owned(), number };
        match router.read(router.token_of(&id), target, read, Concern::Linearizable).await? {
            Reply::Bytes(Some(binary)) => out.extend(binary.bytes),
            // It was replaced or deleted meanwhile.
            Reply::Bytes(None) => return Err(missing()),
            _ => return Err(unexpected()),
        }
    }
    Ok((about.get_str("_mimetype").unwrap_or("application/octet-stream").to_owned(), out))
}
