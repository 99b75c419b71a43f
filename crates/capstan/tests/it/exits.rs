//! Exit codes that scripts rely on.

use std::net::TcpListener;
use std::process::Stdio;

use capstan_testkit::{Port, TempDir};

use crate::binary::{DEADLINE, Daemon, capstan, command, finish};

#[test]
fn usage_is_two_and_help_is_zero() {
    assert_eq!(capstan(".".as_ref(), &["frobnicate"]).code, 2);
    assert_eq!(capstan(".".as_ref(), &["meta", "get"]).code, 2);
    assert_eq!(capstan(".".as_ref(), &["--help"]).code, 0);
    assert_eq!(capstan(".".as_ref(), &["--version"]).ok(), "capstan 0.1.0\n");
}

#[test]
fn a_store_that_is_not_there_is_unavailable() {
    let free = Port::reserve().unwrap();
    let endpoint = format!("http://{}", free.addr());
    for args in [&["status"][..], &["hosts", "list"], &["meta", "get", "/a"]] {
        let args: Vec<&str> = args.iter().copied().chain(["--meta", &endpoint]).collect();
        let run = capstan(".".as_ref(), &args);
        assert_eq!(run.code, 69, "{run:#?}");
        assert!(run.stderr.contains(&endpoint) && run.stderr.contains("--meta"), "{run:#?}");
    }
}

#[test]
fn an_endpoint_that_is_none_is_a_wrong_setting() {
    let run = capstan(".".as_ref(), &["status", "--meta", "localhost"]);
    assert_eq!(run.code, 64);
    assert!(run.stderr.contains("write http://host:port"), "{run:#?}");
}

#[test]
fn a_port_in_use_is_named_and_nothing_is_made() {
    let dir = TempDir::new("taken").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let run = capstan(dir.path(), &["meta", "serve", "--dir", "data", "--listen", &address]);
    assert_eq!(run.code, 71, "{run:#?}");
    assert!(run.stderr.contains(&address) && run.stderr.contains("meta.listen"), "{run:#?}");
    assert!(!dir.join("data").exists());
}

#[tokio::test]
async fn a_locked_directory_is_refused_and_its_owner_goes_on() {
    let store = Daemon::start("locked", &["meta", "serve", "--listen", "127.0.0.1:0"]).await;
    store.capstan(&["meta", "put", "/k", "v"]).ok();
    let run = capstan(store.dir.path(), &["meta", "serve", "--dir", "data", "--listen", "127.0.0.1:0"]);
    assert_eq!(run.code, 73, "{run:#?}");
    assert!(run.stderr.contains("in use by another process"), "{run:#?}");
    assert_eq!(store.capstan(&["meta", "get", "/k"]).ok(), "v\n");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = command(".".as_ref());
    let mut child =
        child.args(["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let run = finish(child.wait_with_output().unwrap());
    assert_eq!((run.code, run.stderr.as_str()), (0, ""));
}

#[tokio::test]
async fn a_directory_of_a_newer_version_is_left_alone() {
    let mut store = Daemon::start("newer", &["meta", "serve", "--listen", "127.0.0.1:0"]).await;
    store.process.terminate(DEADLINE).await.unwrap();
    let file = store.dir.join("data/base-000000000001");
    assert!(file.exists());
    // The head of a base of format 99, with its checksums.
    let mut bytes = b"CMF1\x01\0\0\0\x04\0\0\0\xdf\x70\x89\x92".to_vec();
    bytes.extend([0; 12]);
    bytes.extend(*b"\xda\x18\x80\x3b\x63\0\0\0");
    bytes.resize(512, 0);
    std::fs::write(&file, &bytes).unwrap();
    let run = capstan(store.dir.path(), &["meta", "serve", "--dir", "data", "--listen", "127.0.0.1:0"]);
    assert_eq!(run.code, 76, "{run:#?}");
    assert!(run.stderr.contains("has format 99"), "{run:#?}");
    assert!(std::fs::read(&file).unwrap() == bytes, "the file was changed");
}
