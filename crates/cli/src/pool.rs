// SPDX-License-Identifier: Apache-2.0
//! `hugelift pool`: shows the hugetlb pools, sets their sizes, and counts the pages that programs
//! need.

use crate::failure::{Exit, Failure};
use crate::options::{BackingChoice, PolicyArgs};
use crate::output;
use crate::program::{file_snapshot, path_of};
use clap::{Args, Subcommand};
use hugelift_core::addr::human_bytes;
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::pool::{self, Change, Kind, Request, SizePool};
use hugelift_core::printable::Escape;
use hugelift_linux::io::console::{self, say};
use hugelift_linux::io::terminal;
use hugelift_linux::machine::pools::{self, PoolChange};
use hugelift_linux::machine::tree::Tree;
use hugelift_measure::interrupt;
use hugelift_report::pool as text;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::PathBuf;

/// Exit status where the kernel gave fewer pages than requested, or the pools hold fewer than
/// needed.
const SHORT: i32 = 1;

/// Show and set the pools of huge pages, and count the pages that programs need
#[derive(Args, Debug)]
pub struct PoolArgs {
    #[command(subcommand)]
    command: Option<PoolCommand>,

    /// Print JSON, version 1 of the schema
    #[arg(long, global = true)]
    json: bool,

    /// Read /proc, /sys and /etc below this folder
    #[arg(long, global = true, hide = true, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum PoolCommand {
    /// Show the pools by page size and NUMA node [the default]
    Show,
    Set(SetArgs),
    Need(NeedArgs),
}

/// Set the size of pools
///
/// Before a pool grows, the kernel compacts free memory. The exit status is 1 if it then has fewer
/// pages than requested; those that it has are in the pool.
#[derive(Args, Debug)]
struct SetArgs {
    /// The page size of a pool, and its new size in pages (64) or bytes (128M); +N and -N change it
    /// by N. Without a page size, or with 'default', the default pool is meant
    #[arg(value_name = "[SIZE=]PAGES|BYTES", required_unless_present = "overcommit")]
    pools: Vec<Request>,

    /// How many surplus pages the kernel may make on demand (repeatable)
    #[arg(long, value_name = "[SIZE=]PAGES|BYTES")]
    overcommit: Vec<Request>,

    /// Set only the pages on this NUMA node
    #[arg(long, value_name = "N", requires = "pools")]
    node: Option<u32>,

    /// Also set it at every boot: by a file in /etc/sysctl.d, or in /etc/tmpfiles.d for nodes and
    /// for pages of another size than the default
    #[arg(long)]
    persist: bool,

    /// Print what would be written to which file; change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Count the pages that programs take when they are lifted onto the pools
///
/// Name a program once for each process of it: every process has a copy of its own, which those that
/// it forks share. Where the addresses are known only at the start, the worst case is counted. The
/// exit status is 1 if the pools hold too few pages.
#[derive(Args, Debug)]
struct NeedArgs {
    #[command(flatten)]
    policy: PolicyArgs,

