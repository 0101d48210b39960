// SPDX-License-Identifier: Apache-2.0
//! Checks the geometry of pictures, without a browser: no two texts overlap, and nothing lies outside. The width of
//! texts is that of [`label::width`]; tests in a browser check it against real fonts.

use crate::html::label;

/// A rectangle: left, top, right, bottom.
#[derive(Clone, Copy, Debug)]
pub struct Box([f64; 4]);

impl Box {
    fn meets(&self, other: &Box) -> bool {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        a + 0.2 < g && e + 0.2 < c && b + 0.2 < h && f + 0.2 < d
    }

    fn is_inside(&self, width: f64, height: f64) -> bool {
        let [left, top, right, bottom] = self.0;
        // Coordinates are rounded to a tenth.
        left > -0.6 && top > -0.6 && right < width + 0.6 && bottom < height + 0.6
    }
}

/// An element of a picture.
pub struct Element<'a> {
    /// As in `rect`.
    pub name: &'a str,
    /// What stands between its name and `>`.
    attributes: &'a str,
    /// The text that follows.
    pub text: String,
    /// The class of the group that it is in.
    group: &'a str,
}

impl<'a> Element<'a> {
    /// Returns an attribute.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let start = self.attributes.find(&format!(" {name}=\""))? + name.len() + 3;
        self.attributes[start..].split('"').next()
    }

    /// Returns an attribute that is a number.
    pub fn number(&self, name: &str) -> f64 {
        let text = self.get(name).unwrap_or("0");
        let number: f64 = text.parse().unwrap_or_else(|_| panic!("{name}: {text}"));
        assert!(number.is_finite(), "{name}: {text}");
        number
    }

    /// Returns the font size of a text.
    fn size(&self) -> f64 {
        match (self.get("class").unwrap_or_default(), self.group) {
            ("name" | "side", _) => label::NORMAL,
            ("part" | "at", _) => 10.0,
            (class, _) if !class.is_empty() => label::SMALL,
            (_, "axis") => label::SMALL,
            _ => label::NORMAL,
        }
    }

    /// Returns what it covers; none for what is not drawn.
    fn bounds(&self) -> Option<Box> {
        let n = |name| self.number(name);
        Some(Box(match self.name {
            "text" => {
                let size = self.size();
                let width = match self.get("class") {
                    // Letters of one width.
                    Some("at") => self.text.chars().count() as f64 * size * 0.602,
                    _ => label::width(&self.text, size),
                };
                let left = match self.get("text-anchor") {
                    Some("end") => n("x") - width,
                    Some("middle") => n("x") - width / 2.0,
                    _ => n("x"),
                };
                [left, n("y") - size * 0.8, left + width, n("y") + size * 0.25]
            }
            "circle" => [n("cx") - n("r"), n("cy") - n("r"), n("cx") + n("r"), n("cy") + n("r")],
            "rect" => {
                assert!(n("width") >= 0.0 && n("height") >= 0.0, "{}", self.attributes);
                [n("x"), n("y"), n("x") + n("width"), n("y") + n("height")]
            }
            "line" => {
                [n("x1").min(n("x2")), n("y1").min(n("y2")), n("x1").max(n("x2")), n("y1").max(n("y2"))]
            }
            "path" => path(self.get("d").expect("a path has d")),
            _ => return None,
        }))
    }
}

/// Returns the bounds of a path with the commands that the pictures use.
fn path(d: &str) -> [f64; 4] {
    let spaced: String =
        d.chars().flat_map(|c| if c.is_ascii_alphabetic() { vec![' ', c, ' '] } else { vec![c] }).collect();
    let mut words = spaced.split_whitespace().peekable();
    let (mut x, mut y, mut command) = (0.0, 0.0, "M");
    let mut all = [f64::INFINITY, f64::INFINITY, f64::NEG_INFINITY, f64::NEG_INFINITY];
    while let Some(word) = words.peek() {
        if word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            command = words.next().expect("peeked");
            continue;
        }
        let mut next = || words.next().expect("a number").parse::<f64>().expect("a number");
        match command {
            "M" | "L" => (x, y) = (next(), next()),
            "l" => (x, y) = (x + next(), y + next()),
            "H" => x = next(),
            "V" => y = next(),
            "h" => x += next(),
            "v" => y += next(),
            "a" => {
                let _ = [next(), next(), next(), next(), next()];
                (x, y) = (x + next(), y + next());
            }
            other => panic!("the command {other} of a path: {d}"),
        }
        all = [all[0].min(x), all[1].min(y), all[2].max(x), all[3].max(y)];
    }
    all
}

