//! Our order of versions is dpkg's.

use std::process::Command;

use capstan_fleet::release::Version;
use proptest::prelude::*;

fn dpkg_says(a: &Version, relation: &str, b: &Version) -> bool {
    let status = Command::new("dpkg").args(["--compare-versions", a.as_str(), relation, b.as_str()]).status();
    status.expect("dpkg runs").success()
}

/// Few different characters, so that pairs are often nearly equal.
fn version() -> impl Strategy<Value = Version> {
    "([0-2]:)?[0-2][0-2ab.+~-]{0,6}(-[0-2ab.+~]{1,3})?"
        .prop_filter_map("not a version", |text: String| text.parse::<Version>().ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn the_order_is_that_of_dpkg(a in version(), b in version()) {
        prop_assert_eq!(a < b, dpkg_says(&a, "lt", &b), "{} lt {}", a, b);
        prop_assert_eq!(a == b, dpkg_says(&a, "eq", &b), "{} eq {}", a, b);
    }

    #[test]
    fn the_order_is_one(a in version(), b in version(), c in version()) {
        prop_assert_eq!(a.cmp(&b), b.cmp(&a).reverse());
        if a <= b && b <= c {
            prop_assert!(a <= c);
        }
    }
}
