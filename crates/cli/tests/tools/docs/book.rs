// SPDX-License-Identifier: Apache-2.0
//! The pages of the documentation: their links, headings and blocks.

use super::console::Block;
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// A file in Markdown.
pub struct Page {
    /// Below the top of the repository, or of the pages that a package has.
    pub path: PathBuf,
    pub links: Vec<Link>,
    /// Blocks between fences.
    pub blocks: Vec<Block>,
    /// Code within the text, each with its line.
    pub spans: Vec<(usize, String)>,
    /// What a link may name behind `#`.
    anchors: Vec<String>,
}

pub struct Link {
    pub line: usize,
    pub to: String,
}

impl Link {
    pub fn is_external(&self) -> bool {
        ["https://", "http://", "mailto:"].iter().any(|scheme| self.to.starts_with(scheme))
    }

    /// Finds what the link names, below `top`.
    ///
    /// # Errors
    /// It is not there.
    pub fn resolve(&self, top: &Path, page: &Page, pages: &[Page]) -> Result<(), String> {
        let path = joined(&page.path, &self.to);
        if !top.join(&path).exists() {
            return Err(format!("there is no {}", path.display()));
        }
        let Some((_, anchor)) = self.to.split_once('#') else { return Ok(()) };
        let to = pages.iter().find(|p| p.path == path).ok_or("an anchor in a file that is no page")?;
        if to.anchors.iter().any(|a| a == anchor) {
            return Ok(());
        }
        Err(format!("{} has no heading of that name, but {}", path.display(), to.anchors.join(", ")))
    }
}

impl Page {
    pub fn is_in_book(&self) -> bool {
        self.path.starts_with("docs")
    }

    fn read(top: &Path, path: PathBuf) -> Page {
        let text = std::fs::read_to_string(top.join(&path)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let line_of = |offset: usize| text[..offset].lines().count().max(1);
        let (mut links, mut blocks, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        let mut anchors = Anchors::default();
        let (mut heading, mut block): (Option<String>, Option<Block>) = (None, None);
        for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                    links.push(Link { line: line_of(range.start), to: dest_url.into_string() });
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => anchors.add(&heading.take().unwrap_or_default()),
                Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(info))) => {
                    block = Some(Block {
                        line: line_of(range.start) + 1,
                        info: info.into_string(),
                        text: String::new(),
                    });
                }
                Event::End(TagEnd::CodeBlock) => blocks.extend(block.take()),
                Event::Text(text) | Event::Code(text) if heading.is_some() => {
                    heading.get_or_insert_default().push_str(&text);
                }
                Event::Code(text) => spans.push((line_of(range.start), text.into_string())),
                Event::Text(text) => {
                    if let Some(block) = &mut block {
                        block.text.push_str(&text);
                    }
                }
                _ => {}
            }
        }
        Page { path, links, blocks, spans, anchors: anchors.all }
    }
}

/// The anchors of a page, which GitHub and mdBook make in the same way.
#[derive(Default)]
struct Anchors {
    all: Vec<String>,
    seen: BTreeMap<String, usize>,
}

impl Anchors {
    fn add(&mut self, heading: &str) {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let name: String =
            kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let count = self.seen.entry(name.clone()).or_default();
        self.all.push(if *count == 0 { name } else { format!("{name}-{count}") });
        *count += 1;
    }
}

/// Returns the path to which a link in the file `from` leads.
pub fn joined(from: &Path, to: &str) -> PathBuf {
    let to = to.split('#').next().unwrap_or_default();
    if to.is_empty() {
        return from.to_path_buf();
    }
    let mut path = from.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(to).components() {
        match part {
            Component::ParentDir if path.pop() => {}
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// Returns all pages that users and contributors read.
pub fn pages(top: &Path) -> Vec<Page> {
    let mut paths: Vec<PathBuf> = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "examples/README.md",
    ]
    .map(PathBuf::from)
    .into();
    below(top, Path::new("docs"), &mut paths);
    paths.sort();
    paths.into_iter().map(|path| Page::read(top, path)).collect()
}

fn below(top: &Path, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(top.join(folder)).expect("a folder") {
        let path = folder.join(entry.expect("an entry").file_name());
        if top.join(&path).is_dir() {
            below(top, &path, found);
        } else if path.extension() == Some(OsStr::new("md")) {
            found.push(path);
        }
    }
}
