//! Tables of compatibility cases: two schemas, the verdict of each mode, and a word of the explanation.

use capstan_schemas::compat::{Mode, problems};
use capstan_schemas::{Definition, SchemaType};

/// Whether a reader with the new schema reads old data, and the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Both directions.
    Full,
    /// New reads old only.
    Backward,
    /// Old reads new only.
    Forward,
    /// Neither.
    No,
}

/// One case. `because` must be part of an explanation of the directions that fail.
pub struct Case {
    pub name: &'static str,
    pub old: &'static str,
    pub new: &'static str,
    pub verdict: Verdict,
    pub because: &'static str,
}

pub const fn case(
    name: &'static str,
    old: &'static str,
    new: &'static str,
    verdict: Verdict,
    because: &'static str,
) -> Case {
    Case { name, old, new, verdict, because }
}

/// Checks every case in both directions, in all modes.
pub fn check(schema_type: SchemaType, cases: &[Case]) {
    assert!(cases.len() >= 40, "{} cases", cases.len());
    for case in cases {
        let parse =
            |text| Definition::parse(schema_type, text).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let (old, new) = (parse(case.old), parse(case.new));
        let earlier = [(1, old)];
        let found = |mode| problems(mode, &new, &earlier);
        let (backward, forward) = (found(Mode::Backward), found(Mode::Forward));
        let verdict = match (backward.is_empty(), forward.is_empty()) {
            (true, true) => Verdict::Full,
            (true, false) => Verdict::Backward,
            (false, true) => Verdict::Forward,
            (false, false) => Verdict::No,
        };
        assert_eq!(verdict, case.verdict, "{}: backward {backward:?}, forward {forward:?}", case.name);
        let texts = backward.iter().chain(&forward).map(ToString::to_string).collect::<Vec<_>>();
        if verdict != Verdict::Full {
            assert!(texts.iter().any(|text| text.contains(case.because)), "{}: {texts:?}", case.name);
        }
        assert_eq!(found(Mode::Full).len(), backward.len() + forward.len(), "{}", case.name);
        assert_eq!(found(Mode::None), [], "{}", case.name);
        assert_eq!(found(Mode::BackwardTransitive).is_empty(), backward.is_empty(), "{}", case.name);
    }
}
