// SPDX-License-Identifier: Apache-2.0
//! Interleaved runs: in each round every side runs once, in an order drawn anew, so that a change
//! of the machine during the measurement affects all sides alike.

use crate::interrupt;
use anyhow::{Context as _, Error, Result};

/// One of the things compared.
pub struct Side<'a, T> {
    /// Its name, as printed.
    pub name: &'a str,
    /// Runs it once.
    pub run: Box<dyn FnMut() -> Result<T> + 'a>,
}

impl<'a, T> Side<'a, T> {
    /// Makes a side.
    pub fn new(name: &'a str, run: impl FnMut() -> Result<T> + 'a) -> Side<'a, T> {
        Side { name, run: Box::new(run) }
    }
}

/// Runs all sides `rounds` times (at least once), after a warm-up of each that is not in the result.
/// Calls `seen` after each round with its number (from 0), the results by side, and the side that
/// ran first. The result is by side, then by round.
///
/// # Errors
/// The first run that failed, with the name of its side.
pub fn run<T>(
    sides: &mut [Side<T>],
    rounds: usize,
    mut seen: impl FnMut(usize, &[&T], usize),
) -> Result<Vec<Vec<T>>> {
    for side in sides.iter_mut() {
        once(side)?;
    }
    let rounds = run_drawn(sides, fastrand::Rng::new(), |results, order| {
        let count = results.first().map_or(0, Vec::len);
        let last: Vec<&T> = results.iter().filter_map(|side| side.last()).collect();
        seen(count - 1, &last, order.first().copied().unwrap_or(0));
        count < rounds
    });
    rounds.failed.map_or(Ok(rounds.results), Err)
}

/// The rounds that were completed.
pub struct Rounds<T> {
    /// The results by side, then by round: each side has as many.
    pub results: Vec<Vec<T>>,
    /// The order of the sides in each round.
    pub orders: Vec<Vec<usize>>,
    /// Why a run of a further round failed, with the name of its side.
    pub failed: Option<Error>,
}

/// Runs all sides in rounds, without a warm-up, for as long as `after` returns true and no run fails. `after`
/// gets all results so far, by side, and the order of the last round. `random` draws the orders: the same seed
/// gives the same orders. A round of which a run fails is not in the result.
pub fn run_drawn<T>(
    sides: &mut [Side<T>],
    mut random: fastrand::Rng,
    mut after: impl FnMut(&[Vec<T>], &[usize]) -> bool,
) -> Rounds<T> {
    let results = sides.iter().map(|_| Vec::new()).collect();
    let mut rounds = Rounds { results, orders: Vec::new(), failed: None };
    loop {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        random.shuffle(&mut order);
        for (done, &side) in order.iter().enumerate() {
            match once(&mut sides[side]) {
                Ok(result) => rounds.results[side].push(result),
                Err(error) => {
                    order[..done].iter().for_each(|&side| _ = rounds.results[side].pop());
                    rounds.failed = Some(error);
                    return rounds;
                }
            }
        }
        let goes_on = after(&rounds.results, &order);
        rounds.orders.push(order);
        if !goes_on {
            return rounds;
        }
    }
}

fn once<T>(side: &mut Side<T>) -> Result<T> {
    interrupt::check()?;
    (side.run)().with_context(|| side.name.to_string())
}

/// Pairs a figure of two sides, round by round, for [`crate::stats`].
pub fn pairs<T>(first: &[T], second: &[T], figure: impl Fn(&T) -> f64) -> Vec<(f64, f64)> {
    first.iter().zip(second).map(|(a, b)| (figure(a), figure(b))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn every_side_runs_once_a_round_in_changing_order() {
        let log = RefCell::new(Vec::new());
        let side = |name: &'static str| {
            let log = &log;
            Side::new(name, move || {
                log.borrow_mut().push(name);
                Ok(name)
            })
        };
        let mut firsts = [0; 2];
        let results = run(&mut [side("a"), side("b")], 64, |_, _, first| firsts[first] += 1).unwrap();
        assert_eq!(results, [vec!["a"; 64], vec!["b"; 64]]);
        let log = log.borrow();
        assert!(log.chunks(2).all(|round| round[0] != round[1]), "{log:?}");
        // 64 draws of the same order have a probability of 2^-63.
        assert!(firsts.iter().all(|&n| n > 0), "{firsts:?}");
    }

    #[test]
    fn a_seed_gives_the_same_orders_again() {
        let orders = |seed: u64| {
            let mut sides = [Side::new("a", || Ok(())), Side::new("b", || Ok(()))];
            let random = fastrand::Rng::with_seed(seed);
            run_drawn(&mut sides, random, |results, _| results[0].len() < 64).orders
        };
        assert_eq!(orders(5), orders(5));
        assert_ne!(orders(5), orders(6));
        let firsts = orders(5).iter().filter(|order| order[0] == 0).count();
        assert!((16..=48).contains(&firsts), "{firsts} of 64 pairs begin with the first side");
    }

    #[test]
    fn a_failing_side_is_named() {
        let mut sides = [Side::new("good", || Ok(())), Side::new("bad", || anyhow::bail!("status 3"))];
        let error = run(&mut sides, 1, |_, _, _| {}).unwrap_err();
        assert_eq!(format!("{error:#}"), "bad: status 3");
    }

    #[test]
    fn what_was_measured_before_a_run_failed_is_kept_in_whole_rounds() {
        for failing in 1..6 {
            let count = RefCell::new(0);
            let side = |name: &'static str| {
                let count = &count;
                Side::new(name, move || {
                    *count.borrow_mut() += 1;
                    anyhow::ensure!(*count.borrow() != failing, "the last");
                    Ok(())
                })
            };
            let rounds =
                run_drawn(&mut [side("a"), side("b")], fastrand::Rng::with_seed(failing), |_, _| true);
            let whole = (usize::try_from(failing).unwrap() - 1) / 2;
            assert_eq!(rounds.results, [vec![(); whole], vec![(); whole]]);
            assert_eq!(rounds.orders.len(), whole);
            assert!(rounds.failed.unwrap().to_string().len() == 1, "the name of a side");
        }
    }
}
