//! Generates the wire's messages and services from `proto/`, without protoc; says what to install where the etcd
//! client's own build would stop for want of it.

use std::error::Error;
use std::path::Path;

const PROTOS: [&str; 5] = ["kv.proto", "permission.proto", "rpc.proto", "lock.proto", "election.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-env-changed=PROTOC");
    println!("cargo::rerun-if-env-changed=PATH");
    if !protoc_is_there() {
        println!(
            "cargo::error=protoc is missing, which the etcd-client crate needs: \
             install protobuf-compiler and libprotobuf-dev (make up does it)"
        );
        return Ok(());
    }
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .use_arc_self(true)
        .bytes(".")
        .codec_path("crate::wire::codec::WireCodec")
        .extern_path(".mvccpb.KeyValue", "crate::wire::codec::WireKv")
        .compile_fds(descriptors)?;
    Ok(())
}

fn protoc_is_there() -> bool {
    if let Some(path) = std::env::var_os("PROTOC") {
        return Path::new(&path).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("protoc").is_file())
}
