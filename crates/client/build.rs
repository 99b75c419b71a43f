//! Generates the client's side of the wire that `crates/topics` serves, without protoc.

use std::error::Error;

const PROTO_DIR: &str = "../topics/proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO_DIR}");
    let descriptors =
        protox::compile(["danube.proto", "danube_admin.proto", "capstan_topics.proto"], [PROTO_DIR])?;
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(descriptors)?;
    Ok(())
}
