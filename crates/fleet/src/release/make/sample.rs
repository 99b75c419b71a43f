//! A small real release to try everything with: two Debian packages, one image, three steps.

use std::path::{Path, PathBuf};
use std::process::Command;

use jiff::Timestamp;
use serde_json::json;

use super::{MakeError, Maturity, Published, build, disk, publish, sign};
use crate::artifact::digest_of;
use crate::artifact::files::{make_dir, write_atomic, write_atomic_with_mode};
use crate::artifact::oci::Layout;
use crate::release::make::build::Description;
use crate::release::{ArtifactName, SecretKey, Tag, Trust, Version};

const PACKAGES: [&str; 2] = ["capstan-sample", "capstan-sample-tools"];
const IMAGE: &str = "capstan-sample-image";

/// What was made.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The repository with the signed release.
    pub repository: PathBuf,
    /// The trust file that accepts it.
    pub trust: PathBuf,
    /// The secret key that signed it.
    pub key: PathBuf,
    /// The release.
    pub published: Published,
}

/// Makes a sample release of this version below `dir`: `repository/`, `trust.json` and `release.key`. Called again
/// with a higher version it adds that release, signed with the same key.
pub fn sample(dir: &Path, version: &Version, now: Timestamp) -> Result<Sample, MakeError> {
    make_dir(dir).map_err(disk(dir))?;
    let (key_path, trust) = (dir.join("release.key"), dir.join("trust.json"));
    let key = key_at(&key_path, &trust)?;
    let draft = dir.join(format!(".sample.{:016x}.draft", rand::random::<u64>()));
    let made = make(&draft, dir, version, &key, now);
    let _ = std::fs::remove_dir_all(&draft);
    Ok(Sample { repository: dir.join("repository"), trust, key: key_path, published: made? })
}

fn make(
    draft: &Path,
    dir: &Path,
    version: &Version,
    key: &SecretKey,
    now: Timestamp,
) -> Result<Published, MakeError> {
    for name in PACKAGES {
        make_package(draft, name, version)?;
    }
    make_image(draft, version)?;
    let path = draft.join("release.toml");
    write_atomic(&path, description(version).as_bytes()).map_err(disk(&path))?;
    let built = draft.join("built");
    build(&Description::read(&path)?, draft, &built, now)?;
    sign(&built, key)?;
    publish(&built, &dir.join("repository"), Maturity::Released, now)
}

fn key_at(path: &Path, trust: &Path) -> Result<SecretKey, MakeError> {
    if path.exists() {
        return Ok(SecretKey::from_text(&std::fs::read_to_string(path).map_err(disk(path))?)?);
    }
    let key = SecretKey::generate()?;
    let file = serde_json::to_vec_pretty(&Trust::in_all_of(vec![key.public()]));
    let file = file.map_err(|e| MakeError::Description { path: trust.to_owned(), why: e.to_string() })?;
    write_atomic(trust, &file).map_err(disk(trust))?;
    write_atomic_with_mode(path, key.to_text().as_bytes(), 0o600).map_err(disk(path))?;
    Ok(key)
}

fn description(version: &Version) -> String {
    let [one, two] = PACKAGES;
    let tag = tag_of(version);
    format!(
        r#"version = "{version}"
packages = ["{one}.deb", "{two}.deb"]

[[images]]
name = "{IMAGE}"
tag = "{tag}"
layout = "image"

[[steps]]
name = "meet"
kind = "barrier"
timeout_seconds = 60

[[steps]]
name = "update"
kind = "rolling"
timeout_seconds = 300
actions = [{{ packages = ["{one}", "{two}"] }}, {{ images = ["{IMAGE}"] }}]
health = {{ probe = {{ command = {{ argv = ["true"] }} }}, min_healthy_seconds = 0, deadline_seconds = 60 }}

[[steps]]
name = "check"
kind = "barrier"
timeout_seconds = 60
actions = [{{ command = {{ argv = ["true"], after_crash = "rerun" }} }}]
"#
    )
}

/// A version may hold what a tag may not.
fn tag_of(version: &Version) -> String {
    version
        .as_str()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' })
        .collect()
}

fn make_package(draft: &Path, name: &str, version: &Version) -> Result<(), MakeError> {
    let tree = draft.join(name);
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Capstan <nobody@example.invalid>\n\
         Description: a sample package\n"
    );
    write(&tree.join("DEBIAN/control"), &control)?;
    write(&tree.join(format!("usr/share/{name}/version")), &format!("{version}\n"))?;
    let deb = draft.join(format!("{name}.deb"));
    let mut command = Command::new("dpkg-deb");
    let output = command.args(["--root-owner-group", "--build"]).arg(&tree).arg(&deb).output();
    let failed = |why: String| MakeError::Program { program: "dpkg-deb".to_owned(), why };
    let output = output.map_err(|e| failed(e.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

fn write(path: &Path, text: &str) -> Result<(), MakeError> {
    if let Some(dir) = path.parent() {
        make_dir(dir).map_err(disk(dir))?;
    }
    std::fs::write(path, text).map_err(disk(path))
}

/// An image with one layer, which holds one file.
fn make_image(draft: &Path, version: &Version) -> Result<(), MakeError> {
    let layout = Layout::new(draft.join("image"));
    layout.prepare()?;
    let layer = tar_of("version", format!("{version}\n").as_bytes());
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/true"], "Labels": {"version": version.as_str()}},
        "rootfs": {"type": "layers", "diff_ids": [digest_of(&layer)]},
    });
    let config =
        layout.write_blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
    let layer = layout.write_blob("application/vnd.oci.image.layer.v1.tar", &layer)?;
    let manifest_type = crate::artifact::oci::MANIFEST;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": manifest_type,
        "config": config,
        "layers": [layer],
    });
    let manifest = layout.write_blob(manifest_type, manifest.to_string().as_bytes())?;
    let wrong =
        |e: crate::release::NameError| MakeError::Description { path: draft.to_owned(), why: e.to_string() };
    let name = IMAGE.parse::<ArtifactName>().map_err(wrong)?;
    let tag = tag_of(version).parse::<Tag>().map_err(wrong)?;
    Ok(layout.tag(&name, &tag, manifest)?)
}

/// A tar archive of one small file, in the form that every reader knows (ustar).
fn tar_of(name: &str, content: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut header = [0_u8; BLOCK];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", content.len()));
    put(136, "00000000000\0");
    // The checksum counts its own field as blanks.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    archive
}
