// SPDX-License-Identifier: Apache-2.0
//! The frame of every page: one self-contained document, light or dark as the reader prefers, readable
//! without scripts.
//!
//! Colours are CSS variables, chosen so that colour-blind readers can distinguish them on both
//! backgrounds. A page uses no others:
//!
//! | variable | for |
//! |---|---|
//! | `--bg`, `--panel`, `--fg`, `--muted`, `--line` | paper, raised paper, ink, faint ink, rules and grids |
//! | `--accent` | links, the most important thing on a page |
//! | `--bare`, `--lifted` | the two sides of a comparison |
//! | `--good`, `--bad` | what helps and what hurts |
//! | `--thp`, `--hugetlb`, `--pagecache`, `--shared` | huge pages by backing |
//! | `--hot` | code in use |
//! | `--could`, `--lack`, `--edge`, `--left` | not huge: can be, something is lacking, cannot be or not asked for; the rest |

use hugelift_core::printable;
use serde::Serialize;
use std::fmt::Write as _;

/// Returns one HTML document. `title` is text, and also the heading; `body` is the HTML under it; `css`
/// and `script` may be empty, and must be constants of the program (see [`json`] for data).
///
/// Its content security policy lets it load nothing, and run no script but this one.
pub fn page(title: &str, body: &str, css: &str, script: &str) -> String {
    let title = escape(title);
    let scripts = if script.is_empty() { "" } else { " script-src 'unsafe-inline';" };
    let script = if script.is_empty() { String::new() } else { format!("<script>\n{script}\n</script>\n") };
    format!(
        "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';{scripts} \
         base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light dark\">
<meta name=\"referrer\" content=\"no-referrer\">
<title>{title}</title>
<style>
{STYLE}{css}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
<footer>hugelift {version}</footer>
{script}</body>
</html>
",
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// Escapes text from outside as HTML text or as the value of a quoted attribute. Characters that a
/// document must not hold become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if is_replaced(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Whether [`escape`] replaces a character: a control character, or one that changes the direction of the text around it.
pub fn is_replaced(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || c.is_control() && !matches!(c, '\n' | '\t')
}

/// Returns the data of a page as an element that scripts and other programs can read:
/// `JSON.parse(document.getElementById(id).textContent)`.
///
/// # Errors
/// Those of [`printable::json`].
pub fn json<T: Serialize>(id: &str, data: &T) -> serde_json::Result<String> {
    // In JSON these occur only in strings. Escaped, no string can end the element.
    let text = printable::json(data)?.replace('<', "\\u003c").replace('>', "\\u003e");
    Ok(format!("<script type=\"application/json\" id=\"{}\">{text}</script>\n", escape(id)))
}

/// Returns a table. `columns` holds the titles and whether a column has numbers, which are aligned to the
/// right; the cells of `rows` are HTML.
pub fn table(caption: &str, columns: &[(&str, bool)], rows: &[Vec<String>]) -> String {
    let class = |numbers: bool| if numbers { " class=\"n\"" } else { "" };
    let caption = escape(caption);
    // The caption is not in the table, so that it stays in the window where the table scrolls.
    let mut out = format!(
        "<p class=\"caption\" aria-hidden=\"true\">{caption}</p>\n<div class=\"scroll\"><table aria-label=\"{caption}\">\n\
         <thead><tr>"
    );
    // Writing to a String cannot fail, here and below.
    for (title, numbers) in columns {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(*numbers), escape(title));
    }
    out += "</tr></thead>\n<tbody>\n";
    for row in rows {
        out += "<tr>";
        for (cell, (_, numbers)) in row.iter().zip(columns) {
            let _ = write!(out, "<td{}>{cell}</td>", class(*numbers));
        }
        out += "</tr>\n";
    }
    out + "</tbody>\n</table></div>\n"
}

const STYLE: &str = "\
:root {
  color-scheme: light dark;
  --bg: #fbfbf9; --panel: #ffffff; --fg: #1b1d21; --muted: #5d636e; --line: #d9dbd6;
  --accent: #0a5fb4; --bare: #8a6d00; --lifted: #0a5fb4; --good: #0b7a4b; --bad: #b3261e;
  --thp: #0072b2; --hugetlb: #00875f; --pagecache: #7a4fb5; --shared: #00838f;
  --hot: #c62828; --could: #e69f00; --lack: #d55e00; --edge: #b9bdc4; --left: #dcded9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #14161a; --panel: #1c1f25; --fg: #e8e9ea; --muted: #9ba2ad; --line: #353a43;
    --accent: #6cb2f5; --bare: #e5b73b; --lifted: #6cb2f5; --good: #4cc38a; --bad: #ff7b72;
    --thp: #4da3e0; --hugetlb: #2fb98b; --pagecache: #a98be0; --shared: #3fbccb;
    --hot: #ff8a80; --could: #f0b429; --lack: #f07f3c; --edge: #5a606b; --left: #363b44;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', sans-serif;
}
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 1rem; }
footer { max-width: 76rem; margin: 0 auto; padding: 0 1.25rem 2rem; color: var(--muted); font-size: 0.8rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 0.75rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.25rem 0 0.35rem; overflow-wrap: anywhere; }
p { margin: 0.4rem 0; max-width: 48rem; }
p, li, figcaption, summary { overflow-wrap: anywhere; }
a { color: var(--accent); }
code, .mono { font-family: ui-monospace, 'DejaVu Sans Mono', 'Liberation Mono', monospace; font-size: 0.88em; }
.muted { color: var(--muted); }
.panel { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 1rem 1.1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; }
.caption { color: var(--muted); font-size: 0.85rem; margin: 0.75rem 0 0; max-width: none; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.9rem 0.3rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; font-size: 0.85rem; color: var(--muted); white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
svg { display: block; max-width: 100%; height: auto; }
.charts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.25rem 2rem; align-items: start;
}
svg.chart { width: 100%; max-width: 38rem; }
.keys { list-style: none; display: flex; flex-wrap: wrap; gap: 0.1rem 1.2rem; margin: 0.35rem 0 0; padding: 0; font-size: 0.9rem; }
.keys li { display: flex; gap: 0.45rem; align-items: center; min-width: 0; overflow-wrap: anywhere; }
.keys span { min-width: 0; }
.sign { flex: none; }
svg text { fill: var(--fg); font: 12px system-ui, 'Noto Sans', 'DejaVu Sans', sans-serif; }
svg .axis line, svg .axis path { stroke: var(--muted); stroke-width: 1; fill: none; }
svg .axis text { fill: var(--muted); font-size: 11px; font-variant-numeric: tabular-nums; }
svg .axis .name { fill: var(--fg); font-size: 12px; }
svg .grid line { stroke: var(--line); stroke-width: 1; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
@media (max-width: 40rem) {
  main { padding: 1rem 0.75rem; }
  footer { padding: 0 0.75rem 1.5rem; }
  th, td { padding-right: 0.6rem; }
}
@media print { body { background: none; } .scroll { overflow: visible; } }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_from_outside_becomes_markup() {
        let nasty = "</title><script>alert(1)</script>\"' & \0\u{1b}[0m\u{202e}";
        assert_eq!(
            escape(nasty),
            "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39; &amp; \u{fffd}\u{fffd}[0m\u{fffd}"
        );
        let page = page(nasty, &json("data", &[nasty]).unwrap(), "", "");
        assert!(!page.contains("<script>"), "{page}");
        assert_eq!(page.matches("</script>").count(), 1, "{page}");
        let table = table("<i>", &[("<b>", true)], &[vec!["cell".into()]]);
        assert!(table.contains("&lt;i&gt;") && table.contains("&lt;b&gt;"), "{table}");
    }

    #[test]
    fn json_is_still_what_it_was() {
        let element = json("data", &["</script><!-- \u{2028} &amp;"]).unwrap();
        let text = element.split_once('>').unwrap().1.rsplit_once("</script>").unwrap().0;
        let back: Vec<String> = serde_json::from_str(text).unwrap();
        assert_eq!(back, ["</script><!-- \u{2028} &amp;"]);
    }

    #[test]
    fn the_policy_allows_a_script_only_where_there_is_one() {
        assert!(!page("t", "", "", "").contains("script-src"));
        let with = page("t", "", "", "let a = 1;");
        assert!(with.contains("default-src 'none'") && with.contains("script-src 'unsafe-inline'"));
        assert!(with.contains("<script>\nlet a = 1;\n</script>"));
    }
}
