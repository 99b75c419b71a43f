//! What is protected? An object is a service and a path: `redis:cluster/cache-1`, `meta:/capstan/hosts`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::grant::BadGrant;

/// Longest object in bytes: metadata keys are the longest, and names in them have at most 255 bytes each.
const MAX_LEN: usize = 4_096;

/// Something that a request wants to read or change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Object {
    service: Cow<'static, str>,
    path: String,
    /// Where the parts of the path are in it, found once: a decision compares them with many patterns.
    parts: Vec<(usize, usize)>,
}

impl Object {
    /// A whole service.
    #[must_use]
    pub const fn service(service: &'static str) -> Object {
        Object { service: Cow::Borrowed(service), path: String::new(), parts: Vec::new() }
    }

    /// A part of a service. Segments come from requests: an empty one, or one with a slash, could name another object
    /// than the one that is acted on, and is refused.
    pub fn within(service: &'static str, segments: &[&str]) -> Result<Object, BadGrant> {
        let bad = segments.iter().find(|segment| segment.is_empty() || segment.contains('/'));
        if let Some(segment) = bad {
            return Err(BadGrant(format!("{segment:?} cannot be a part of an object")));
        }
        Ok(Object::of(Cow::Borrowed(service), segments.join("/")))
    }

    /// The service.
    #[must_use]
    pub fn service_name(&self) -> &str {
        &self.service
    }

    fn of(service: Cow<'static, str>, path: String) -> Object {
        let mut at = usize::from(path.starts_with('/'));
        let mut parts = Vec::new();
        for segment in segments(&path) {
            parts.push((at, at + segment.len()));
            at += segment.len() + 1;
        }
        Object { service, path, parts }
    }

    /// The part below the service at this place.
    pub(crate) fn part(&self, at: usize) -> Option<&str> {
        let (from, to) = *self.parts.get(at)?;
        self.path.get(from..to)
    }

    /// How many parts there are below the service.
    pub(crate) fn depth(&self) -> usize {
        self.parts.len()
    }
}

/// The segments of a path; a leading slash is that of a metadata key.
pub(crate) fn segments(path: &str) -> impl Iterator<Item = &str> {
    let rest = path.strip_prefix('/').unwrap_or(path);
    rest.split('/').take(if rest.is_empty() { 0 } else { usize::MAX })
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.is_empty() {
            true => f.write_str(&self.service),
            false => write!(f, "{}:{}", self.service, self.path),
        }
    }
}

impl FromStr for Object {
    type Err = BadGrant;

    fn from_str(text: &str) -> Result<Object, BadGrant> {
        let (service, path) = text.split_once(':').unwrap_or((text, ""));
        let named = !service.is_empty() && service.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        if !named || text.len() > MAX_LEN || text.chars().any(char::is_control) {
            return Err(BadGrant(format!(
                "{text:?} is not an object; write service:path, such as redis:cluster/cache-1"
            )));
        }
        Ok(Object::of(Cow::Owned(service.to_owned()), path.to_owned()))
    }
}
