// SPDX-License-Identifier: Apache-2.0
//! The environment, as an array of strings that is read and, at the start, edited in place.

use core::ffi::{CStr, c_char};

/// The array that `environ` points to.
pub struct Environment(*mut *const c_char);

impl Environment {
    /// # Safety
    /// `array` holds strings and ends in a null pointer, and nothing else changes it meanwhile.
    pub unsafe fn new(array: *mut *const c_char) -> Environment {
        Environment(array)
    }

    /// Returns the entries.
    fn entries(&self) -> impl Iterator<Item = *mut *const c_char> {
        let at = |i: usize| {
            // SAFETY: up to the null pointer, by `new`'s promise.
            let slot = unsafe { self.0.add(i) };
            // SAFETY: as above.
            (!self.0.is_null() && !unsafe { *slot }.is_null()).then_some(slot)
        };
        (0..).map_while(at)
    }

    fn slot(&self, name: &str) -> Option<(*mut *const c_char, &CStr)> {
        self.entries().find_map(|slot| {
            // SAFETY: an entry is a string, by `new`'s promise.
            let entry = unsafe { CStr::from_ptr(*slot) };
            let value = entry.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            let skipped = entry.to_bytes_with_nul().len() - 1 - value.len();
            // SAFETY: within the entry, whose end stays.
            Some((slot, unsafe { CStr::from_ptr((*slot).add(skipped)) }))
        })
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&CStr> {
        self.slot(name).map(|(_, value)| value)
    }

    /// Removes a variable.
    pub fn remove(&self, name: &str) {
        let Some((mut slot, _)) = self.slot(name) else { return };
        // SAFETY: from one entry on to the null pointer.
        unsafe {
            while !(*slot).is_null() {
                *slot = *slot.add(1);
                slot = slot.add(1);
            }
        }
    }

    /// Removes the first `skip` bytes of a variable's value, or the variable if nothing is left.
    pub fn shorten(&self, name: &str, skip: usize) {
        let Some((slot, value)) = self.slot(name) else { return };
        let left = value.to_bytes().len().saturating_sub(skip);
        if left == 0 {
            return self.remove(name);
        }
        // SAFETY: the name moves up within the entry, byte by byte from its end; the array and
        // its strings are the process's own, and writable (execve(2)).
        unsafe {
            let entry = (*slot).cast_mut();
            for i in (0..=name.len()).rev() {
                *entry.add(i + skip) = *entry.add(i);
            }
            *slot = entry.add(skip);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Held(Vec<*const c_char>, #[allow(dead_code, reason = "owns the strings")] Vec<Vec<u8>>);

    fn array(entries: &[&str]) -> Held {
        let mut strings: Vec<Vec<u8>> = entries.iter().map(|e| [e.as_bytes(), &[0]].concat()).collect();
        let mut array: Vec<_> = strings.iter_mut().map(|s| s.as_mut_ptr().cast_const().cast()).collect();
        array.push(core::ptr::null());
        Held(array, strings)
    }

    fn all(environment: &Environment) -> Vec<String> {
        // SAFETY: the test's own array.
        let text = |slot: *mut *const c_char| unsafe { CStr::from_ptr(*slot) }.to_str().unwrap().to_owned();
        environment.entries().map(text).collect()
    }

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let mut held = array(&["AB=1", "A=2", "odd", "A=3", "E="]);
        // SAFETY: an array as `new` takes it, which lives on.
        let environment = unsafe { Environment::new(held.0.as_mut_ptr()) };
        assert_eq!(environment.get("A"), Some(c"2"));
        assert_eq!(environment.get("E"), Some(c""));
        assert_eq!(environment.get("odd"), None);
        environment.remove("A");
        assert_eq!(all(&environment), ["AB=1", "odd", "A=3", "E="]);
        environment.remove("none");
        environment.remove("E");
        assert_eq!(all(&environment), ["AB=1", "odd", "A=3"]);
    }

    #[test]
    fn a_value_loses_its_beginning() {
        let mut held = array(&["X=1", "LD_PRELOAD=/a/b.so:/c.so", "Y=2"]);
        // SAFETY: as above.
        let environment = unsafe { Environment::new(held.0.as_mut_ptr()) };
        environment.shorten("LD_PRELOAD", 8);
        assert_eq!(all(&environment), ["X=1", "LD_PRELOAD=/c.so", "Y=2"]);
        environment.shorten("LD_PRELOAD", 5);
        assert_eq!(all(&environment), ["X=1", "Y=2"]);
    }

    #[test]
    fn no_environment_at_all() {
        // SAFETY: a null pointer is an empty array to it.
        let environment = unsafe { Environment::new(core::ptr::null_mut()) };
        assert_eq!(environment.get("A"), None);
        environment.remove("A");
    }
}
