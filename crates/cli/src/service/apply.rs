// SPDX-License-Identifier: Apache-2.0
//! `hugelift service apply`: changes of the machine that the service does not make by itself, as they need a person's decision:
//! copies in the place of files, settings of the kernel, pools.

use crate::commands_shown::run_shown;
use crate::failure::{Exit, Failure};
use crate::output;
use clap::Args;
use hugelift_core::addr::human_bytes;
use hugelift_core::printable::{printable, quoted};
use hugelift_core::service::offer::Offer;
use hugelift_doctor::pool_wanted::pool_wanted;
use hugelift_doctor::{Finding, diagnose, read};
use hugelift_linux::io::console;
use hugelift_linux::machine::pools;
use hugelift_linux::machine::tree::Tree;
use hugelift_service::answers::ask::ask;
use hugelift_service::answers::status::{self, Status};
use hugelift_service::offers::of_files;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The version of the JSON that `--json` prints.
const VERSION: u32 = 1;
/// So many processes at most are asked which pools they want.
const ASKED: usize = 32;
/// Settings of the kernel without which a policy has no effect, or less.
const SETTINGS: [&str; 4] = ["thp-never", "thp-size-never", "shmem-off", "shmem-unaligned"];
/// The folder whose files systemd-tmpfiles(8) carries out at boot.
const AT_BOOT: &str = "/etc/tmpfiles.d";
const UNTIL_BOOT: &str = "set it at every boot: there is no /etc/tmpfiles.d here";

/// List what the service could have on huge pages if you agreed, and do what is named
///
/// These changes are not in a policy: a copy takes a file's place, the kernel is set otherwise, memory is reserved as a pool.
/// Without a name nothing is changed.
#[derive(Args, Debug)]
pub struct ApplyArgs {
    /// The names of offers that are to be carried out
    #[arg(value_name = "OFFER")]
    names: Vec<String>,

    /// Print JSON, version 1 of the schema
    #[arg(long, conflicts_with = "names")]
    json: bool,

    /// The daemon's socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Offers {
    version: u32,
    offers: Vec<Offer>,
}

/// Lists the offers, or carries out those that are named.
///
/// # Errors
/// No daemon answers, there is no offer of a name, or its command fails.
pub fn run(args: &ApplyArgs) -> Result<Exit, Failure> {
    let status = status::parse(&ask(args.socket.as_deref())?)?;
    let offers = offers(&status)?;
    if args.json {
        console::print(&output::json(&Offers { version: VERSION, offers })?)?;
    } else if args.names.is_empty() {
        console::print(&text(&offers))?;
    } else {
        // Before anything is changed.
        let wanted: Vec<&Offer> =
            args.names.iter().map(|name| named(&offers, name)).collect::<Result<_, _>>()?;
        wanted.into_iter().try_for_each(carry_out)?;
    }
    Ok(Exit::SUCCESS)
}

fn named<'a>(offers: &'a [Offer], name: &str) -> Result<&'a Offer, Failure> {
    let found = offers.iter().find(|offer| offer.name == name);
    found.ok_or_else(|| {
        let name = printable(name);
        format!("there is no offer '{name}'; hugelift service apply lists those that there are").into()
    })
}

fn carry_out(offer: &Offer) -> Result<(), Failure> {
    run_shown(&offer.command)?;
    console::print(&format!("done: {}\n", offer.command))?;
    for (what, words) in [("next", &offer.after), ("undo", &offer.undo)] {
        if let Some(words) = words {
            console::print(&format!("{what}: {words}\n"))?;
        }
    }
    Ok(())
}

/// Returns all offers: of files, of the kernel's settings, of pools.
fn offers(status: &Status) -> Result<Vec<Offer>, Failure> {
    let tree = Tree::default();
    let facts = read::facts(&tree, None, &std::env::temp_dir())?;
    let mut all = of_files(status);
    all.extend(diagnose(&facts).iter().filter_map(of_setting));
    all.extend(of_pools(status, &tree));
    Ok(all)
}

