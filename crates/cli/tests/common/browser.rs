// SPDX-License-Identifier: Apache-2.0
//! A page in a real browser: headless Chromium, driven by its own debugging protocol
//! (<https://chromedevtools.github.io/devtools-protocol/>) over a pair of pipes.

use super::run::{PATIENCE, end_group, wait};
use base64::Engine as _;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The colour scheme that the page sees as the reader's preference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    Light,
    Dark,
}

/// The windows in which every picture must be readable: their widths in pixels, and the colour scheme.
pub const VIEWS: [(u32, Scheme); 4] =
    [(420, Scheme::Light), (420, Scheme::Dark), (1600, Scheme::Light), (1600, Scheme::Dark)];

/// Returns the path of the browser, if there is one.
pub fn browser() -> Option<PathBuf> {
    ["chromium", "chromium-browser", "google-chrome", "chrome"].into_iter().find_map(super::find)
}

/// A page in a browser that was started for it. The browser ends when this is dropped.
pub struct Page {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<Value>,
    /// The session of the page; none for the browser itself.
    session: Option<String>,
    asked: u64,
    /// The errors and warnings of the page, and what it tried to load besides itself.
    problems: Vec<String>,
    loaded: bool,
    url: String,
    _profile: tempfile::TempDir,
}

impl Page {
    /// Opens the file in a window of 1280 by 900 pixels and waits until it is loaded.
    pub fn open(file: &Path, scheme: Scheme) -> Page {
        let mut page = Page::blank();
        page.prefer(scheme);
        page.visit(file);
        page
    }

    /// Opens a window of 1280 by 900 pixels, with nothing in it.
    pub fn blank() -> Page {
        let browser = browser().expect("a browser: the tests look for one first");
        let profile = tempfile::tempdir().expect("a directory for the profile");
        // Its pipes are the descriptors 3 and 4. Its stdout and stderr are discarded.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh"])
            .arg(browser)
            .args(nix::unistd::geteuid().is_root().then_some("--no-sandbox"))
            .args(["--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--no-default-browser-check", "--disable-breakpad", "--disable-sync"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-quic"])
            .args(["--disable-extensions", "--hide-scrollbars", "--window-size=1280,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let to = child.stdin.take();
        let mut stream = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (send, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            // Messages are JSON, ended by NUL.
            while stream.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let value = serde_json::from_slice(&message).unwrap_or(Value::Null);
                if send.send(value).is_err() {
                    break;
                }
                message.clear();
            }
        });
        let mut page = Page {
            child,
            to,
            from,
            session: None,
            asked: 0,
            problems: vec![],
            loaded: false,
            url: String::new(),
            _profile: profile,
        };
        let target = page.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attached =
            page.ask("Target.attachToTarget", json!({"targetId": target["targetId"], "flatten": true}));
        page.session = Some(attached["sessionId"].as_str().expect("a session").to_string());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.ask(&format!("{domain}.enable"), json!({}));
        }
        page
    }

    /// Opens another file in the same window, and forgets the problems of the one before.
    pub fn visit(&mut self, file: &Path) {
        self.url = format!("file://{}", file.canonicalize().expect("the page is there").display());
        self.problems.clear();
        self.loaded = false;
        let error = self.ask("Page.navigate", json!({"url": self.url}))["errorText"].clone();
        assert!(error.is_null(), "{}: {error}", self.url);
        let deadline = Instant::now() + PATIENCE;
        while !self.loaded {
            self.hear(deadline);
        }
    }

    /// Opens the file in a window of this width.
    pub fn open_at(file: &Path, view: (u32, Scheme)) -> Page {
        let mut page = Page::blank();
        page.view(file, view);
        page
    }

    /// Shows a file in a window of this width, and forgets the problems of the one before.
    pub fn view(&mut self, file: &Path, (width, scheme): (u32, Scheme)) {
        self.resize(width);
        self.prefer(scheme);
        self.visit(file);
    }

    /// Sets the colour scheme that the reader prefers.
    fn prefer(&mut self, scheme: Scheme) {
        let value = if scheme == Scheme::Dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Changes the width of the window, in pixels.
    pub fn resize(&mut self, width: u32) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
        assert_eq!(self.evaluate("innerWidth"), width);
    }

    /// Returns the text that a reader sees.
    pub fn text(&mut self) -> String {
        self.evaluate("document.body.innerText").as_str().expect("text").to_string()
    }

    /// Evaluates an expression in the page and returns its value.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let given = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let got = self.ask("Runtime.evaluate", given);
        assert!(got["exceptionDetails"].is_null(), "{expression}: {}", got["exceptionDetails"]);
        got["result"]["value"].clone()
    }

