//! The text form that Prometheus reads from those that do not ask for OpenMetrics (version 0.0.4), made from OpenMetrics.
//! Pure.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// OpenMetrics in the classic form: counters and infos are described under the names of their samples, and lines that the
/// classic form does not have are left out.
pub(super) fn classic(text: &str) -> String {
    let of_type = |wanted: &str| -> BTreeSet<&str> {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        types.filter(|(_, kind)| *kind == wanted).map(|(name, _)| name).collect()
    };
    let (counters, infos) = (of_type("counter"), of_type("info"));
    let full = |name: &str| match name {
        name if counters.contains(name) => format!("{name}_total"),
        name if infos.contains(name) => format!("{name}_info"),
        name => name.to_owned(),
    };
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let described = line.strip_prefix("# ").and_then(|rest| {
            let (word, rest) = rest.split_once(' ')?;
            let (name, rest) = rest.split_once(' ')?;
            Some((word, name, rest))
        });
        // Writing to a string cannot fail.
        let _ = match described {
            Some(("TYPE", name, "info")) => writeln!(out, "# TYPE {} gauge", full(name)),
            Some(("TYPE", name, kind)) => writeln!(out, "# TYPE {} {kind}", full(name)),
            // OpenMetrics ends every help text with a full stop; the classic form escapes the same way.
            Some(("HELP", name, help)) => writeln!(out, "# HELP {} {help}", full(name)),
            Some(_) => Ok(()),
            None if line.starts_with('#') => Ok(()),
            None => writeln!(out, "{line}"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::classic;

    #[test]
    fn counters_and_infos_are_described_under_the_names_of_their_samples() {
        let open = "# HELP a_b Requests.\n# TYPE a_b counter\na_b_total{x=\"1\"} 2\n# HELP c Build.\n# TYPE c info\n\
            c_info{v=\"1\"} 1\n# HELP d_bytes Size.\n# TYPE d_bytes gauge\n# UNIT d_bytes bytes\nd_bytes 3\n# EOF\n";
        let expected = "# HELP a_b_total Requests.\n# TYPE a_b_total counter\na_b_total{x=\"1\"} 2\n\
            # HELP c_info Build.\n# TYPE c_info gauge\nc_info{v=\"1\"} 1\n# HELP d_bytes Size.\n# TYPE d_bytes gauge\n\
            d_bytes 3\n";
        assert_eq!(classic(open), expected);
    }
}
