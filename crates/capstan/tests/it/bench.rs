//! The benchmark runner: every row is there and compares something with something. Not how fast.

use capstan_testkit::TempDir;

use crate::binary::capstan;

#[test]
fn every_row_of_the_metadata_store_is_measured_beside_etcd() {
    let dir = TempDir::new("bench").unwrap();
    let rows = capstan(dir.path(), &["bench", "meta", "--quick", "-o", "json", "--write", "page.md"]).json();
    let rows = rows["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 14);
    for row in rows {
        for figure in ["ours", "theirs", "ratio"] {
            assert!(row[figure].as_f64().unwrap() > 0.0, "{row}");
        }
        assert!(row["peer"].as_str().unwrap().starts_with("etcd 3"), "{row}");
    }
    let page = std::fs::read_to_string(dir.join("page.md")).unwrap();
    assert!(page.contains("| Kernel | Linux") && page.contains("## Metadata store"), "{page}");
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["page.md"], "the servers' data is still there");
}

#[test]
fn the_rows_of_topics_are_measured() {
    let dir = TempDir::new("bench").unwrap();
    let rows = capstan(dir.path(), &["bench", "topics", "--quick", "-o", "json"]).json();
    let names: Vec<_> =
        rows["rows"].as_array().unwrap().iter().map(|row| row["row"].as_str().unwrap()).collect();
    // A slow machine creates fewer topics in the time that there is.
    let many = names.iter().any(|name| name.starts_with("Durable publish, ") && name.ends_with(" topics"));
    assert!(many && names.contains(&"Catching up with a backlog"), "{names:?}");
}

#[test]
fn an_unknown_area_names_the_known_ones() {
    let run = capstan(".".as_ref(), &["bench", "speed"]);
    assert_eq!(run.code, 2);
    assert!(
        run.stderr.contains("the areas are meta, placement, log, redis, redis-move, topics, docs and all"),
        "{run:#?}"
    );
}
