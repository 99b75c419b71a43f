//! Exit codes that scripts rely on.

use std::net::TcpListener;

use capstan_testkit::TempDir;

use crate::binary::{Daemon, capstan};

#[test]
fn usage_is_two_and_help_is_zero() {
    assert_eq!(capstan(".".as_ref(), &["frobnicate"]).code, 2);
    assert_eq!(capstan(".".as_ref(), &["meta", "get"]).code, 2);
    assert_eq!(capstan(".".as_ref(), &["--help"]).code, 0);
    assert_eq!(capstan(".".as_ref(), &["--version"]).ok(), "capstan 0.1.0\n");
}

#[test]
fn a_store_that_is_not_there_is_unavailable() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let endpoint = format!("http://{free}");
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
    let head = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!(
            "{} completions bash | head -c 10; echo ${{PIPESTATUS[0]}}",
            env!("CARGO_BIN_EXE_capstan")
        ))
        .output()
        .unwrap();
    assert!(!String::from_utf8_lossy(&head.stderr).contains("panicked"));
}
