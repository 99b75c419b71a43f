//! Growth from the document's own table.

use capstan_placement::plan;

use crate::support::{check_rules, node, three_nodes_of_the_document};

#[test]
fn growth_to_48_nodes_meets_the_bound_at_every_step() {
    let (mut cluster, mut layout) = three_nodes_of_the_document();
    let mut total = 0;
    let mut steps = Vec::new();
    for number in 3..48 {
        cluster = cluster.with(node(number)).unwrap();
        let plan = plan(&cluster, &layout).unwrap();
        check_rules(&cluster, &layout, &plan);
        assert!(plan.adds.iter().all(|add| add.target == node(number).name), "{:?}", plan.adds);
        assert_eq!(plan.tasks(), plan.bound.tasks);
        assert_eq!(plan.bound.proved_adds, plan.bound.counted_adds);
        total += plan.tasks();
        steps.push(plan.tasks());
        match number + 1 {
            8 => assert_eq!((total, &steps[..]), (82, &[24, 18, 16, 12, 12][..])),
            16 => assert_eq!(total, 140),
            48 => assert_eq!(total, 220),
            _ => {}
        }
        layout = plan.assignment;
    }
}