    /// Programs, by their path or a name on PATH
    #[arg(value_name = "PROG", required = true)]
    programs: Vec<OsString>,
}

/// Shows or sets the pools, or counts what programs need.
///
/// # Errors
/// The pools cannot be set, a program cannot be read, or the result cannot be printed.
pub fn run(args: &PoolArgs) -> Result<Exit, Failure> {
    let tree = Tree::new(args.root.clone());
    match &args.command {
        None | Some(PoolCommand::Show) => show(args, &tree),
        Some(PoolCommand::Set(set)) => set.run(args, &tree),
        Some(PoolCommand::Need(need)) => need.run(args, &tree),
    }
}

fn print_json(value: &Value) -> Result<(), Failure> {
    Ok(console::print(&output::json(value)?)?)
}

fn show(args: &PoolArgs, tree: &Tree) -> Result<Exit, Failure> {
    let pools = pools::read(tree);
    if args.json {
        print_json(&json!({ "version": pool::VERSION, "pools": pools }))?;
    } else {
        console::print(&text::show(&pools, terminal::width().unwrap_or(80)))?;
    }
    Ok(Exit::SUCCESS)
}

/// What was set before the first failure.
struct Set {
    made: Vec<PoolChange>,
    /// The files for every boot, with their texts.
    files: Vec<(&'static str, String)>,
    failed: Option<Failure>,
}

impl SetArgs {
    fn run(&self, args: &PoolArgs, tree: &Tree) -> Result<Exit, Failure> {
        let changes = || pool::changes(&pools::read(tree), &self.pools, &self.overcommit, self.node);
        if self.dry_run {
            return self.preview(args, tree, &changes()?);
        }
        let turns = pools::lock_all(tree, &changes()?)?;
        for path in turns.iter().filter_map(|turn| turn.as_ref().err()) {
            let path = path.escaped();
            say(&format!(
                "another process has locked {path} (an experiment of 'hugelift lab', or another 'pool set'), and may \
                 change it later; it is set all the same: fuser -v {path}"
            ));
        }
        // Another one may have set them before we had the locks.
        let changes = changes()?;
        interrupt::prepare()?;
        if self.persist {
            // What cannot be kept for every boot is refused before anything is changed.
            pools::permanent(tree, &changes)?;
        }
        let set = self.set(tree, &changes);
        drop(turns);
        // After a failure too: the changes before it were made.
        set.print(args, tree)?;
        if let Some(failure) = set.failed {
            return Err(failure);
        }
        if self.persist {
            self.say_persisted(args, tree, &changes, &set.files);
        }
        let short = set.made.iter().filter(|m| m.change.grows() && m.got < m.change.to).collect::<Vec<_>>();
        for one in &short {
            say(&shortage(one));
        }
        Ok(if short.is_empty() { Exit::SUCCESS } else { Exit(SHORT) })
    }

    /// Makes the changes, up to the first one that fails.
    fn set(&self, tree: &Tree, changes: &[Change]) -> Set {
        let mut set = Set { made: Vec::new(), files: Vec::new(), failed: None };
        for change in changes {
            match pools::apply(tree, change, || interrupt::check().is_ok()) {
                Ok(one) => set.made.push(one),
                Err(error) => {
                    set.failed = Some(Failure::new(error.to_string()));
                    return set;
                }
            }
            if interrupt::check().is_err() {
                set.failed = Some(set.put_back(tree));
                return set;
            }
        }
        if self.persist {
            match pools::permanent(tree, changes) {
                Ok(files) => set.files = files,
                Err(why) => set.failed = Some(Failure::new(why)),
            }
        }
        for (path, text) in &set.files {
            if let Err(error) = tree.replace(path, text) {
                let path = tree.path(path);
                set.failed = Some(Failure::new(format!("cannot write {}: {error}", path.escaped())));
                break;
            }
        }
        set
    }

    fn preview(&self, args: &PoolArgs, tree: &Tree, changes: &[Change]) -> Result<Exit, Failure> {
        let files = if self.persist { pools::permanent(tree, changes)? } else { vec![] };
        if args.json {
            let files: Vec<Value> =
                files.iter().map(|(path, text)| json!({ "path": tree.path(path), "text": text })).collect();
            print_json(&json!({ "version": pool::VERSION, "dry_run": true,
                "changes": changes.iter().map(|c| described(c, None)).collect::<Vec<_>>(),
                "persisted": files }))?;
            return Ok(Exit::SUCCESS);
        }
        for change in changes {
            let path = tree.path(change.path());
            console::print(&format!(
                "would write {} to {} (now {})\n",
                change.to,
                path.escaped(),
                change.from
            ))?;
        }
        for (path, text) in &files {
            let indented: String = text.lines().map(|line| format!("  {line}\n")).collect();
            console::print(&format!("would write {}:\n{indented}", tree.path(path).escaped()))?;
        }
        Ok(Exit::SUCCESS)
    }

