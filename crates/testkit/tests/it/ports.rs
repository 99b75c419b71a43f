use std::collections::HashSet;
use std::net::TcpListener;

use capstan_testkit::{Port, PortBlock, TempDir};

#[test]
fn no_port_is_handed_out_twice() {
    let ports: Vec<Port> = (0..200).map(|_| Port::reserve().unwrap()).collect();
    let numbers: HashSet<u16> = ports.iter().map(Port::number).collect();
    assert_eq!(numbers.len(), ports.len());
}

#[test]
fn a_reserved_port_can_be_bound_by_its_holder() {
    let port = Port::reserve().unwrap();
    let listener = TcpListener::bind(port.addr()).unwrap();
    assert_eq!(listener.local_addr().unwrap().port(), port.number());
}

#[test]
fn a_block_is_consecutive() {
    let block = PortBlock::reserve(8).unwrap();
    let numbers: Vec<u16> = block.ports().iter().map(Port::number).collect();
    assert_eq!(numbers, (block.base()..block.base() + 8).collect::<Vec<_>>());
}

#[test]
fn a_directory_goes_with_its_owner_and_stays_after_a_panic() {
    let dir = TempDir::new("own").unwrap();
    let path = dir.path().to_owned();
    std::fs::write(dir.join("file"), "text").unwrap();
    drop(dir);
    assert!(!path.exists());

    let kept = std::panic::catch_unwind(|| {
        let dir = TempDir::new("kept").unwrap();
        std::panic::resume_unwind(Box::new(dir.path().to_owned()));
    });
    let path = kept.unwrap_err().downcast::<std::path::PathBuf>().unwrap();
    assert!(path.exists());
    std::fs::remove_dir(*path).unwrap();
}
