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

    /// Starts a process, and returns when it sleeps. Until then the shell, the loader and the kernel use CPU time.
    fn asleep() -> Victim {
        let victim = Victim::start("exec sleep 60");
        let until = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", victim.0.id())).expect("stat");
            if stat.contains(" (sleep) S ") {
                break victim;
            }
            assert!(std::time::Instant::now() < until, "it does not sleep: {stat}");
            std::thread::sleep(Duration::from_millis(5));
        }
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
    // The machine may be busy with other things: it is sampled for longer until it had CPU time.
    let mut tries = [1200, 5000, 20_000].into_iter().map_while(|millis| of(&busy, millis));
    let Some(mut heat) = tries.next() else { return };
    while heat.samples < 100
        && let Some(longer) = tries.next()
    {
        heat = longer;
    }
    assert!((100..=heat.milliseconds + 100).contains(&heat.samples), "{heat:?}");
    assert_eq!((heat.ended, heat.threads, heat.sampled_threads), (false, 1, 1));
    let first = heat.objects.first().expect("an object");
    assert!(first.samples * 2 > heat.user_samples() && first.pages.seen > 1, "{heat:?}");
    assert_eq!(heat.lost_samples, 0);
}

#[test]
fn issue_31_enough_samples_end_it() {
    let _alone = crate::child::alone();
    let (busy, others) = (Victim::start("while :; do :; done"), [Victim::asleep(), Victim::asleep()]);
    let signals = Signals::block().expect("signals");
    let until = Until { least: Duration::from_millis(50), enough: 30, most: Duration::from_secs(4) };
    let began = std::time::Instant::now();
    let [one, two] = [others[0].0.id(), others[1].0.id()];
    let sampled = sample_all(&[busy.0.id(), 1 << 23, one, two], until, &signals);
    let took = began.elapsed();
    assert!(!sampled.is_interrupted);
    match &sampled.heats[..] {
        [Ok(busy), Err(Refusal::Proc(_)), Ok(one), Ok(two)] => {
            assert!(busy.samples >= 30 && busy.milliseconds < one.milliseconds, "{sampled:?}");
            for other in [one, two] {
                assert!(other.samples == 0 && other.milliseconds >= 4000, "{sampled:?}");
            }
            // They were sampled at the same time: one after another takes 8 seconds.
            assert!(
                took < Duration::from_millis(one.milliseconds + two.milliseconds),
                "{took:?}: {sampled:?}"
            );
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
    let asleep = Victim::asleep();
    let Some(heat) = of(&asleep, 300) else { return };
    assert_eq!((heat.samples, heat.objects.len(), heat.ended), (0, 0, false));
    assert!((300..20_000).contains(&heat.milliseconds), "{heat:?}");
}

#[test]
fn issue_31_a_process_that_ends_is_said_to() {
    let _alone = crate::child::alone();
    let short = Victim::start("i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done");
    let Some(heat) = of(&short, 60_000) else { return };
    assert!(heat.ended && heat.samples > 5 && heat.milliseconds < 50_000, "{heat:?}");
}
