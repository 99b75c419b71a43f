//! A reply as a value, for comparisons: sets without order, maps by key.

use std::collections::{BTreeMap, BTreeSet};

use capstan_redis_protocol::resp::{Form, View};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tree {
    Leaf(String),
    List(Vec<Tree>),
    Set(BTreeSet<Tree>),
    Map(BTreeMap<Tree, Tree>),
}

impl Tree {
    /// The value of a complete reply.
    pub fn of(reply: &[u8]) -> Tree {
        let form = Form::of(reply[0]).unwrap();
        let children = || View::of(reply).unwrap().sequence().unwrap().map(Tree::of);
        match form {
            Form::Array | Form::Push => View::of(reply).unwrap().sequence().map_or_else(
                || Tree::Leaf("null".to_owned()),
                |list| Tree::List(list.map(Tree::of).collect()),
            ),
            Form::Set => Tree::Set(children().collect()),
            Form::Map => {
                let all: Vec<Tree> = children().collect();
                Tree::Map(all.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
            }
            _ => Tree::Leaf(format!("{:?} {}", form, String::from_utf8_lossy(reply).trim_end())),
        }
    }

    pub fn list(&self) -> &[Tree] {
        match self {
            Tree::List(list) => list,
            other => panic!("not a list: {other:?}"),
        }
    }

    /// The last line of a leaf: the text of a bulk.
    pub fn text(&self) -> &str {
        match self {
            Tree::Leaf(text) => text.rsplit("\r\n").next().unwrap(),
            other => panic!("not a leaf: {other:?}"),
        }
    }

    /// The same without this key of maps, at any level.
    pub fn without(&self, key: &str) -> Tree {
        match self {
            Tree::Leaf(_) => self.clone(),
            Tree::List(list) => Tree::List(list.iter().map(|tree| tree.without(key)).collect()),
            Tree::Set(set) => Tree::Set(set.iter().map(|tree| tree.without(key)).collect()),
            Tree::Map(map) => {
                let kept = map.iter().filter(|(name, _)| name.text() != key);
                Tree::Map(kept.map(|(name, value)| (name.clone(), value.without(key))).collect())
            }
        }
    }
}
