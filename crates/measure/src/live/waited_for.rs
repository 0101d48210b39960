// SPDX-License-Identifier: Apache-2.0
//! Finds the CPU time of processes that are in no period, as they began or ended within one.
//!
//! A process that waits for a child takes over the CPU time of the child's whole life (wait(2), getrusage(2)). What was read of
//! the child while it lived is taken off. The parent may wait long after the child has ended, on a loaded machine most of
//! all, so what was read of a child is kept as long as the child is a zombie, and for one reading more: the parent may have
//! been read just before it waited.

use super::reading::Reading;
use hugelift_core::proc_stat::Identity;
use std::time::Duration;

/// How much less than a child's CPU time its parent may seem to take over: the kernel gives that of children in clock ticks, in
/// user mode and in the kernel, each rounded down (proc_pid_stat(5)).
const ROUNDED_OFF: Duration = Duration::from_millis(20);

/// A process that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    identity: Identity,
    /// What was read of it and of its children.
    cpu: Duration,
    /// Whether it was no zombie any more when the readings were last compared.
    is_gone: bool,
}

/// The processes that have ended and whose parents may not have waited for them.
#[derive(Debug, Default)]
pub struct WaitedFor {
    before: Option<Reading>,
    ended: Vec<Ended>,
}

impl WaitedFor {
    /// Returns the CPU time that was taken over from children since the reading before, less what was read of these
    /// children. `zombie` returns the CPU time of a process that has ended, and of its children, if it is a zombie now: it may have
    /// run on after it was read.
    pub fn since_last(&mut self, now: &Reading, zombie: impl Fn(Identity) -> Option<Duration>) -> Duration {
        let Some(before) = self.before.replace(now.clone()) else { return Duration::ZERO };
        let both = now.of.iter().filter_map(|(identity, now)| Some((before.of.get(identity)?, now)));
        let taken_over = both.map(|(first, last)| last.cpu_of_children.saturating_sub(first.cpu_of_children));
        let mut rest: Duration = taken_over.sum();
        let ended = before.of.iter().filter(|(identity, _)| !now.of.contains_key(identity));
        self.ended.extend(ended.map(|(identity, one)| Ended {
            identity: *identity,
            cpu: one.cpu_in_stat + one.cpu_of_children,
            is_gone: false,
        }));
        self.ended.retain_mut(|one| {
            if let Some(cpu) = zombie(one.identity) {
                one.cpu = one.cpu.max(cpu);
                return true;
            }
            if rest + ROUNDED_OFF >= one.cpu {
                rest = rest.saturating_sub(one.cpu);
                return false;
            }
            !std::mem::replace(&mut one.is_gone, true)
        });
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::OfProcess;
    use super::*;
    use std::time::Instant;

    const PARENT: Identity = (1, 1);
    const CHILD: Identity = (2, 1);

    /// What the child has used at its end, where it is a zombie.
    const ENDED: u64 = 715;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A reading of a parent, with what it took over from children, and of a child that lives. Of the child's time, the host had
    /// taken a part.
    fn reading(taken_over: u64, child: Option<u64>) -> Reading {
        let parent = OfProcess { cpu: ms(5), cpu_of_children: ms(taken_over), ..OfProcess::default() };
        let of_child = |cpu| OfProcess { cpu: ms(cpu + 100), cpu_in_stat: ms(cpu), ..OfProcess::default() };
        let child = child.map(|cpu| (CHILD, of_child(cpu)));
        let of = std::iter::once((PARENT, parent)).chain(child).collect();
        Reading { at: Instant::now(), took: Duration::ZERO, count: None, of }
    }

    /// Returns what each reading after the first finds. The child is a zombie where it is said so.
    fn found(readings: &[(Reading, bool)]) -> Vec<u64> {
        let mut waited_for = WaitedFor::default();
        let each = readings.iter().map(|(reading, is_zombie)| {
            let zombie = |identity| (*is_zombie && identity == CHILD).then_some(ms(ENDED));
            waited_for.since_last(reading, zombie).as_millis() as u64
        });
        each.skip(1).collect()
    }

    #[test]
    fn a_child_that_was_read_counts_with_what_it_used_afterwards() {
        assert_eq!(found(&[(reading(0, Some(700)), false), (reading(750, None), false)]), [50]);
        // One that was never read counts whole.
        assert_eq!(found(&[(reading(0, None), false), (reading(750, None), false)]), [750]);
    }

    #[test]
    fn a_parent_may_wait_late() {
        let late = [
            (reading(0, Some(700)), false),
            (reading(0, None), true),
            (reading(0, None), true),
            (reading(720, None), false),
            (reading(1000, None), false),
        ];
        assert_eq!(found(&late), [0, 0, 5, 280], "what was read is taken off once");
    }

    /// The parent is read, waits for the child, and then the child is read or asked for.
    #[test]
    fn a_parent_may_wait_between_two_readings_of_one_moment() {
        let between = [
            (reading(0, Some(700)), false),
            (reading(0, None), false),
            (reading(700, None), false),
            (reading(1000, None), false),
        ];
        assert_eq!(found(&between), [0, 0, 300]);
    }

    #[test]
    fn what_nobody_waits_for_hides_nothing_later() {
        let ignored = [
            (reading(0, Some(700)), false),
            (reading(0, None), false),
            (reading(0, None), false),
            (reading(800, None), false),
        ];
        assert_eq!(found(&ignored), [0, 0, 800]);
    }

    #[test]
    fn the_clock_of_children_is_rounded_down() {
        assert_eq!(found(&[(reading(0, Some(709)), false), (reading(700, None), false)]), [0]);
        // In user mode and in the kernel.
        assert_eq!(found(&[(reading(0, Some(718)), false), (reading(700, None), false)]), [0]);
    }
}
