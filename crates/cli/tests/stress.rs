// SPDX-License-Identifier: Apache-2.0
//! Many at once: threads that allocate while their program is lifted.

mod common;

use common::{Cmd, End, each_backing, plain};

#[test]
fn threads_that_allocate_while_it_is_lifted() {
    let library = plain("allocating").library().build();
    let program = plain("allocating").with(library).build();
    each_backing(|options| {
        for span in ["inner", "outer"] {
            let options = [&["--parts", "all", "--quiet", "--span", span], options].concat();
            for _ in 0..5 {
                let outcome = Cmd::new([&program]).lifted(&options);
                let seen = (outcome.stdout.as_str(), outcome.stderr.as_str(), outcome.end);
                assert_eq!(seen, ("0 wrong\n", "", End::Code(0)), "{options:?}");
            }
        }
    });
}
