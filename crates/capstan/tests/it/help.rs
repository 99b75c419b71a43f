//! Help texts, word by word.

use crate::binary::capstan;
use crate::golden::golden;

const COMMANDS: &[&[&str]] = &[
    &[],
    &["up"],
    &["host"],
    &["controller"],
    &["status"],
    &["hosts"],
    &["hosts", "list"],
    &["hosts", "drain"],
    &["topics"],
    &["topics", "create"],
    &["topics", "produce"],
    &["topics", "consume"],
    &["topics", "peek"],
    &["topics", "seek"],
    &["subscriptions"],
    &["namespaces"],
    &["brokers"],
    &["schemas"],
    &["schemas", "register"],
    &["schemas", "bind"],
    &["fleet"],
    &["fleet", "release"],
    &["fleet", "release", "keygen"],
    &["fleet", "release", "build"],
    &["fleet", "release", "sign"],
    &["fleet", "release", "verify"],
    &["fleet", "release", "publish"],
    &["fleet", "release", "list"],
    &["fleet", "release", "sample"],
    &["fleet", "init"],
    &["fleet", "join"],
    &["fleet", "leave"],
    &["fleet", "status"],
    &["fleet", "apply"],
    &["fleet", "recover"],
    &["fleet", "rollback"],
    &["fleet", "skip"],
    &["fleet", "policy"],
    &["fleet", "policy", "set"],
    &["fleet", "config"],
    &["fleet", "vault"],
    &["fleet", "vault", "set"],
    &["certs"],
    &["certs", "init"],
    &["certs", "issue"],
    &["certs", "token"],
    &["join"],
    &["meta"],
    &["meta", "serve"],
    &["meta", "get"],
    &["meta", "put"],
    &["meta", "del"],
    &["meta", "tree"],
    &["meta", "watch"],
    &["meta", "compact"],
    &["meta", "snapshot"],
    &["meta", "restore"],
    &["plan"],
    &["plan", "tokens"],
    &["plan", "slots"],
    &["config"],
    &["bench"],
    &["reference"],
    &["completions"],
];

#[test]
fn help_texts_are_as_reviewed() {
    let mut text = String::new();
    for command in COMMANDS {
        let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        text.push_str(&format!("$ capstan {}\n{}\n", args.join(" "), capstan(".".as_ref(), &args).ok()));
    }
    golden("help.txt", &text);
}

#[test]
fn completions_know_every_noun() {
    for shell in ["bash", "zsh", "fish"] {
        let script = capstan(".".as_ref(), &["completions", shell]).ok();
        for noun in ["hosts", "fleet", "meta", "status", "bench"] {
            assert!(script.contains(noun), "{shell} does not complete {noun}");
        }
    }
}