    fn say_persisted(
        &self,
        args: &PoolArgs,
        tree: &Tree,
        changes: &[Change],
        files: &[(&'static str, String)],
    ) {
        let mut lines: Vec<String> = Vec::new();
        if files.is_empty() {
            lines.push("the files for every boot have these sizes already".into());
        }
        lines.extend(files.iter().map(|(path, _)| format!("for every boot: {}", tree.path(path).escaped())));
        if !args.json {
            for line in &lines {
                say(line);
            }
        }
        for path in pools::overridden(tree, changes) {
            say(&format!("{} is read later and sets the same pool: change it there", path.escaped()));
        }
        let needs_systemd = files.iter().any(|(path, _)| *path == pool::persist::TMPFILES);
        if needs_systemd && !pools::has_systemd(tree) {
            say("systemd does not run here, and only systemd-tmpfiles reads /etc/tmpfiles.d: \
                 set hugepagesz= and hugepages= on the kernel's command line instead");
        }
    }
}

impl Set {
    /// Undoes what was made, the last change first, and returns what to say of it.
    fn put_back(&mut self, tree: &Tree) -> Failure {
        interrupt::accept();
        let mut left = Vec::new();
        let mut complaints = Vec::new();
        for one in std::mem::take(&mut self.made).into_iter().rev() {
            let (change, size) = (one.change, human_bytes(one.change.page_size));
            match pools::put_back(tree, &change) {
                Ok(0) => {}
                Ok(lack) => {
                    complaints.push(format!("{lack} pages of {size} that there were before are missing"));
                    left.push(PoolChange { change, got: change.from - lack });
                }
                Err(error) => {
                    complaints.push(error.to_string());
                    left.push(one);
                }
            }
        }
        left.reverse();
        self.made = left;
        let said = match complaints.is_empty() {
            true => "the pools are as they were before".into(),
            false => complaints.join("; "),
        };
        Failure { status: Exit::INTERRUPTED.0, message: format!("interrupted: {said}") }
    }

    fn print(&self, args: &PoolArgs, tree: &Tree) -> Result<(), Failure> {
        if !args.json {
            let lines: String = self.made.iter().map(|one| result(one) + "\n").collect();
            return Ok(console::print(&lines)?);
        }
        let files = if self.failed.is_some() { &[][..] } else { &self.files };
        let files: Vec<PathBuf> = files.iter().map(|(path, _)| tree.path(path)).collect();
        print_json(&json!({ "version": pool::VERSION, "dry_run": false,
            "changes": self.made.iter().map(|m| described(&m.change, Some(m.got))).collect::<Vec<_>>(),
            "persisted": files }))
    }
}

/// A change and its result, as JSON.
fn described(change: &Change, got: Option<u64>) -> Value {
    json!({ "page_size": change.page_size, "node": change.node, "kind": change.kind,
        "path": change.path(), "from": change.from, "asked": change.to, "got": got })
}

/// Returns text such as "2 MB pages: 64 asked for, 64 got (before: 0)".
fn result(made: &PoolChange) -> String {
    let PoolChange { change, got } = made;
    let what = match change.kind {
        Kind::Pages => "pages",
        Kind::Overcommit => "overcommit",
    };
    let node = change.node.map(|n| format!(" on node {n}")).unwrap_or_default();
    let (size, asked, from) = (human_bytes(change.page_size), change.to, change.from);
    format!("{size} {what}{node}: {asked} asked for, {got} got (before: {from})")
}

fn shortage(made: &PoolChange) -> String {
    let lack = made.change.to - made.got;
    let size = human_bytes(made.change.page_size);
    format!(
        "{lack} pages of {size} are missing: memory is full or fragmented; stop programs that use it, \
         or set the pool at boot (--persist), when memory is free"
    )
}

impl NeedArgs {
    fn run(&self, args: &PoolArgs, tree: &Tree) -> Result<Exit, Failure> {
        let policy = self.policy.policy()?;
        if !matches!(self.policy.backing, BackingChoice::Auto | BackingChoice::Hugetlb) {
            return Err(Failure::new("--backing: only hugetlb takes pages of a pool"));
        }
        // The base that the program is moved to when all of it comes from the pool.
        let from_pool = Policy { backings: vec![Backing::Hugetlb], ..policy.clone() };
        let mut needs = Vec::new();
        for program in &self.programs {
            let path = path_of(program)?;
            let snapshot = file_snapshot(&path, &from_pool)?;
            needs.push(pool::need(path.as_os_str(), &snapshot, &policy));
        }
        let pools = pools::read(tree);
        if args.json {
            print_json(&self.as_json(&needs, &pools))?;
        } else {
            console::print(&text::needs(&needs, &pools))?;
        }
        Ok(if pool::commands(&pools, &pool::sum(&needs)).is_empty() { Exit::SUCCESS } else { Exit(SHORT) })
    }

    fn as_json(&self, needs: &[pool::Need], pools: &[SizePool]) -> Value {
        let all = pool::sum(needs);
        json!({ "version": pool::VERSION, "programs": needs, "pages": all,
            "commands": pool::commands(pools, &all) })
    }
}
