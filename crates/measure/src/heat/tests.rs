// SPDX-License-Identifier: Apache-2.0

use super::*;
use std::process::{Child, Command, Stdio};

/// Ends its child when it is dropped.
struct Victim(Child);

impl Victim {
    fn start(script: &str) -> Victim {
        let mut command = Command::new("sh");
        Victim(command.args(["-c", script]).stdin(Stdio::null()).spawn().expect("sh"))
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn of(victim: &Victim, millis: u64) -> Option<Heat> {
    let signals = Signals::block().expect("signals");
    match sample(victim.0.id(), Duration::from_millis(millis), &signals) {
        Ok(heat) => Some(heat),
        Err(why @ Refusal::Perf(PerfError::Denied { .. } | PerfError::NoCall)) => {
            println!("SKIP: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn issue_31_a_busy_process_has_its_code_in_use() {
    let _alone = crate::child::alone();
    let busy = Victim::start("while :; do :; done");
    let Some(heat) = of(&busy, 1200) else { return };
    // The machine may be busy with other things.
    assert!((100..=1300).contains(&heat.samples), "{heat:?}");
    assert_eq!((heat.ended, heat.threads, heat.sampled_threads), (false, 1, 1));
    let first = heat.objects.first().expect("an object");
    assert!(first.samples * 2 > heat.user_samples() && first.pages.seen > 1, "{heat:?}");
    assert_eq!(heat.lost_samples, 0);
}

#[test]
fn issue_31_enough_samples_end_it() {
    let _alone = crate::child::alone();
    let (busy, other) = (Victim::start("while :; do :; done"), Victim::start("exec sleep 60"));
    let signals = Signals::block().expect("signals");
    let until = Until { least: Duration::from_millis(50), enough: 30, most: Duration::from_secs(4) };
    let began = std::time::Instant::now();
    let sampled = sample_all(&[busy.0.id(), 1 << 23, other.0.id()], until, &signals);
    assert!(!sampled.is_interrupted);
    match &sampled.heats[..] {
        [Ok(busy), Err(Refusal::Proc(_)), Ok(other)] => {
            assert!(busy.samples >= 30 && busy.milliseconds < other.milliseconds, "{sampled:?}");
            assert!(other.samples == 0 && other.milliseconds >= 4000, "{sampled:?}");
            // They were sampled at the same time.
            assert!(began.elapsed() < Duration::from_millis(busy.milliseconds + other.milliseconds));
        }
        [Err(why @ Refusal::Perf(PerfError::Denied { .. } | PerfError::NoCall)), ..] => {
            println!("SKIP: {why}")
        }
        _ => panic!("{sampled:?}"),
    }
}

#[test]
fn issue_31_a_process_that_sleeps_has_no_samples() {
    let _alone = crate::child::alone();
    let asleep = Victim::start("exec sleep 20");
    std::thread::sleep(Duration::from_millis(100));
    let Some(heat) = of(&asleep, 300) else { return };
    assert_eq!((heat.samples, heat.objects.len(), heat.ended), (0, 0, false));
    assert!((300..2000).contains(&heat.milliseconds), "{heat:?}");
}

#[test]
fn issue_31_a_process_that_ends_is_said_to() {
    let _alone = crate::child::alone();
    let short = Victim::start("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
    let Some(heat) = of(&short, 60_000) else { return };
    assert!(heat.ended && heat.samples > 5 && heat.milliseconds < 50_000, "{heat:?}");
}
