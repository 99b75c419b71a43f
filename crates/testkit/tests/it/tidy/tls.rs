//! Exactly one cryptography provider is compiled in: two would double the build, and rustls would need a choice.

use super::Complaint;

const UNWANTED: [&str; 3] = ["ring", "openssl-sys", "native-tls"];

/// `tree` has one package per line: `name vVERSION ...`.
pub(super) fn check(tree: &str) -> Vec<Complaint> {
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let found = UNWANTED.iter().filter(|unwanted| names.contains(unwanted));
    let how = |name: &str| format!("is compiled in; `cargo tree --workspace --invert {name}` says for whom");
    found.map(|name| Complaint::new(name, 0, how(name))).collect()
}

#[test]
fn a_second_provider_is_found() {
    assert_eq!(check("rustls v0.23.1\naws-lc-rs v1.19.0\nringbuf v1.0.0\n"), []);
    assert_eq!(check("rustls v0.23.1\nring v0.17.14\n").len(), 1);
    assert_eq!(check("openssl-sys v0.9.0 (*)\nnative-tls v0.2.0\n").len(), 2);
}
