// SPDX-License-Identifier: Apache-2.0
//! What to run, and in which environment.

use anyhow::{Context as _, Result, bail};
use hugelift_core::printable::Escape;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program with its arguments, its CPUs and its files.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Additions to the environment.
    pub env: Vec<(OsString, OsString)>,
    /// The only CPUs that it may use; all if empty.
    pub cpus: Vec<usize>,
    /// It gets no transparent huge pages: prctl(2), PR_SET_THP_DISABLE. The kernel then also maps
    /// large folios of the page cache by small entries.
    pub no_thp: bool,
    /// The file that is its standard input; none is /dev/null.
    pub input: Option<PathBuf>,
    /// Where its standard output and error go.
    pub output: Output,
}

/// Where a program's output goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// To /dev/null.
    #[default]
    Discard,
    /// To where the output of this process goes.
    Inherit,
    /// To the end of this file.
    File(PathBuf),
}

impl Program {
    /// Makes a program from its arguments.
    pub fn new<I: Into<OsString>>(argv: impl IntoIterator<Item = I>) -> Program {
        Program { argv: argv.into_iter().map(Into::into).collect(), ..Program::default() }
    }

    /// Returns the same program under `HUGELIFT run OPTIONS --`.
    pub fn lifted<S: Into<OsString> + Clone>(&self, hugelift: &Path, options: &[S]) -> Program {
        let mut argv: Vec<OsString> = vec![hugelift.into(), "run".into()];
        argv.extend(options.iter().cloned().map(Into::into));
        argv.push("--".into());
        argv.extend(self.argv.iter().cloned());
        Program { argv, ..self.clone() }
    }

    /// Returns the same program with one more argument.
    pub fn arg(&self, arg: &str) -> Program {
        let mut more = self.clone();
        more.argv.push(arg.into());
        more
    }

    /// Returns the same program with a library preloaded.
    pub fn preloading(&self, library: &Path) -> Program {
        let mut more = self.clone();
        more.env.push(("LD_PRELOAD".into(), library.into()));
        more
    }

    /// Makes the command, with its streams, CPUs and prctl(2) settings.
    ///
    /// # Errors
    /// The argument list is empty, or one of the files cannot be opened.
    pub fn command(&self) -> Result<Command> {
        let [program, args @ ..] = &self.argv[..] else { bail!("nothing to run") };
        let mut command = Command::new(program);
        command.args(args).envs(self.env.iter().cloned());
        command.stdin(match &self.input {
            Some(path) => File::open(path).with_context(|| format!("cannot open {}", path.escaped()))?.into(),
            None => Stdio::null(),
        });
        if self.output == Output::Discard {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        } else if let Output::File(path) = &self.output {
            let file = File::options().append(true).create(true).open(path);
            let file = file.with_context(|| format!("cannot write {}", path.escaped()))?;
            command.stderr(file.try_clone().context("dup")?).stdout(file);
        }
        self.before_exec(&mut command)?;
        Ok(command)
    }

    /// Checks that the CPUs can be used: a run would otherwise fail with an error that does not name
    /// them.
    ///
    /// # Errors
    /// This process may use none of them.
    pub fn check_cpus(&self) -> Result<()> {
        let Some(set) = self.cpu_set()? else { return Ok(()) };
        let own = Pid::from_raw(0);
        let before = sched_getaffinity(own).context("sched_getaffinity")?;
        sched_setaffinity(own, &set)
            .with_context(|| format!("this process may use none of the CPUs {:?}", self.cpus))?;
        sched_setaffinity(own, &before).context("sched_setaffinity")
    }

    fn cpu_set(&self) -> Result<Option<CpuSet>> {
        if self.cpus.is_empty() {
            return Ok(None);
        }
        let mut set = CpuSet::new();
        for &cpu in &self.cpus {
            set.set(cpu).with_context(|| format!("CPU {cpu}"))?;
        }
        Ok(Some(set))
    }

    fn before_exec(&self, command: &mut Command) -> Result<()> {
        if self.cpus.is_empty() && !self.no_thp {
            return Ok(());
        }
        let (set, no_thp) = (self.cpu_set()?, self.no_thp);
        let change = move || {
            if let Some(set) = set {
                sched_setaffinity(Pid::from_raw(0), &set).map_err(io::Error::from)?;
            }
            if no_thp {
                nix::sys::prctl::set_thp_disable(true).map_err(io::Error::from)?;
            }
            Ok(())
        };
        // SAFETY: sched_setaffinity(2) and prctl(2) are plain system calls: nothing in the
        // closure allocates or takes a lock between fork and exec.
        unsafe { command.pre_exec(change) };
        Ok(())
    }
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = self.env.iter().map(|(name, value)| format!("{}={}", name.escaped(), value.escaped()));
        let words: Vec<String> = words.chain(self.argv.iter().map(|w| w.escaped().to_string())).collect();
        f.write_str(&words.join(" "))
    }
}
