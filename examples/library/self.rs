// SPDX-License-Identifier: Apache-2.0
//! A program that lifts itself: cargo run -p hugelift-library --example self

use hugelift::{Options, Part};

fn main() {
    match Options::new().parts(&[Part::Text, Part::Rodata]).lift() {
        Ok(outcome) => println!("{}", outcome.summary()),
        // The program goes on as it is.
        Err(error) => println!("not lifted: {error}"),
    }
}
