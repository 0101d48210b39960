// SPDX-License-Identifier: Apache-2.0
//! What a user does whose processes the service takes: processes that end, are traced, stopped or executed anew while they are
//! lifted, names, floods, and files that change. It harms no process, delays no other, and is written to no terminal.

use super::common::cache::copy;
use super::common::level::rounds;
use super::host::{Game, Host, MEMORY};
use crate::{need, need_root};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How much longer the lift of an honest program may take beside a hostile one, on a machine that other tests keep busy: the
/// service gives one process up after 15 s.
const DELAY: Duration = Duration::from_secs(90);
/// How long it may take until one of the processes of a user is lifted. They end after two minutes.
const LIFTED_WITHIN: Duration = Duration::from_secs(75);

/// Plays games, and checks that they delay no honest program.
fn play(games: &[&[&str]]) {
    let mut host = Host::start();
    let usual = host.lifts();
    for words in games {
        let name = words.join(" ");
        let mut game = host.game(words);
        let took = host.lifts();
        println!("{name}: lifted after {took:?}, usually {usual:?}");
        assert!(took < usual + DELAY, "{name}: lifted after {took:?}, usually {usual:?}");
        game.goes_on(&name);
        host.is_sound();
    }
}

/// They end at any moment of a lift.
#[test]
fn issue_33_processes_that_end_while_they_are_lifted_delay_nobody() {
    need_root!();
    need!("setpriv", "nice");
    let mut host = Host::start();
    let usual = host.lifts();
    let mut took = Duration::ZERO;
    let all: Vec<u64> = (0..rounds(40, 200)).map(|i| 200 + i * 379 % 2300).collect();
    for (i, few) in all.chunks(4).enumerate() {
        let start = |ms: &u64| (*ms, host.game(&["exits", &ms.to_string()]));
        let games: Vec<(u64, Game)> = few.iter().map(start).collect();
        // As they run.
        if i == all.len() / 8 {
            took = host.lifts();
        }
        games.into_iter().for_each(|(ms, game)| game.ends(&format!("exits {ms}")));
    }
    println!("lifted after {took:?}, usually {usual:?}");
    assert!(took < usual + DELAY, "lifted after {took:?}, usually {usual:?}");
    host.is_sound();
    assert!(host.lifts() < usual + DELAY);
}

#[test]
fn issue_33_games_with_ptrace_and_signals_delay_nobody() {
    need_root!();
    need!("setpriv", "nice");
    play(&[&["traced"], &["seized"], &["stopped"]]);
}

#[test]
fn issue_33_hostile_names_and_programs_that_change_delay_nobody() {
    need_root!();
    need!("setpriv", "nice");
    play(&[&["names"], &["execs", "50"], &["execs", "900"]]);
}

#[test]
fn issue_33_a_flood_of_processes_delays_nobody() {
    need_root!();
    need!("setpriv", "nice");
    play(&[&["floods"]]);
}

/// The file of a program is replaced, made empty and removed while its processes are lifted. It is the user's own.
#[test]
fn issue_33_files_that_change_while_they_are_lifted_harm_nobody() {
    need_root!();
    need!("setpriv", "nice");
    let mut host = Host::start();
    let usual = host.lifts();
    let (path, kept) = (host.path("user/games"), host.path("kept"));
    copy(&path, &kept);
    for i in 0..rounds(6, 30) {
        let games: Vec<Game> = (0..2).map(|_| host.game(&["exits", "2000"])).collect();
        games.iter().for_each(Game::has_begun);
        std::thread::sleep(Duration::from_millis(300 * (i % 6)));
        // A file that runs cannot be written to, so another takes its place, as in an upgrade; then one that is no program.
        let new = host.path("user/new");
        if i % 2 == 0 {
            copy(&kept, &new);
        } else {
            fs::write(&new, vec![0; 4096]).expect("write");
        }
        fs::rename(&new, &path).expect("rename");
        games.into_iter().for_each(|game| game.ends("a file is replaced"));
        fs::remove_file(&path).expect("remove");
        copy(&kept, &path);
    }
    let took = host.lifts();
    assert!(took < usual + DELAY, "lifted after {took:?}, usually {usual:?}");
    host.is_sound();
}

/// The rule takes the processes of any user: those of one user together have a quarter of the memory, however many they are.
#[test]
fn issue_33_a_user_with_many_processes_does_not_take_the_memory_of_others() {
    need_root!();
    need!("setpriv", "nice");
    let host = Host::start();
    // They live as long as the test waits for, and have a part of the CPUs beside other tests: what waits is not lifted.
    let games: Vec<Game> = (0..8).map(|_| host.game_with_nice(5, &["exits", "110000"])).collect();
    let own = host.path("user/games");
    let of_user = || {
        let status = host.status().expect("it answers");
        let processes = status["processes"].as_array().expect("a list").clone();
        let is_own = |one: &Value| one["program"].as_str().is_some_and(|path| Path::new(path) == own);
        processes.into_iter().filter(is_own).collect::<Vec<Value>>()
    };
    let copies = || of_user().iter().filter_map(|one| one["copies_bytes"].as_u64()).sum::<u64>();
    let deadline = Instant::now() + LIFTED_WITHIN;
    while copies() == 0 {
        let log = || host.log().escape_ascii().to_string();
        assert!(Instant::now() < deadline, "no process of the user is lifted: {:?}\n{}", of_user(), log());
        std::thread::sleep(Duration::from_millis(200));
    }
    let most = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(500));
        copies()
    });
    let most = most.max().expect("some");
    println!("copies of the user's eight processes: {most} bytes");
    assert!(most <= MEMORY / 4, "{most} bytes, with {MEMORY} for all");
    host.lifts();
    games.into_iter().for_each(Game::ends_or_goes_on);
}
