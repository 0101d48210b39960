// SPDX-License-Identifier: Apache-2.0
//! The exec stop: the kernel has mapped the program, and nothing of it has run.

use super::ends::{class32, exe, lift, refuse};
use super::entry_stop::EntryStop;
use crate::job::LiftJob;
use crate::launch::bypass::Bypass;
use hugelift_core::addr::{Addr, PageSize};
use hugelift_core::heap;
use hugelift_core::maps::Mapping;
use hugelift_core::relocate::{self, Layout, Move};
use hugelift_core::target::Fault;
use hugelift_inject::at_exec;
use hugelift_inject::auxv_slots::AuxvSlots;
use hugelift_inject::frame::{CodeCave, RestoreFrame};
use hugelift_inject::ptrace::{Error, Resume, Stop, Stopped};
use hugelift_inject::remote::Remote;
use hugelift_linux::machine::base_page;
use hugelift_linux::proc::procfs::{Auxv, Process};
use std::io;

/// The step after the exec stop.
pub(super) enum Next {
    /// Nothing: the program is lifted, or will not be.
    Done,
    /// The loader runs, then the program stops at its entry point.
    Loading(Stopped, EntryStop),
}

/// A program at its exec stop.
pub(super) struct ExecStop {
    process: Process,
    mappings: Vec<Mapping>,
    auxv: Auxv,
    slots: AuxvSlots,
    cave: CodeCave,
    /// It has a loader, which runs first.
    is_dynamic: bool,
    /// Where the program itself begins.
    entry: Addr,
}

/// Moves the executable and aligns the heap, as the job says. Then a static program is lifted, and a dynamic program
/// gets its entry stub.
pub(super) fn at_exec(stopped: Stopped, reap: Option<i32>, job: &mut LiftJob) -> Result<Next, Error> {
    let mut program = match ExecStop::read(&stopped) {
        Ok(program) => program,
        Err(Bypass::Ptrace(error @ Error::Vanished(_))) => return Err(error),
        Err(why) => {
            refuse(&stopped, job, &why);
            return Ok(Next::Done);
        }
    };
    let plan = program.plan_move(job);
    let heap_page = job.heap_page();
    if plan.is_none() && heap_page.is_none() && program.is_dynamic {
        return load(stopped, &program, reap, job);
    }
    // At the exec stop itself the registers are still those of execve(2). They are the program's own at
    // the end of that system call.
    let (stopped, stop) = stopped.resume(Resume::Syscall, 0)?.wait_shortly()?;
    if stop != Stop::Syscall {
        return Err(Error::Unexpected { tid: stopped.tid(), status: 0 });
    }
    let Some(regs) = stopped.regs()? else {
        refuse(&stopped, job, &class32(&stopped));
        return Ok(Next::Done);
    };
    let frame = RestoreFrame::arm(&stopped, regs.after_exec(), program.cave, reap)?;
    let mut remote = Remote::new(stopped, frame);
    if let Some((plan, layout)) = plan {
        program.move_executable(&mut remote, &plan, &layout, job)?;
    }
    if let Some(page) = heap_page {
        program.align_heap(&mut remote, page)?;
    }
    if program.is_dynamic {
        return load(remote.release()?, &program, reap, job);
    }
    lift(remote, false, job)?;
    Ok(Next::Done)
}

impl ExecStop {
    /// Reads what is needed of the stopped program.
    fn read(stopped: &Stopped) -> Result<ExecStop, Bypass> {
        let pid = stopped.tid();
        let process = Process::new(pid.cast_unsigned());
        let regs = stopped.regs()?.ok_or_else(|| class32(stopped))?;
        let mappings = process.maps()?;
        let auxv = process.auxv()?;
        if auxv.secure != 0 {
            return Err(Bypass::Privileged { path: exe(pid).into(), what: "started with AT_SECURE" });
        }
        let cave = CodeCave::find(pid, &mappings).ok_or(Bypass::NoCodeCave)?;
        let is_dynamic = auxv.base != 0;
        let slots = match AuxvSlots::find(pid, regs.sp(), &mappings, auxv.entry) {
            Some(slots) => slots,
            None if is_dynamic => return Err(Bypass::NoEntry),
            None => AuxvSlots::default(),
        };
        let entry = Addr(auxv.entry);
        Ok(ExecStop { process, mappings, auxv, slots, cave, is_dynamic, entry })
    }

    /// Returns where the executable should be moved to, if anywhere.
    fn plan_move(&mut self, job: &mut LiftJob) -> Option<(Move, Layout)> {
        let image = at_exec::image(self.process, &mut self.mappings, &self.auxv, base_page())?;
        let plan = job.place(self.process.pid(), &image, &self.mappings)?;
        // The old image is unmapped, and the code cave must stay.
        if image.range.contains(self.cave.entry_stub()) {
            return None;
        }
        match at_exec::layout(self.process) {
            Ok(layout) => Some((plan, layout)),
            Err(error) => {
                tracing::debug!(%error, "the executable stays");
                None
            }
        }
    }

    /// Moves the executable. A move that fails is undone, and the program goes on where it is.
    fn move_executable(
        &mut self,
        remote: &mut Remote,
        plan: &Move,
        layout: &Layout,
        job: &mut LiftJob,
    ) -> Result<(), Error> {
        remote.set_auxv_slots(self.slots);
        let moved = relocate::carry_out(remote, plan, layout);
        tracing::debug!(?plan, ?moved, "moved the executable");
        if let Err(Fault::Lost(_)) = moved {
            // The program was killed, or returns through its restore frame without us.
            return Err(Error::Vanished(self.process.pid().cast_signed()));
        }
        if moved.is_ok() {
            self.entry = Addr(self.entry.0 - plan.distance);
        }
        job.placed(moved.as_ref().map(drop));
        Ok(())
    }

    /// Makes the heap begin at a multiple of `page`. Where that cannot be done the heap stays: only the
    /// gain is lost.
    fn align_heap(&self, remote: &mut Remote, page: PageSize) -> Result<(), Error> {
        // They are read again, as the executable may have been moved.
        let now = at_exec::layout(self.process).and_then(|layout| {
            let mappings = self.process.maps().map_err(|e| io::Error::other(e.to_string()))?;
            Ok((layout, mappings))
        });
        let aligned = now.map(|(layout, mappings)| heap::align(remote, &layout, &mappings, page));
        tracing::debug!(?aligned, "the heap's start");
        match aligned {
            Ok(Err(Fault::Lost(_))) => Err(Error::Vanished(self.process.pid().cast_signed())),
            _ => Ok(()),
        }
    }
}

/// Arranges for a dynamic program to stop at its entry point, and lets its loader run. A program that must
/// wait for its helper (`reap`) does so there.
fn load(stopped: Stopped, program: &ExecStop, reap: Option<i32>, job: &mut LiftJob) -> Result<Next, Error> {
    if reap.is_none() && job.ends_at_exec(program.process.pid()) {
        stopped.detach(0)?;
        return Ok(Next::Done);
    }
    match EntryStop::arrange(&stopped, program.cave, program.entry, program.slots.entry) {
        Ok(entry) => Ok(Next::Loading(stopped, entry)),
        Err(Bypass::Ptrace(error @ Error::Vanished(_))) => Err(error),
        Err(why) => {
            refuse(&stopped, job, &why);
            Ok(Next::Done)
        }
    }
}