    /// Moves the mouse to the middle of the first element that the selector finds.
    pub fn point_at(&mut self, selector: &str) {
        let found = self.evaluate(&format!(
            "(() => {{ const e = document.querySelector({selector:?}); e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; }})()"
        ));
        self.ask("Input.dispatchMouseEvent", json!({"type": "mouseMoved", "x": found[0], "y": found[1]}));
    }

    /// Presses and releases a key by its name (`ArrowRight`, `Tab`).
    pub fn press(&mut self, key: &str) {
        let code = HashMap::from([
            ("Tab", 9),
            ("ArrowLeft", 37),
            ("ArrowUp", 38),
            ("ArrowRight", 39),
            ("ArrowDown", 40),
        ]);
        for kind in ["rawKeyDown", "keyUp"] {
            let given = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code[key]});
            self.ask("Input.dispatchKeyEvent", given);
        }
    }

    /// Returns the errors and warnings of the page so far, and what it tried to load.
    pub fn problems(&mut self) -> Vec<String> {
        // All messages that were sent before have arrived when this is answered.
        self.evaluate("new Promise(done => setTimeout(done, 100))");
        self.problems.clone()
    }

    /// Returns the pairs of texts that overlap, in pixels of the page.
    pub fn overlaps(&mut self) -> Vec<String> {
        let found = self.evaluate(OVERLAPS);
        found.as_array().expect("a list").iter().map(|v| v.as_str().unwrap_or("?").to_string()).collect()
    }

    /// Checks that all of the page can be read: no two texts overlap, nothing is wider than the window or lies outside
    /// of its picture, no text is cut, and none is too small. Tables may scroll in their place.
    pub fn check_layout(&mut self) {
        let width = self.evaluate("innerWidth");
        assert_eq!(self.overlaps(), [""; 0], "{width} pixels wide");
        for expression in [CLIPPED, OUTSIDE, TOO_SMALL] {
            assert_eq!(self.evaluate(expression), json!([]), "{width} pixels wide");
        }
    }

    /// Saves a picture of the page as `NAME-WIDTH-SCHEME.png` in the folder that HUGELIFT_TEST_PICTURES names, for
    /// whoever wants to look at it.
    pub fn save(&mut self, name: &str, (width, scheme): (u32, Scheme)) {
        if let Some(dir) = std::env::var_os("HUGELIFT_TEST_PICTURES") {
            let file = Path::new(&dir).join(format!("{name}-{width}-{scheme:?}.png"));
            std::fs::write(file, self.screenshot().png).expect("a folder for pictures");
        }
    }

    /// Checks the pictures that the page shows of a report of `hugelift lab`: all are there, with the
    /// names of their axes and curves, nothing overlaps, and nothing lies outside of its picture.
    pub fn check_plots(&mut self, report: &Value) {
        assert_eq!(self.problems(), [""; 0]);
        let plots = report["plots"].as_array().expect("plots");
        assert!(!plots.is_empty());
        assert_eq!(self.evaluate("document.querySelectorAll('svg.chart').length"), plots.len());
        let text = self.text();
        for plot in plots {
            let axes = ["x", "y"].map(|axis| &plot[axis]["name"]);
            let curves = plot["series"].as_array().expect("series").iter().map(|series| &series["name"]);
            let marks = plot["marks"].as_array().expect("marks").iter().map(|mark| &mark["name"]);
            for name in curves.chain(axes).chain(marks).chain([&plot["title"]]) {
                assert!(text.contains(name.as_str().expect("a name")), "{name}: {text}");
            }
        }
        self.check_layout();
    }

    /// Takes a picture of the whole page.
    pub fn screenshot(&mut self) -> Screenshot {
        let size =
            self.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]");
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let given = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let data = self.ask("Page.captureScreenshot", given)["data"].clone();
        let png =
            base64::engine::general_purpose::STANDARD.decode(data.as_str().expect("data")).expect("base64");
        Screenshot::new(png)
    }

    /// Sends a command and waits for its answer.
    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).expect("JSON");
        bytes.push(0);
        self.to.as_mut().expect("the pipe").write_all(&bytes).expect("the browser reads");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let heard = self.hear(deadline);
            if heard["id"] == id {
                assert!(heard["error"].is_null(), "{method}: {}", heard["error"]);
                return heard["result"].clone();
            }
        }
    }

    /// Receives the next message, and records it if it reports a problem.
    fn hear(&mut self, deadline: Instant) -> Value {
        let left = deadline.saturating_duration_since(Instant::now());
        let heard = self.from.recv_timeout(left).unwrap_or_else(|e| panic!("the browser is silent: {e}"));
        let what = &heard["params"];
        match heard["method"].as_str() {
            Some("Page.loadEventFired") => self.loaded = true,
            Some("Runtime.consoleAPICalled") => self.problems.push(format!("console: {}", what["args"])),
            Some("Runtime.exceptionThrown") => {
                self.problems.push(format!("exception: {}", what["exceptionDetails"]))
            }
            Some("Log.entryAdded") => self.problems.push(format!("log: {}", what["entry"])),
            Some("Network.requestWillBeSent") if what["request"]["url"] != self.url => {
                self.problems.push(format!("loads {}", what["request"]["url"]));
            }
            _ => {}
        }
        heard
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // The browser and all its processes end when its pipe ends.
        drop(self.to.take());
        let _ = wait(&mut self.child, Instant::now() + Duration::from_secs(5));
        end_group(&mut self.child);
    }
}

