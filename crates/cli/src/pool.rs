// SPDX-License-Identifier: Apache-2.0
//! `hugelift pool`: the hugetlb pools: what they hold, how large they should be, and how
//! many pages programs need.

use crate::FAILED;
use crate::failure::Failure;
use crate::options::{BackingChoice, PolicyArgs};
use clap::{Args, Subcommand};
use hugelift_core::addr::human_bytes;
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::pool::{self, Change, Kind, Request, SizePool};
use hugelift_core::printable::Escape;
use hugelift_core::printable::json as json_text;
use hugelift_os::elf::file_snapshot::of_file;
use hugelift_os::io::console::{self, say};
use hugelift_os::io::terminal;
use hugelift_os::launch::base::Wanted;
use hugelift_os::launch::lookup::resolve;
use hugelift_os::machine::pools::{self, PoolChange};
use hugelift_os::machine::thp_page;
use hugelift_os::machine::tree::Tree;
use hugelift_report::pool as text;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Exit status where the kernel gave fewer pages than asked for, or the pools hold fewer
/// than needed.
const SHORT: i32 = 1;

/// Show and set the pools of huge pages, and find out how large they must be
#[derive(Args, Debug)]
pub struct PoolArgs {
    #[command(subcommand)]
    command: Option<PoolCommand>,

    /// Print JSON, version 1 of the schema
    #[arg(long, global = true)]
    json: bool,

    /// Look for /proc, /sys and /etc below this folder
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
/// Before a pool grows, the kernel is told to put free memory together (compaction). The exit
/// status is 1 if it then had fewer pages than asked for; those that it had are in the pool.
#[derive(Args, Debug)]
struct SetArgs {
    /// The pool of this page size gets so many pages (64), or so many bytes (128M); +N and -N
    /// change it by N. The size may be 'default', or be left out
    #[arg(value_name = "[SIZE=]PAGES|BYTES", required_unless_present = "overcommit")]
    pools: Vec<Request>,

    /// So many surplus pages may be made on demand (repeatable)
    #[arg(long, value_name = "[SIZE=]PAGES|BYTES")]
    overcommit: Vec<Request>,

    /// Set the share of this NUMA node only
    #[arg(long, value_name = "N", requires = "pools")]
    node: Option<u32>,

    /// Also set it at every boot: by a file in /etc/sysctl.d, or, for other sizes and for
    /// nodes, in /etc/tmpfiles.d
    #[arg(long)]
    persist: bool,

    /// Say what would be written where; change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Count the pages that programs take when they are lifted onto the pools
///
/// Each program counts as often as it is named: every process has a copy of its own, and
/// what it forks shares it. Where loading chooses the addresses, the least lucky choice is
/// counted. The exit status is 1 if the pools hold too few.
#[derive(Args, Debug)]
struct NeedArgs {
    #[command(flatten)]
    policy: PolicyArgs,

