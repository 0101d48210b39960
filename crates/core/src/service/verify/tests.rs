// SPDX-License-Identifier: Apache-2.0
//! Tests of the verifier, and of what the policy says about it.

use super::*;
use crate::service::policy::Policy;
use crate::service::source::Source;
use proptest::prelude::*;

fn program(number: u8) -> Program {
    Program { build_id: number.to_string(), unit: number.is_multiple_of(2).then(|| "a.service".into()) }
}

fn policy(text: &str) -> Result<Policy, String> {
    Policy::parse(&[Source { name: "p.toml".into(), text: text.into() }])
}

#[test]
fn issue_33_4_the_policy_says_what_is_verified() {
    let policy_is = policy(
        "[verify]\nfor = \"10s\"\npause = \"2h\"\n[[rule]]\nname = \"a\"\nunit = \"a\"\ndo = [\"code\"]\nverify = true\n",
    )
    .expect("a policy");
    assert_eq!(policy_is.verify, Settings { length: 10, pause: 7200, again: 30 * 24 * 3600 });
    assert!(policy_is.rules()[0].verify);
    assert_eq!(policy("").expect("a policy").verify, Settings::default());
    for (text, says) in [
        ("[verify]\nfor = \"1s\"\n", "p.toml: line 2: for: "),
        ("[verify]\n\nagain = \"x\"\n", "p.toml: line 3: again: "),
        ("[verify]\nsince = \"1h\"\n", "p.toml: line 2: unknown field `since`"),
        (
            "[[rule]]\nname = \"a\"\ndo = [\"code\", \"memory\"]\nverify = true\n",
            "p.toml: line 4: verify: only copies",
        ),
        (
            "[[rule]]\nname = \"a\"\ndo = [\"pagecache\"]\nverify = true\n",
            "p.toml: line 4: verify: only copies",
        ),
        (
            "[[rule]]\nname = \"a\"\ndo = [\"code\"]\nverify = \"yes\"\n",
            "p.toml: line 4: verify: invalid type",
        ),
    ] {
        let said = policy(text).expect_err(text);
        assert!(said.starts_with(says), "{said}");
    }
}

#[test]
fn issue_33_4_a_verdict_is_on_the_whole_interval() {
    let of = |(low, high)| Verdict::of_interval(low, high);
    assert_eq!(
        [(0.9, 0.99), (0.9, 1.0), (1.0, 1.1)].map(of),
        [Verdict::Pays, Verdict::PaysNot, Verdict::PaysNot]
    );
    assert_eq!([(1.01, 1.1), (0.5, 2.0)].map(of), [Verdict::Harms, Verdict::PaysNot]);
    for odd in
        [(f64::NAN, 1.0), (0.9, f64::NAN), (f64::NEG_INFINITY, 0.5), (0.9, 0.8), (0.0, 0.0), (-1.0, 0.5)]
    {
        assert_eq!(of(odd), Verdict::Unmeasured);
    }
    assert!(Verdict::ALL.into_iter().all(|verdict| Verdict::of_key(verdict.key()) == Some(verdict)));
}

#[test]
fn issue_33_4_what_pays_is_lifted_and_what_does_not_is_left_for_a_month() {
    let (a, b, month) = (program(1), program(2), 30 * 24 * 3600);
    let mut verifier = Verifier::new(Settings::default());
    assert_eq!(verifier.advise(&a, 0), Advice::Wait);
    assert!(verifier.begin(&a, 0) && !verifier.begin(&b, 0), "one at a time");
    assert_eq!(verifier.end(Verdict::Pays, 100), Some((a.clone(), 100 + month)));
    assert!(!verifier.begin(&b, 100 + 3599) && verifier.begin(&b, 100 + 3600), "the pause is over");
    let end = 8000;
    assert_eq!(verifier.end(Verdict::Harms, end), Some((b.clone(), end + month)));
    assert_eq!([&a, &b].map(|one| verifier.advise(one, end)), [Advice::Lift, Advice::Leave]);
    assert_eq!([&a, &b].map(|one| verifier.advise(one, end + month - 1)), [Advice::Wait, Advice::Leave]);
    assert_eq!(verifier.advise(&b, end + month), Advice::Wait);
    // Without a result it is tried the next day.
    assert!(verifier.begin(&b, end + month));
    let failed = end + month + 60;
    assert_eq!(verifier.end(Verdict::Unmeasured, failed), Some((b.clone(), failed + 24 * 3600)));
    // Nor does that take a gain away which was measured before.
    let late = failed + month;
    assert!(verifier.begin(&a, late) && verifier.advise(&a, late) == Advice::Wait);
    assert_eq!(verifier.end(Verdict::Unmeasured, late), Some((a.clone(), late + 24 * 3600)));
    assert_eq!([0, 24 * 3600].map(|after| verifier.advise(&a, late + after)), [Advice::Lift, Advice::Wait]);
    // A later service knows it, and goes on with the pause. A clock that was wrong blocks nothing for longer than a month.
    let mut next = Verifier::new(Settings::default());
    next.remember(a.clone(), Verdict::Pays, 1 << 40, 1 << 50, FIRST);
    assert_eq!([FIRST, FIRST + month].map(|now| next.advise(&a, now)), [Advice::Lift, Advice::Wait]);
    assert!(!next.may_begin(FIRST + 3599) && next.may_begin(FIRST + 3600));
}

