//! The page `docs/benchmarks.md`: written by a command, never by hand.

use std::fmt::Write as _;
use std::path::Path;

use jiff::Timestamp;

use super::{Area, Better, Row, machine};

/// The whole page for the measured areas; files were below `dir`.
pub fn page(measured: &[(Area, Vec<Row>)], dir: &Path) -> String {
    let mut page = String::from(
        "# Benchmarks\n\nWritten by `make bench` (`capstan bench all --write docs/benchmarks.md`); do not edit. Ratio: how \
         many times better we are than the peer, so above 1 is good for us in every row.\n\n",
    );
    let date = Timestamp::from_nanosecond(
        i128::try_from(capstan_meta::clock::since_epoch().as_nanos()).unwrap_or(0),
    );
    let date = date.map_or_else(|_| "unknown".to_owned(), |date| date.strftime("%Y-%m-%d").to_string());
    page.push_str(&format!("| | |\n|---|---|\n| Date | {date} |\n"));
    for (name, value) in machine::facts(dir) {
        // Writing to a string does not fail.
        let _ = writeln!(page, "| {name} | {value} |");
    }
    for (area, rows) in measured {
        page.push_str(&section(*area, rows));
    }
    page
}

fn section(area: Area, rows: &[Row]) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", area.title(), area.method());
    text.push_str(
        "| measure | ours | peer | theirs | unit | better | ratio |\n|---|---:|---|---:|---|---|---:|\n",
    );
    for row in rows {
        let better = match row.better() {
            Better::Higher => "higher",
            Better::Lower => "lower",
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {better} | {} |",
            row.row,
            figure(row.ours),
            row.peer,
            figure(row.theirs),
            row.unit,
            ratio(row.ratio())
        );
    }
    text
}

/// A figure with three significant digits and thousands separators.
pub fn figure(value: f64) -> String {
    if value < 10.0 {
        return format!("{value:.2}");
    }
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A ratio for the page.
pub fn ratio(value: f64) -> String {
    if value.is_finite() { format!("{value:.2} x") } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!(figure(1_234_567.8), "1,234,568");
        assert_eq!(figure(999.6), "1,000");
        assert_eq!(figure(12.34), "12.3");
        assert_eq!(figure(0.456), "0.46");
    }
}
