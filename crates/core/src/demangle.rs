// SPDX-License-Identifier: Apache-2.0
//! Demangles the names of functions that compilers of C++ and Rust put into the symbol table.

use cpp_demangle::{DemangleOptions, Symbol};
use std::borrow::Cow;
use std::fmt;

/// How functions are named.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Names {
    /// As in the source, without parameters and return type, and without the hash that Rust adds, as
    /// perf(1) names the functions of files if it was built to demangle.
    #[default]
    Demangled,
    /// As in the symbol table.
    Mangled,
}

/// Longer names stay as they are. The program controls its symbol table, and a short mangled name can
/// expand to one that fills the memory.
const LONGEST: usize = 16 << 10;

/// Returns the demangled name, or `name` itself if it is not mangled by a known scheme.
pub fn demangled(name: &str) -> Cow<'_, str> {
    if name.len() > LONGEST {
        return Cow::Borrowed(name);
    }
    let readable = rust(name).or_else(|| cpp(name)).filter(|readable| !readable.is_empty());
    readable.map_or(Cow::Borrowed(name), Cow::Owned)
}

fn rust(name: &str) -> Option<String> {
    let demangled = rustc_demangle::try_demangle(name).ok()?;
    let mut out = Bounded(String::new());
    // The alternate form leaves the hash out.
    fmt::write(&mut out, format_args!("{demangled:#}")).ok()?;
    Some(out.0)
}

fn cpp(name: &str) -> Option<String> {
    // A name that is not mangled would be taken for a type: "i" for int.
    if !name.starts_with("_Z") {
        return None;
    }
    let symbol = Symbol::new(name.as_bytes()).ok()?;
    let mut out = Bounded(String::new());
    symbol.structured_demangle(&mut out, &DemangleOptions::new().no_params().no_return_type()).ok()?;
    Some(out.0)
}

/// Text of a limited length.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn names_of_the_source() {
        for (mangled, readable) in [
            ("_ZN4llvm9StringRef4findEcm", "llvm::StringRef::find"),
            ("_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back"),
            ("_Z3maxIiET_S0_S0_", "max<int>"),
            ("_ZN12_GLOBAL__N_13runEv", "(anonymous namespace)::run"),
            ("_ZN4core3fmt5Write9write_str17h0123456789abcdefE", "core::fmt::Write::write_str"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("main", "main"),
            ("i", "i"),
            ("_Zbroken", "_Zbroken"),
            ("", ""),
        ] {
            assert_eq!(demangled(mangled), readable, "{mangled}");
        }
    }

    /// Returns the mangled `f<a, pair<a, a>, pair<pair<a, a>, pair<a, a>>, ...>`, in which each level
    /// doubles the name.
    fn growing(levels: u32) -> String {
        let base36 = |n: u32| {
            let digit = |d| char::from_digit(d, 36).unwrap_or('0').to_ascii_uppercase();
            if n < 36 { digit(n).to_string() } else { format!("{}{}", digit(n / 36), digit(n % 36)) }
        };
        let level = |n: u32| format!("S1_IS{0}_S{0}_E", base36(n));
        format!("_Z1fI1aSt4pairIS0_S0_E{}Evv", (2..levels + 1).map(level).collect::<String>())
    }

    #[test]
    fn a_name_that_grows_without_bounds_stays() {
        let two = "f<a, std::pair<a, a>, std::pair<std::pair<a, a>, std::pair<a, a> > >";
        assert_eq!(demangled(&growing(2)), two);
        let began = Instant::now();
        // Forty levels would fill any memory.
        for name in [growing(40), format!("_Z{}v", "N".repeat(1 << 20)), "_Z".repeat(5000)] {
            assert_eq!(demangled(&name), name);
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
