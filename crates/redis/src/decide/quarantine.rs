//! When is a released node free again? When its proxy has confirmed its release and reports that it is empty.
//! Pure.

use super::heal::Facts;
use crate::decide::Steps;
use crate::decide::plan_end_quarantine;
use crate::facts::Tree;
use crate::status::Place;

pub(crate) fn emptied(tree: &Tree, facts: &Facts) -> Steps {
    let mut steps = Steps::default();
    for (proxy, host) in tree.registered() {
        let Some(fact) = facts.get(proxy).filter(|fact| fact.reached) else { continue };
        let Some(confirmed) = &fact.confirmed else { continue };
        // A report from before the release is not about the node's present state.
        if fact.nodes_at < fact.confirmed_at {
            continue;
        }
        for node in host.quarantine.keys() {
            let is_empty = match fact.nodes.get(node) {
                Some(node) => node.is_ready() && node.owner.is_none() && node.keys == 0,
                None => false,
            };
            if is_empty {
                let place = Place { proxy: proxy.clone(), node: node.clone() };
                steps.commits.extend(plan_end_quarantine(tree, &place, confirmed.epoch));
            }
        }
    }
    steps
}