/// At the start of a machine without a clock of its own it is 1970 until the network says otherwise.
#[test]
fn a_clock_that_is_not_set_yet_takes_no_result_away() {
    let a = program(1);
    let mut verifier = Verifier::new(Settings::default());
    let month = verifier.settings.again;
    verifier.remember(a.clone(), Verdict::Pays, FIRST, FIRST + month, 60);
    assert_eq!(
        [61, FIRST + month - 1, FIRST + month].map(|now| verifier.advise(&a, now)),
        [Advice::Lift, Advice::Lift, Advice::Wait]
    );
    assert!(!verifier.may_begin(61) && verifier.may_begin(FIRST));
    // What was written by a clock that went wrong ends in a month all the same.
    verifier.remember(a.clone(), Verdict::Pays, 1 << 40, 1 << 50, 60);
    verifier.check_clock(61);
    assert_eq!(verifier.advise(&a, 1 << 49), Advice::Lift);
    verifier.check_clock(FIRST);
    assert_eq!([FIRST, FIRST + month].map(|now| verifier.advise(&a, now)), [Advice::Lift, Advice::Wait]);
}

/// What happens to a verifier.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Begin(u8),
    End(Verdict),
    GiveUp,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..2_000_000_u64).prop_map(Step::Wait),
        (0..6_u8).prop_map(Step::Begin),
        (0..4_usize).prop_map(|i| Step::End(Verdict::ALL[i])),
        Just(Step::GiveUp),
    ]
}

proptest! {
    /// Only what pays is lifted; experiments do not overlap and have pauses; none is made again too soon.
    #[test]
    fn issue_33_4_experiments_are_rare_and_only_gains_are_lifted(steps in proptest::collection::vec(step(), 0..60)) {
        let settings = Settings::default();
        let mut verifier = Verifier::new(settings);
        let (mut now, mut running, mut ended) = (0_u64, None, None::<u64>);
        let mut last: BTreeMap<Program, (Verdict, u64)> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Wait(time) => now += time,
                Step::Begin(number) => {
                    let program = program(number);
                    if verifier.begin(&program, now) {
                        prop_assert!(running.is_none());
                        prop_assert!(ended.is_none_or(|at| now >= at + settings.pause));
                        prop_assert!(last.get(&program).is_none_or(|(_, until)| now >= *until));
                        running = Some(program);
                    }
                }
                Step::End(verdict) => {
                    let done = verifier.end(verdict, now);
                    prop_assert_eq!(done.as_ref().map(|(program, _)| program), running.as_ref());
                    if let Some(program) = running.take() {
                        let holds = if verdict == Verdict::Unmeasured { 24 * 3600 } else { settings.again };
                        // What has paid is lifted on after an experiment without a result.
                        let paid = last.get(&program).is_some_and(|(before, _)| *before == Verdict::Pays);
                        let verdict = if verdict == Verdict::Unmeasured && paid { Verdict::Pays } else { verdict };
                        last.insert(program, (verdict, now + holds));
                        ended = Some(now);
                    }
                }
                Step::GiveUp => {
                    verifier.give_up(now);
                    ended = if running.take().is_some() { Some(now) } else { ended };
                }
            }
            for number in 0..6 {
                let program = program(number);
                let lifts = verifier.advise(&program, now) == Advice::Lift;
                let pays = last.get(&program).is_some_and(|(verdict, until)| *verdict == Verdict::Pays && now < *until);
                prop_assert_eq!(lifts, pays);
            }
        }
    }
}
