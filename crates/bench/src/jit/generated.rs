// SPDX-License-Identifier: Apache-2.0
//! Source text with many functions, of which no two are equal. Those of Java and Erlang take one of several ways, so
//! that calls with random numbers use all of the code.

use std::fmt::{self, Write as _};

/// Ways through a method of [`java`].
const WAYS: usize = 24;
/// Statements in each of them.
const STEPS: usize = 8;
/// Ways through a function of [`erlang`].
const ERLANG_WAYS: usize = 16;
/// Statements in the loop of a function of [`php`].
const PHP_STEPS: usize = 48;

/// Returns a class with `methods` methods, which `call` calls by their numbers.
///
/// # Errors
/// Never: it writes to memory.
pub fn java(methods: usize) -> Result<String, fmt::Error> {
    let mut text = String::from("final class Template implements Jit.Code {\n");
    text.push_str("    public int call(int method, int x) {\n        return switch (method) {\n");
    for m in 0..methods {
        writeln!(text, "            case {m} -> m{m}(x);")?;
    }
    text.push_str("            default -> 0;\n        };\n    }\n");
    for m in 0..methods {
        writeln!(text, "    private static int m{m}(int x) {{\n        switch (x % {WAYS}) {{")?;
        for way in m * WAYS..(m + 1) * WAYS {
            write!(text, "            case {}:", way % WAYS)?;
            for step in 0..STEPS {
                let factor = 2 * (way * STEPS + step) + 3;
                write!(text, " x = x * {factor} ^ (x >>> {}) + {way};", step + 3)?;
            }
            text.push_str(" return x;\n");
        }
        text.push_str("            default: return x;\n        }\n    }\n");
    }
    text.push_str("}\n");
    Ok(text)
}

/// Returns functions `f0`, `f1`... Their loops have no branches: each way through them would become a trace.
///
/// # Errors
/// Never: it writes to memory.
pub fn php(functions: usize) -> Result<String, fmt::Error> {
    let mut text = String::from("<?php\n");
    for n in 0..functions {
        write!(text, "function f{n}($x) {{ $s = {n}; for ($i = 0; $i < 4; $i++) {{ ")?;
        for step in 0..PHP_STEPS {
            let factor = 2 * (n + step) + 3;
            let by = step % 7 + 3;
            write!(text, "$s = (($s * {factor} ^ $s >> {by}) + $x) & 0xffffff; ")?;
        }
        text.push_str("$x = ($x >> 1) + $i; } return $s; }\n");
    }
    Ok(text)
}

/// Returns a module with functions, which `many:call/2` calls by their numbers.
///
/// # Errors
/// Never: it writes to memory.
pub fn erlang(functions: usize) -> Result<String, fmt::Error> {
    let mut text = String::from("-module(many).\n-export([call/2]).\ncall(N, X) ->\n    case N of\n");
    for n in 0..functions {
        writeln!(text, "        {n} -> f{n}(X){}", if n + 1 < functions { ";" } else { "" })?;
    }
    text.push_str("    end.\n");
    for n in 0..functions {
        write!(text, "f{n}(X) -> case X band {} of ", ERLANG_WAYS - 1)?;
        for way in 0..ERLANG_WAYS {
            let (factor, by) = (2 * (n + way) + 3, way % 7 + 3);
            let more = if way + 1 < ERLANG_WAYS { "; " } else { " end.\n" };
            write!(text, "{way} -> (X * {factor} bxor (X bsr {by}) + {n}) band 16#ffffff{more}")?;
        }
    }
    Ok(text)
}