/// Pairs of visible texts of the page whose boxes share more than the space between lines.
const OVERLAPS: &str = "(() => {
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.data.trim() || node.parentElement.closest('title, script, style')) continue;
    if (!node.parentElement.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width > 0 && box.height > 0) texts.push({ text: node.data.trim(), box, node });
    }
  }
  const found = [];
  for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
    const [a, b] = [texts[i], texts[j]];
    if (a.node === b.node) continue;
    const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
    const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
    // Lines of one paragraph may share the space between them.
    if (across > 1 && down > 3) found.push(`'${a.text}' and '${b.text}'`);
  }
  return found;
})()";

/// An expression that lists what is drawn or written outside of its picture.
const OUTSIDE: &str = "[...document.querySelectorAll('svg[role=img]')].flatMap(s => {
  const r = s.getBoundingClientRect();
  return [...s.querySelectorAll('circle, line, path, polyline, rect, text')].filter(e => {
    const b = e.getBoundingClientRect();
    return b.left < r.left - 1 || b.right > r.right + 1 || b.top < r.top - 1 || b.bottom > r.bottom + 1;
  }).map(e => e.outerHTML.slice(0, 200));
})";

/// An expression that lists what is wider than its place or than the window, except in tables that scroll.
const CLIPPED: &str = "[document.documentElement, ...document.querySelectorAll('body *')].filter(e => {
  if (e.closest('script, style, svg') || !e.checkVisibility()) return false;
  const scrolls = e.closest('.scroll');
  if (scrolls) return e === scrolls && e.getBoundingClientRect().right > innerWidth;
  const inline = getComputedStyle(e).display === 'inline';
  return (!inline && e.scrollWidth > e.clientWidth + 1) || e.getBoundingClientRect().right > innerWidth + 0.5
    || e.getBoundingClientRect().left < -0.5;
}).concat([...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().right > innerWidth + 0.5))
  .map(e => `${e.scrollWidth} > ${e.clientWidth}: ` + e.outerHTML.slice(0, 200))";

/// An expression that lists the texts that are smaller than 9 pixels.
const TOO_SMALL: &str = "[...document.querySelectorAll('main *')].filter(e => {
  if (![...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.data.trim()) || e.closest('title, script')
    || !e.checkVisibility()) return false;
  const scale = e instanceof SVGGraphicsElement ? e.getScreenCTM().a : 1;
  return parseFloat(getComputedStyle(e).fontSize) * scale < 9;
}).map(e => e.outerHTML.slice(0, 200))";

/// A picture of a page.
pub struct Screenshot {
    /// The PNG file as the browser made it.
    pub png: Vec<u8>,
    /// The number of pixels of each colour.
    colours: HashMap<[u8; 3], usize>,
    pixels: usize,
}

impl Screenshot {
    fn new(png: Vec<u8>) -> Screenshot {
        let mut reader = png::Decoder::new(std::io::Cursor::new(&png)).read_info().expect("a PNG");
        let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
        let frame = reader.next_frame(&mut bytes).expect("a PNG with a picture");
        assert_eq!(frame.bit_depth, png::BitDepth::Eight);
        let mut colours: HashMap<[u8; 3], usize> = HashMap::new();
        let samples = frame.color_type.samples();
        assert!(samples >= 3, "{:?}", frame.color_type);
        for pixel in bytes[..frame.buffer_size()].chunks_exact(samples) {
            *colours.entry([pixel[0], pixel[1], pixel[2]]).or_default() += 1;
        }
        let pixels = colours.values().sum();
        Screenshot { png, colours, pixels }
    }

    /// Returns the number of colours that occur.
    pub fn colours(&self) -> usize {
        self.colours.len()
    }

    /// Returns the colour that occurs most often.
    pub fn background(&self) -> [u8; 3] {
        *self.colours.iter().max_by_key(|(_, count)| **count).expect("a pixel").0
    }

    /// Returns the share of this colour among all pixels.
    pub fn share(&self, colour: [u8; 3]) -> f64 {
        *self.colours.get(&colour).unwrap_or(&0) as f64 / self.pixels as f64
    }
}
