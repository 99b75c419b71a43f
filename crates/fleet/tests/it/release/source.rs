//! Releases from a web server, through a proxy, from GitHub; downloads that break off.

use std::path::Path;

use capstan_fleet::artifact::{Cache, FetchError, digest_of};
use capstan_fleet::release::{GitHub, Http, Listed, Prereleases, ReleaseFile, Source, SourceError, newest};
use capstan_fleet::run::{Host, Permission};
use capstan_testkit::TempDir;
use serde_json::json;

use super::server::{Fault, Server};
use crate::install::fixture::{Deb, update, version};
use crate::install::{Workshop, stop};

fn http(server: &Server) -> Http {
    Http::new(&server.address, None).unwrap()
}

fn versions(listed: &[Listed]) -> Vec<&str> {
    listed.iter().map(|listed| listed.version.as_str()).collect()
}

#[tokio::test]
async fn a_host_installs_from_a_web_server() {
    let workshop = Workshop::new("web");
    workshop.release_svc("1.0", Deb::default());
    workshop.release_svc("1:0.1+b~2", Deb::default());
    let server = Server::start(workshop.repository(), Fault::None).await;
    let source = http(&server);
    assert_eq!(versions(&source.list().await.unwrap()), ["1.0", "1:0.1+b~2"]);
    let host = Host::open(workshop.config("h1"), std::sync::Arc::new(source)).unwrap();
    update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
    update(&host, 2, "1:0.1+b~2", Permission::Upgrade).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1:0.1+b~2 ii"]);
}

/// A file of a release in a directory of its own.
struct Blob {
    dir: TempDir,
    content: Vec<u8>,
}

impl Blob {
    fn new(label: &str) -> Blob {
        let dir = TempDir::new(label).unwrap();
        let content: Vec<u8> = (0..500_000_u32).flat_map(|n| (n % 251).to_le_bytes()).collect();
        let blob = Blob { dir, content };
        std::fs::create_dir_all(blob.path().parent().unwrap()).unwrap();
        std::fs::write(blob.path(), &blob.content).unwrap();
        blob
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.join("repository/releases/1.0").join(self.file().to_string())
    }

    fn file(&self) -> ReleaseFile {
        ReleaseFile::Blob(digest_of(&self.content))
    }

    async fn fetch(&self, source: &dyn Source) -> Result<std::path::PathBuf, FetchError> {
        let cache = Cache::open(self.dir.join("cache")).unwrap();
        let (digest, size) = (digest_of(&self.content), self.content.len() as u64);
        cache.fetch(source, &version("1.0"), &self.file(), (&digest, size), &stop()).await
    }

    fn repository(&self) -> std::path::PathBuf {
        self.dir.join("repository")
    }
}

#[tokio::test]
async fn a_download_that_breaks_off_goes_on_where_it_ended() {
    let blob = Blob::new("resume");
    let server = Server::start(blob.repository(), Fault::BreaksOff(2)).await;
    let path = blob.fetch(&http(&server)).await.unwrap();
    assert!(std::fs::read(path).unwrap() == blob.content);
    assert_eq!(server.requests(), (3, 2));
    // What is in the cache is not fetched again.
    blob.fetch(&http(&server)).await.unwrap();
    assert_eq!(server.requests(), (3, 2));
}

#[tokio::test]
async fn a_server_without_ranges_or_with_too_much_to_do_is_enough() {
    let blob = Blob::new("busy");
    let server = Server::start(blob.repository(), Fault::Busy(2)).await;
    blob.fetch(&http(&server)).await.unwrap();
    let blob = Blob::new("whole");
    let cache = blob.dir.join("cache/partial");
    std::fs::create_dir_all(&cache).unwrap();
    std::fs::write(cache.join(digest_of(&blob.content).hex()), &blob.content[..1000]).unwrap();
    let server = Server::start(blob.repository(), Fault::NoRanges).await;
    let path = blob.fetch(&http(&server)).await.unwrap();
    assert!(std::fs::read(path).unwrap() == blob.content);
}

#[tokio::test]
async fn what_an_earlier_download_left_is_not_believed() {
    let blob = Blob::new("left");
    let partial = blob.dir.join("cache/partial");
    std::fs::create_dir_all(&partial).unwrap();
    std::fs::write(partial.join(digest_of(&blob.content).hex()), [0; 1000]).unwrap();
    let server = Server::start(blob.repository(), Fault::None).await;
    let error = blob.fetch(&http(&server)).await.unwrap_err();
    assert!(matches!(error, FetchError::Tampered { .. }), "{error}");
    // The wrong bytes are gone, so that the next try begins anew.
    blob.fetch(&http(&server)).await.unwrap();
}

