// SPDX-License-Identifier: Apache-2.0
//! fsync(2) with a deadline.
//!
//! A disk may take long, and a program waits for the helper. So the kernel is asked by io_submit(2) to do it
//! asynchronously, and its answer is waited for until the deadline. That needs no thread, so the helper may
//! still fork.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// `struct iocb` (linux/aio_abi.h); the fields of reads and writes stay zero.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key_and_flags: u64,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event` (linux/aio_abi.h).
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    second_result: i64,
}

/// `IOCB_CMD_FSYNC`, since Linux 4.18.
const FSYNC: u16 = 2;

/// Makes the kernel write the file's dirty pages to the disk, as fsync(2) does. They are clean then, and
/// mapped without write permission.
///
/// # Errors
/// The file system's error; ENOSYS for a kernel without io_submit(2); or `TimedOut` after `patience`. The
/// kernel then goes on, and the end of our process waits for it.
pub fn write_back(file: &File, patience: Duration) -> io::Result<()> {
    let mut context: libc::c_ulong = 0;
    // SAFETY: io_setup(2) writes a number to `context`, which is zero, as it must be.
    checked(unsafe { libc::syscall(libc::SYS_io_setup, 1_usize, &raw mut context) })?;
    let descriptor = file.as_raw_fd().cast_unsigned();
    let mut request = Request { opcode: FSYNC, descriptor, ..Request::default() };
    let mut requests = [&raw mut request];
    // SAFETY: io_submit(2) reads one pointer to a request, which is copied before it returns.
    checked(unsafe { libc::syscall(libc::SYS_io_submit, context, 1_usize, requests.as_mut_ptr()) })?;
    let mut event = Event::default();
    let mut left = libc::timespec { tv_sec: patience.as_secs().try_into().unwrap_or(1), tv_nsec: 0 };
    left.tv_nsec = patience.subsec_nanos().into();
    let (at, until) = (&raw mut event, &raw mut left);
    // SAFETY: io_getevents(2) writes at most one event; the deadline lives through the call.
    let got = unsafe { libc::syscall(libc::SYS_io_getevents, context, 1_usize, 1_usize, at, until) };
    // The context is not destroyed before our process ends: io_destroy(2) would wait for the kernel.
    match checked(got)? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ if event.result < 0 => Err(io::Error::from_raw_os_error(-event.result as i32)),
        _ => Ok(()),
    }
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn files_are_written_back_and_errors_are_returned() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"x").unwrap();
        write_back(&file, Duration::from_secs(60)).unwrap();
        // fsync(2) of a file that has no place on a disk.
        let null = File::open("/dev/null").unwrap();
        assert_eq!(
            write_back(&null, Duration::from_secs(60)).unwrap_err().raw_os_error(),
            null.sync_all().unwrap_err().raw_os_error()
        );
    }
}
