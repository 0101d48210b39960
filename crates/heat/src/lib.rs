// SPDX-License-Identifier: Apache-2.0
//! Sampling of the instruction addresses of processes, by the kernel's CPU clock (perf_event_open(2),
//! `PERF_COUNT_SW_CPU_CLOCK`). It needs no PMU, so that it also works in guests. And [`data`]: which data they use.
//!
//! | module | holds |
//! |---|---|
//! | [`records`] | the records of a ring buffer, and which bytes of it are new |
//! | [`event`] | what is sampled: the CPU clock, or an event of a PMU |
//! | `ring` | the event of one thread with its ring buffer |
//! | [`threads`] | the events of all threads, or of the busiest of very many |
//! | [`price`] | what a sample costs the thread that is sampled |
//! | [`pace`] | how often samples are taken, and how often what costs time is repeated |
//! | [`budget`] | what sampling many processes may take |
//! | [`many`] | many processes at once, for `top` |
//! | [`refusal`] | why events cannot be counted or sampled |
//! | [`data`] | which data a process uses, by what the kernel has for that |
//!
//! Each thread has an event of its own, without inheritance, and the list of threads is read again and again. The other
//! way is inherited events, which see each new thread at once. The kernel gives those a buffer for each CPU only, so
//! that they need as many files as threads times CPUs, and 100 threads on 128 CPUs would need 12,800. What is missed
//! here is a thread that lives for less than the time between two lists.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod budget;
pub mod data;
pub mod event;
pub mod many;
pub mod pace;
pub mod price;
pub mod records;
pub mod refusal;
mod ring;
pub mod threads;

/// Keeps tests that measure from disturbing each other: they run one by one.
#[cfg(test)]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