#[tokio::test]
async fn a_rotten_file_in_the_cache_is_fetched_again() {
    let blob = Blob::new("rotten");
    let server = Server::start(blob.repository(), Fault::None).await;
    let path = blob.fetch(&http(&server)).await.unwrap();
    std::fs::write(&path, "rotten").unwrap();
    let path = blob.fetch(&http(&server)).await.unwrap();
    assert!(std::fs::read(path).unwrap() == blob.content);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_so() {
    let source = Http::new("http://127.0.0.1:1/x", None).unwrap();
    let error = source.list().await.unwrap_err();
    assert!(matches!(error, SourceError::Unreachable { .. }), "{error}");
    assert!(error.to_string().starts_with("http://127.0.0.1:1/x/index.json cannot be reached: "), "{error}");
    let server = Server::start("/nowhere", Fault::None).await;
    let error = http(&server).list().await.unwrap_err().to_string();
    assert_eq!(error, format!("{}/index.json has no such file", server.address));
}

#[tokio::test]
async fn downloads_go_through_the_proxy_when_there_is_one() {
    let workshop = Workshop::new("proxy");
    workshop.release_svc("1.0", Deb::default());
    // A proxy is asked for a whole address; this one answers from its own directory.
    let proxy = Server::start(workshop.repository(), Fault::None).await;
    let source = Http::new("http://releases.example.invalid", Some(&proxy.address)).unwrap();
    assert_eq!(versions(&source.list().await.unwrap()), ["1.0"]);
    assert_eq!(proxy.requests().0, 1);
    assert!(Http::new("http://a.example.invalid", Some("not a proxy")).is_err());
}

/// A page of GitHub's API, as a file that the server serves.
fn page(dir: &Path, path: &str, content: &serde_json::Value) {
    let file = dir.join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, content.to_string()).unwrap();
}

#[tokio::test]
async fn releases_are_found_at_github() {
    let workshop = Workshop::new("github");
    workshop.release_svc("2021.04.19-13965", Deb::default());
    let dir = workshop.dir.join("github");
    let server = Server::start(&dir, Fault::None).await;
    let released = workshop.repository().join("releases/2021.04.19-13965");
    let mut assets = Vec::new();
    for entry in std::fs::read_dir(&released).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        std::fs::create_dir_all(dir.join("assets")).unwrap();
        std::fs::copy(released.join(&name), dir.join("assets").join(&name)).unwrap();
        let url = format!("{}/assets/{name}", server.address);
        assets.push(json!({"name": name, "browser_download_url": url, "size": 1}));
    }
    let release = |tag: &str, draft: bool, prerelease: bool| {
        json!({"tag_name": tag, "draft": draft, "prerelease": prerelease, "id": 7,
               "published_at": "2021-04-19T00:00:00Z", "assets": assets})
    };
    let all = json!([
        release("release-2021.04.19-13965", false, false),
        release("release-2021.05.01-14000", false, true),
        release("release-2021.06.01-15000", true, false),
        release("test-2021.07.01-16000", false, false),
        release("release-nonsense", false, false),
    ]);
    page(&dir, "repos/o/r/releases%per_page=100&page=1", &all);
    page(&dir, "repos/o/r/releases/tags/release-2021.04.19-13965", &all[0]);
    let source = GitHub::new(&server.address, "o/r", "release-", None).unwrap();
    let listed = source.list().await.unwrap();
    assert_eq!(versions(&listed), ["2021.04.19-13965", "2021.05.01-14000"]);
    assert_eq!(newest(&listed, Prereleases::Exclude).unwrap().version, version("2021.04.19-13965"));
    assert_eq!(newest(&listed, Prereleases::Include).unwrap().version, version("2021.05.01-14000"));
    let host = Host::open(workshop.config("h1"), std::sync::Arc::new(source)).unwrap();
    update(&host, 1, "2021.04.19-13965", Permission::Upgrade).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 2021.04.19-13965 ii"]);
}

#[tokio::test]
async fn pages_of_github_are_read_until_the_last() {
    let dir = TempDir::new("pages").unwrap();
    let release = |number: usize| json!({"tag_name": format!("v{number}"), "draft": false, "prerelease": false, "assets": []});
    let first: Vec<_> = (0..100).map(release).collect();
    page(dir.path(), "repos/o/r/releases%per_page=100&page=1", &json!(first));
    page(dir.path(), "repos/o/r/releases%per_page=100&page=2", &json!([release(100)]));
    let server = Server::start(dir.path(), Fault::None).await;
    let source = GitHub::new(&server.address, "o/r", "v", None).unwrap();
    assert_eq!(source.list().await.unwrap().len(), 101);
    assert_eq!(server.requests().0, 2);
}