    /// Programs, by their path or a name on PATH
    #[arg(value_name = "PROG", required = true)]
    programs: Vec<OsString>,
}

/// Runs the command; returns the exit status.
pub fn pool(args: &PoolArgs) -> i32 {
    let tree = Tree::new(args.root.clone());
    let done = match &args.command {
        None | Some(PoolCommand::Show) => show(args, &tree),
        Some(PoolCommand::Set(set)) => set.run(args, &tree),
        Some(PoolCommand::Need(need)) => need.run(args, &tree),
    };
    done.unwrap_or_else(|failure| {
        say(&failure.message);
        failure.status
    })
}

fn print(text: &str) -> Result<(), Failure> {
    console::print(text).map_err(Failure::new)
}

fn print_json(value: &Value) -> Result<(), Failure> {
    print(&(json_text(value).map_err(|e| Failure::new(format!("cannot write JSON: {e}")))? + "\n"))
}

fn show(args: &PoolArgs, tree: &Tree) -> Result<i32, Failure> {
    let pools = pools::read(tree);
    if args.json {
        print_json(&json!({ "version": pool::VERSION, "pools": pools }))?;
    } else {
        print(&text::show(&pools, terminal::width().unwrap_or(80)))?;
    }
    Ok(0)
}

impl SetArgs {
    fn run(&self, args: &PoolArgs, tree: &Tree) -> Result<i32, Failure> {
        let pools = pools::read(tree);
        let changes =
            pool::changes(&pools, &self.pools, &self.overcommit, self.node).map_err(Failure::from)?;
        if self.dry_run {
            return self.foretell(args, tree, &changes);
        }
        let mut made = Vec::new();
        let mut failed = None;
        for change in &changes {
            match pools::apply(tree, change) {
                Ok(one) => made.push(one),
                Err(error) => {
                    failed = Some(Failure::new(error.to_string()));
                    break;
                }
            }
        }
        let files = if self.persist && failed.is_none() { pools::permanent(tree, &changes) } else { vec![] };
        for (path, text) in &files {
            if let Err(error) = tree.replace(path, text) {
                let path = tree.path(path);
                failed = Some(Failure::new(format!("cannot write {}: {error}", path.escaped())));
                break;
            }
        }
        if args.json {
            let files: Vec<PathBuf> = files.iter().map(|(path, _)| tree.path(path)).collect();
            let files = if failed.is_some() { vec![] } else { files };
            print_json(&json!({ "version": pool::VERSION, "dry_run": false,
                "changes": made.iter().map(|m| described(&m.change, Some(m.got))).collect::<Vec<_>>(),
                "persisted": files }))?;
        } else {
            for one in &made {
                print(&(result(one) + "\n"))?;
            }
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        if self.persist {
            self.say_persisted(args, tree, &changes, &files);
        }
        let short = made.iter().filter(|m| m.change.grows() && m.got < m.change.to).collect::<Vec<_>>();
        for one in &short {
            say(&shortage(one));
        }
        Ok(if short.is_empty() { 0 } else { SHORT })
    }

    fn foretell(&self, args: &PoolArgs, tree: &Tree, changes: &[Change]) -> Result<i32, Failure> {
        let files = if self.persist { pools::permanent(tree, changes) } else { vec![] };
        if args.json {
            let files: Vec<Value> =
                files.iter().map(|(path, text)| json!({ "path": tree.path(path), "text": text })).collect();
            print_json(&json!({ "version": pool::VERSION, "dry_run": true,
                "changes": changes.iter().map(|c| described(c, None)).collect::<Vec<_>>(),
                "persisted": files }))?;
            return Ok(0);
        }
        for change in changes {
            let path = tree.path(change.path());
            print(&format!("would write {} to {} (now {})\n", change.to, path.escaped(), change.from))?;
        }
        for (path, text) in &files {
            let indented: String = text.lines().map(|line| format!("  {line}\n")).collect();
            print(&format!("would write {}:\n{indented}", tree.path(path).escaped()))?;
        }
        Ok(0)
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
            lines.push("the files for every boot say so already".into());
        }
        lines.extend(files.iter().map(|(path, _)| format!("for every boot: {}", tree.path(path).escaped())));
        if !args.json {
            for line in &lines {
                // Commentary: the result is on stdout.
                say(line);
            }
        }
        for path in pools::overridden(tree, changes) {
            say(&format!("{} is read later and sets the same: change it there", path.escaped()));
        }
        let needs_systemd = files.iter().any(|(path, _)| *path == pool::persist::TMPFILES);
        if needs_systemd && !pools::has_systemd(tree) {
            say("no systemd runs here, and only systemd-tmpfiles reads /etc/tmpfiles.d: \
                 hugepagesz= and hugepages= on the kernel's command line do without");
        }
    }
}

/// A change, and what came of it, for machines.
fn described(change: &Change, got: Option<u64>) -> Value {
    json!({ "page_size": change.page_size, "node": change.node, "kind": change.kind,
        "path": change.path(), "from": change.from, "asked": change.to, "got": got })
}

/// "2 MB pages: 64 asked for, 64 got (before: 0)"
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
        "{lack} pages of {size} too few: memory is full or fragmented; \
         stop what uses it, or set them at boot (--persist), when all is free"
    )
}

impl NeedArgs {
    fn run(&self, args: &PoolArgs, tree: &Tree) -> Result<i32, Failure> {
        let policy = self.policy.policy().map_err(Failure::from)?;
        if !matches!(self.policy.backing, BackingChoice::Auto | BackingChoice::Hugetlb) {
            return Err(Failure::new("--backing: only hugetlb takes pages of a pool"));
        }
        // Where the program lies when all of it comes from the pool.
        let from_pool = Policy { backings: vec![Backing::Hugetlb], ..policy.clone() };
        let wanted = Wanted { policy: &from_pool, huge: thp_page() };
        let mut needs = Vec::new();
        for program in &self.programs {
            let path = path_of(program)?;
            let unstarted = of_file(&path, Some(wanted)).map_err(|e| Failure {
                status: if e.is_not_found() { 127 } else { FAILED },
                message: e.to_string(),
            })?;
            for missing in &unstarted.missing {
                let path = path.escaped();
                say(&format!("{path}: the loader would not find {missing}; see LD_LIBRARY_PATH"));
            }
            needs.push(pool::need(path.as_os_str(), &unstarted.snapshot, &policy));
        }
        let pools = pools::read(tree);
        if args.json {
            print_json(&self.as_json(&needs, &pools))?;
        } else {
            print(&text::needs(&needs, &pools))?;
        }
        Ok(if pool::commands(&pools, &pool::sum(&needs)).is_empty() { 0 } else { SHORT })
    }

    fn as_json(&self, needs: &[pool::Need], pools: &[SizePool]) -> Value {
        let all = pool::sum(needs);
        json!({ "version": pool::VERSION, "programs": needs, "pages": all,
            "commands": pool::commands(pools, &all) })
    }
}

fn path_of(program: &OsString) -> Result<PathBuf, Failure> {
    if program.as_bytes().contains(&b'/') {
        return Ok(Path::new(program).to_path_buf());
    }
    resolve(program).map_err(Failure::from)
}
