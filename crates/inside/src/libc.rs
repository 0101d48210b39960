// SPDX-License-Identifier: Apache-2.0
//! Functions and variables of the program's C library, which it may lack.

use core::ffi::{c_char, c_int, c_ulong};

/// A function that returns the address of a symbol of the program, 0 if there is none. Rust has
/// no stable weak references.
macro_rules! weak {
    ($($function:ident = $symbol:literal),+ $(,)?) => {$(
        #[cfg(loaded)]
        #[unsafe(naked)]
        extern "C" fn $function() -> usize {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                concat!(".weak ", $symbol),
                // The loader has put the symbol's address into the GOT, or 0.
                concat!("mov rax, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                "ret",
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                concat!(".weak ", $symbol),
                // The page of the GOT's entry; then the entry: the symbol's address, or 0.
                concat!("adrp x0, :got:", $symbol),
                concat!("ldr x0, [x0, :got_lo12:", $symbol, "]"),
                "ret",
            );
        }
        #[cfg(not(loaded))]
        extern "C" fn $function() -> usize {
            0
        }
    )+};
}

weak! {
    at_environ = "environ",
    at_getauxval = "getauxval",
    at_dl_iterate_phdr = "dl_iterate_phdr",
    at_register_atfork = "__register_atfork",
    at_pthread_atfork = "pthread_atfork",
}

/// Returns the address of `environ` (environ(7)).
pub fn environ() -> Option<*mut *mut *const c_char> {
    let at = at_environ() as *mut *mut *const c_char;
    (!at.is_null()).then_some(at)
}

/// Returns a value of the auxiliary vector (getauxval(3)), or 0 if it is not available.
pub fn auxiliary(kind: c_ulong) -> c_ulong {
    match at_getauxval() {
        0 => 0,
        // SAFETY: a function of this name has this type in every C library of Linux.
        at => unsafe { core::mem::transmute::<usize, extern "C" fn(c_ulong) -> c_ulong>(at)(kind) },
    }
}

type Hook = extern "C" fn();

/// Registers functions to be called around fork(2) (pthread_atfork(3)); returns whether that worked.
pub fn at_fork(prepare: Hook, parent: Hook, child: Hook) -> bool {
    // glibc's programs have pthread_atfork linked into them; it calls this.
    type Register = extern "C" fn(Hook, Hook, Hook, *const u8) -> c_int;
    type AtFork = extern "C" fn(Hook, Hook, Hook) -> c_int;
    let failed = match (at_register_atfork(), at_pthread_atfork()) {
        (0, 0) => return false,
        // SAFETY: as in `auxiliary`.
        (0, at) => unsafe { core::mem::transmute::<usize, AtFork>(at)(prepare, parent, child) },
        // SAFETY: as above. Only a library that can be unloaded needs the handle.
        (at, _) => unsafe {
            core::mem::transmute::<usize, Register>(at)(prepare, parent, child, core::ptr::null())
        },
    };
    failed == 0
}

/// Returns the value by which thrd_create(3) reports a lack of memory: each C library has its own numbers.
pub fn thrd_nomem() -> c_int {
    if at_register_atfork() == 0 { 3 } else { 1 }
}

/// `struct dl_phdr_info` (dl_iterate_phdr(3)), as far as it is the same everywhere.
#[repr(C)]
pub struct Object {
    /// What loading added to the stated addresses.
    pub bias: usize,
    /// Its path; empty for the executable.
    pub name: *const c_char,
    /// Its program headers.
    pub headers: *const Header,
    /// How many.
    pub count: u16,
}

/// `Elf64_Phdr`
#[repr(C)]
pub struct Header {
    pub kind: u32,
    pub flags: u32,
    pub offset: u64,
    pub vaddr: u64,
    pub paddr: u64,
    pub filesz: u64,
    pub memsz: u64,
    pub align: u64,
}

type Visit = unsafe extern "C" fn(*const Object, usize, *mut u8) -> c_int;

/// Calls `visit` for each object until it returns something but 0 (dl_iterate_phdr(3)).
///
/// # Safety
/// `visit` may be called with `data`.
pub unsafe fn each_object(visit: Visit, data: *mut u8) -> c_int {
    match at_dl_iterate_phdr() {
        0 => 0,
        // SAFETY: as in `auxiliary`, and the caller's promise.
        at => unsafe {
            core::mem::transmute::<usize, extern "C" fn(Visit, *mut u8) -> c_int>(at)(visit, data)
        },
    }
}
