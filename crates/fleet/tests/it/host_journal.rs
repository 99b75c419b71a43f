//! The journal on a real disk: held by one, bounded, cut where it is torn, refused where it is damaged.

use capstan_fleet::journal::{self, Act, Course, Event, Journal, Remaining, resume};
use capstan_fleet::release::StepNumber;
use capstan_fleet::run::{Generation, Permission};
use capstan_testkit::TempDir;

const STEP: StepNumber = StepNumber::FIRST;

fn course(generation: u64) -> Course {
    let (generation, permission) = (Generation(generation), Permission::Upgrade);
    Course { generation, permission, release: "1.0".parse().unwrap() }
}

fn fill(journal: &mut Journal, generation: u64, tries: usize) {
    let act = Act { step: STEP, number: 0 };
    for _ in 0..tries {
        journal.append(&course(generation), Event::Intent(act)).unwrap();
        let why = "it printed a lot ".repeat(200);
        journal.append(&course(generation), Event::Failed { act, why }).unwrap();
    }
    journal.append(&course(generation), Event::Done(act)).unwrap();
}

#[test]
fn it_stays_small_and_forgets_nothing_that_matters() {
    let dir = TempDir::in_memory("journal-small").unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    for generation in 1..=20 {
        fill(&mut journal, generation, 30);
        let size = std::fs::metadata(dir.join("journal")).unwrap().len();
        assert!(size <= 256 * 1024, "{size} bytes after request {generation}");
    }
    drop(journal);
    let journal = Journal::open(dir.path()).unwrap();
    let left = resume(journal.entries(), &course(20), STEP, 1).unwrap();
    assert_eq!(left, Remaining::Nothing);
    assert!(resume(journal.entries(), &course(19), STEP, 1).is_err(), "an old request");
}

#[test]
fn a_torn_end_is_cut_and_damage_is_reported() {
    let dir = TempDir::in_memory("journal-torn").unwrap();
    fill(&mut Journal::open(dir.path()).unwrap(), 1, 1);
    let path = dir.join("journal");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"0123abcd {\"number\":4,\"at\""].concat()).unwrap();
    let mut journal = Journal::open(dir.path()).unwrap();
    assert_eq!(journal.entries().len(), 3);
    fill(&mut journal, 2, 0);
    drop(journal);
    assert_eq!(journal::read(&path).unwrap().len(), 4);
    let mut damaged = std::fs::read(&path).unwrap();
    damaged[20] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let error = Journal::open(dir.path()).unwrap_err().to_string();
    assert!(error.ends_with("is damaged in line 1: look at the host, then remove the file"), "{error}");
}

#[test]
fn only_one_holds_it() {
    let dir = TempDir::in_memory("journal-one").unwrap();
    let first = Journal::open(dir.path()).unwrap();
    assert!(Journal::open(dir.path()).unwrap_err().to_string().ends_with("only one may run on a host"));
    drop(first);
    Journal::open(dir.path()).unwrap();
}