/// Returns the offer to set the kernel otherwise, now and at every boot.
fn of_setting(finding: &Finding) -> Option<Offer> {
    let now = finding.command.as_ref().filter(|_| SETTINGS.contains(&finding.key))?;
    let (value, path) = now.strip_prefix("echo ")?.split_once(" > ")?;
    let before = finding.read.iter().find(|reading| reading.source == path).map(|reading| reading.chosen());
    let kept = format!("{AT_BOOT}/hugelift-{}.conf", finding.key);
    let is_kept = Path::new(AT_BOOT).is_dir();
    // The file is first: if it cannot be written, nothing is changed, and if the setting cannot, the file that is new goes.
    let command = match is_kept {
        true => format!(
            "new=; [ -e {kept} ] || new=1; echo 'w {path} - - - - {value}' > {kept} && {now} || {{ [ -z \"$new\" ] || rm -f {kept}; exit 1; }}"
        ),
        false => now.into(),
    };
    let forget = if is_kept { format!("; rm -f {kept}") } else { String::new() };
    Some(Offer {
        name: finding.key.to_string(),
        what: finding.title.clone(),
        costs: format!("it holds for all programs of the machine: {}", finding.why),
        command,
        after: finding.advice.clone().or_else(|| (!is_kept).then(|| UNTIL_BOOT.into())),
        undo: before.map(|before| format!("echo {before} > {path}{forget}")),
    })
}

/// Returns the offers of pools for programs that the policy takes, which have asked for them.
fn of_pools(status: &Status, tree: &Tree) -> Vec<Offer> {
    let Some(pool) = pools::read(tree).into_iter().find(|pool| pool.default) else { return Vec::new() };
    let mut seen = BTreeSet::new();
    let taken = status.processes.iter().filter(|process| process.rule.is_some());
    let first = taken.filter(|process| seen.insert((process.program.clone(), process.unit.clone())));
    let wanted = first.take(ASKED).filter_map(|process| pool_wanted(process.pid));
    let mut all: Vec<Offer> = Vec::new();
    for wanted in wanted {
        let pages = wanted.bytes.div_ceil(pool.page_size);
        // It is a line of the list, whatever a program is called.
        let program = printable(&wanted.program).replace(['\n', '\t'], " ");
        let name = program.rsplit('/').next().unwrap_or_default();
        let name = format!("pool-{name}");
        // One of a name: who restarts the program asks again for the others.
        if all.iter().any(|offer| offer.name == name) {
            continue;
        }
        let size = human_bytes(pages.saturating_mul(pool.page_size));
        all.push(Offer {
            what: format!("{program} is set to take pages of a pool, and has none"),
            costs: format!("{size} of memory that nothing else can use any more"),
            command: format!("hugelift pool set --persist +{pages}"),
            after: Some(format!("restart {program}")),
            undo: Some(format!("hugelift pool set --persist -- -{pages}")),
            name,
        });
    }
    all
}

/// Returns the list for people.
fn text(offers: &[Offer]) -> String {
    if offers.is_empty() {
        return "nothing needs a decision: nothing can make the rest huge, or the policy does it already\n"
            .into();
    }
    let mut out = String::new();
    for offer in offers {
        let lines = [Some(("costs", &offer.costs)), Some(("run", &offer.command))];
        let rest =
            [offer.after.as_ref().map(|words| ("then", words)), offer.undo.as_ref().map(|w| ("undo", w))];
        out += &format!("{}\n    {}\n", offer.name, offer.what);
        for (what, words) in lines.into_iter().chain(rest).flatten() {
            out += &format!("    {what:<5} {words}\n");
        }
    }
    let example = quoted(offers[0].name.as_ref());
    out + &format!("to have one carried out: hugelift service apply {example}\n")
}