/// Returns the pictures of a page, each with its width, its height and its elements. Signs of legends are not
/// pictures.
pub fn pictures(html: &str) -> Vec<(f64, f64, Vec<Element<'_>>)> {
    let mut all = Vec::new();
    for svg in html.split("<svg ").skip(1) {
        let (svg, _) = svg.split_once("</svg>").expect("a picture ends");
        let (head, content) = svg.split_once('>').expect("a tag ends");
        if !head.contains("role=\"img\"") || head.contains("preserveAspectRatio") {
            continue;
        }
        let view = head.split("viewBox=\"0 0 ").nth(1).and_then(|v| v.split('"').next()).expect("a viewBox");
        let (width, height) = view.split_once(' ').expect("two numbers");
        all.push((width.parse().expect("a width"), height.parse().expect("a height"), elements(content)));
    }
    all
}

fn elements(content: &str) -> Vec<Element<'_>> {
    let mut group = "";
    let mut all = Vec::new();
    for piece in content.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        let name = tag.split([' ', '/']).next().unwrap_or_default();
        let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
        let text = text.replace("&#39;", "'").replace("&amp;", "&");
        let element = Element { name, attributes: tag, text, group };
        match tag {
            "/g" => group = "",
            _ if name == "g" => group = element.get("class").unwrap_or_default(),
            _ => all.push(element),
        }
    }
    all
}

/// Checks all pictures of a page.
pub fn check(html: &str) {
    for (width, height, elements) in pictures(html) {
        let bounds: Vec<(&Element, Box)> =
            elements.iter().filter_map(|element| Some((element, element.bounds()?))).collect();
        for (element, bounds) in &bounds {
            let show = || format!("<{}> {:?}: {bounds:?}", element.attributes, element.text);
            assert!(bounds.0.iter().all(|v| v.is_finite()), "{}", show());
            assert!(bounds.is_inside(width, height), "outside of {width} x {height}: {}", show());
        }
        let texts: Vec<_> = bounds.iter().filter(|(e, _)| e.name == "text" && !e.text.is_empty()).collect();
        for (i, (one, a)) in texts.iter().enumerate() {
            for (other, b) in &texts[i + 1..] {
                assert!(!a.meets(b), "{:?} {a:?} covers {:?} {b:?}", one.text, other.text);
            }
        }
    }
}

/// Returns the value and the height of each label of the vertical axis of a picture, upwards.
pub fn vertical_ticks(elements: &[Element]) -> Vec<(f64, f64)> {
    let ticks = elements.iter().filter(|e| e.name == "text" && e.group == "axis" && e.get("class").is_none());
    let ticks = ticks.filter(|e| e.get("text-anchor") == Some("end") && e.number("y") > 14.0);
    ticks.map(|e| (e.text.parse().expect("a number"), e.number("y"))).collect()
}

#[test]
fn bad_pictures_are_found_out() {
    let picture = |content: &str| {
        let html = format!("<svg viewBox=\"0 0 100 50\" role=\"img\" aria-label=\"x\">{content}</svg>");
        std::panic::catch_unwind(|| check(&html)).is_err()
    };
    assert!(!picture("<text x=\"10\" y=\"20\">one</text><text x=\"10\" y=\"40\">two</text>"));
    for bad in [
        "<text x=\"10\" y=\"20\">one</text><text x=\"15\" y=\"22\">two</text>",
        "<text x=\"10\" y=\"20\">much longer than the picture</text>",
        "<text x=\"10\" y=\"20\" text-anchor=\"end\">to the left</text>",
        "<circle cx=\"99\" cy=\"20\" r=\"4\"/>",
        "<rect x=\"0\" y=\"40\" width=\"5\" height=\"20\"/>",
        "<path d=\"M10 10h95v5\"/>",
        "<line x1=\"0\" y1=\"NaN\" x2=\"0\" y2=\"1\"/>",
    ] {
        assert!(picture(bad), "{bad}");
    }
}
