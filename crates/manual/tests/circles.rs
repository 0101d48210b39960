// SPDX-License-Identifier: Apache-2.0
//! No files of a crate use each other in a circle: each can be read after those that it uses, and before those that use it.
//!
//! A file uses another one if it names something of it, in a `use` or in the code. A folder's `mod.rs` only lists the files
//! of the folder and orders their work, so a file that takes something from its own `mod.rs` makes a circle, too. Tests do not
//! count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, Meta, UseTree, VisRestricted};

/// The path of a module in its crate.
type Module = Vec<String>;

/// Collects what a file names: paths that begin with `crate`, `super`, `self` or a module of the file.
#[derive(Default)]
struct Named {
    paths: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(is_for_tests) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !item.attrs.iter().any(is_for_tests) {
            self.add(&mut Vec::new(), &item.tree);
        }
    }

    /// Who may use an item is no use.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

impl Named {
    fn add(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add(before, &path.tree);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add(before, tree)),
            UseTree::Name(name) => self.paths.push([before.clone(), vec![name.ident.to_string()]].concat()),
            UseTree::Rename(name) => self.paths.push([before.clone(), vec![name.ident.to_string()]].concat()),
            UseTree::Glob(_) => self.paths.push(before.clone()),
        }
    }
}

fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string() == "test")
}

/// Finds the source files of a folder, by the modules that they are.
fn files(folder: &Path, module: &Module, found: &mut BTreeMap<Module, syn::File>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("UTF-8").to_string();
        let below = [module.clone(), vec![name.clone()]].concat();
        if path.is_dir() {
            files(&path, &below, found);
        } else if path.extension().is_some_and(|end| end == "rs") && name != "tests" {
            let text = fs::read_to_string(&path).expect("a source");
            let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let is_folder = ["mod", "lib", "main"].contains(&name.as_str());
            found.insert(if is_folder { module.clone() } else { below }, file);
        }
    }
}

/// Returns the module that holds what `path` names in `module`, if it is one of this crate's.
fn target(path: &[String], module: &Module, known: &BTreeMap<Module, syn::File>) -> Option<Module> {
    let ups = path.iter().take_while(|word| *word == "super").count();
    let full = match path.first().map(String::as_str)? {
        "crate" => path[1..].to_vec(),
        "self" => [module, &path[1..]].concat(),
        "super" => [&module[..module.len().checked_sub(ups)?], &path[ups..]].concat(),
        child if known.contains_key(&[module.clone(), vec![child.to_string()]].concat()) => {
            [module, path].concat()
        }
        _ => return None,
    };
    (1..=full.len()).rev().map(|length| full[..length].to_vec()).find(|module| known.contains_key(module))
}

/// Returns all modules that can be reached from each.
fn reached(uses: &BTreeMap<Module, BTreeSet<Module>>) -> BTreeMap<Module, BTreeSet<Module>> {
    let from = |module: &Module| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![module.clone()]);
        while let Some(module) = open.pop() {
            open.extend(uses[&module].iter().filter(|next| seen.insert((*next).clone())).cloned());
        }
        seen
    };
    uses.keys().map(|module| (module.clone(), from(module))).collect()
}

/// Returns the circles of a crate: the names of the files of each.
fn circles(source: &Path) -> BTreeSet<String> {
    let mut known = BTreeMap::new();
    files(source, &Vec::new(), &mut known);
    let uses = known.iter().map(|(module, file)| {
        let mut named = Named::default();
        named.visit_file(file);
        let used = named.paths.iter().filter_map(|path| target(path, module, &known));
        (module.clone(), used.filter(|used| used != module).collect())
    });
    let reached = reached(&uses.collect());
    let circle = |module: &Module| {
        let all = reached[module].iter().filter(|other| reached[*other].contains(module));
        all.map(|module| module.join("::")).collect::<Vec<_>>().join(" ")
    };
    known.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates");
    let mut found = BTreeSet::new();
    for one in fs::read_dir(crates).expect("the crates") {
        let one = one.expect("a crate");
        let name = one.file_name().into_string().expect("UTF-8");
        found.extend(circles(&one.path().join("src")).into_iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(found.is_empty(), "these use each other: {found:#?}");
}
