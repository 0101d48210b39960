// SPDX-License-Identifier: Apache-2.0
//! Servers under full load that are lifted and restored meanwhile, all their processes: no client sees an
//! error. The tests print the longest answer and the longest stop of a thread.

use super::compared::{Batch, compared};
use super::servers::{MariaDb, Postgres, Redis, started};
use super::shared::children;
use super::*;
use crate::common::browser::browser;
use crate::common::build::must;
use crate::common::find;
use crate::common::guard::Pool;
use crate::common::run::until;
use crate::{need, need_root, skip};
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// How long each server works.
const LOAD: Duration = Duration::from_secs(3);
/// The longest time that a client waits for an answer: longer than any stop.
const ANSWER: Duration = Duration::from_secs(20);

/// What the lifts showed.
#[derive(Default, Debug)]
struct Rounds {
    /// How often all processes were lifted and restored.
    count: u32,
    /// The most code and constants on huge pages, in bytes, of all processes after a lift.
    huge: u64,
    /// The longest stop of a thread in microseconds.
    longest: u64,
    /// Messages about processes that were not changed.
    refused: Vec<String>,
}

impl Rounds {
    /// Changes all processes of the group, as `hugelift VERB --cgroup` does.
    fn change(&mut self, verb: &str, options: &[&str], group: &str) {
        let mut command = Command::new(HUGELIFT);
        command.arg(verb).args(options).args(["--json", "--cgroup", group]).env("HUGELIFT_STORE", NO_STORE);
        let out = command.output().expect("hugelift");
        if out.stdout.is_empty() {
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(said.contains("no process"), "{verb}: {said}");
            // The load has just ended.
            return;
        }
        let seen: Value = serde_json::from_slice(&out.stdout)
            .unwrap_or_else(|e| panic!("{verb}: {e}: {}", String::from_utf8_lossy(&out.stderr)));
        let rows = seen["processes"].as_array().expect("processes");
        let huge = |row: &Value| -> u64 {
            let of = |part: &str| row["report"]["totals"][part]["huge_bytes"].as_u64().unwrap_or_default();
            of("text") + of("rodata")
        };
        self.huge = self.huge.max(rows.iter().map(huge).sum());
        let stops = rows.iter().filter_map(|row| row["longest_stop_us"].as_u64());
        self.longest = self.longest.max(stops.max().unwrap_or_default());
        self.refused.extend(rows.iter().filter_map(|row| Some(row["error"].as_str()?.to_string())));
    }
}

/// Lifts and restores a server while `clients` work. Returns what they return. `least` are the bytes that must
/// have been huge meanwhile.
fn under<R: Send>(
    name: &str,
    load: &Load,
    backing: &str,
    least: u64,
    clients: impl FnOnce() -> R + Send,
) -> R {
    let began = Instant::now();
    let group = loop {
        match load.group.path_of(load.child.id()) {
            Some(group) => break group,
            None => assert!(began.elapsed() < PATIENCE, "{name} is not in its group"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    let is_over = AtomicBool::new(false);
    let (result, rounds) = std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(clients));
            is_over.store(true, Ordering::Release);
            result
        });
        let mut rounds = Rounds::default();
        while !is_over.load(Ordering::Acquire) {
            rounds.change("attach", &["--whole", "--backing", backing], &group);
            rounds.change("restore", &[], &group);
            rounds.count += 1;
        }
        (clients.join().expect("no panic"), rounds)
    });
    let Rounds { count, huge, longest, refused } = rounds;
    let refused: std::collections::BTreeSet<String> = refused.into_iter().collect();
    println!(
        "{name}: lifted and restored {count} times, {:.0} MB at most; longest stop of a thread {:.1} ms; \
         refused: {refused:?}",
        megabytes(huge),
        longest as f64 / 1e3
    );
    assert!(count >= 1 && huge >= least, "{name}: {count} rounds, {huge} bytes huge, refused: {refused:?}");
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The requests of some clients, one after the other, each in a connection of its own. Panics if one is not
/// answered by `answer`.
fn ask(name: &str, port: u16, answer: &str) {
    let until = Instant::now() + LOAD;
    let one = || -> Result<(), String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|e| format!("connect: {e}"))?;
        stream.set_read_timeout(Some(ANSWER)).map_err(|e| e.to_string())?;
        let request = b"GET /index.php HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).map_err(|e| format!("write: {e}"))?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).map_err(|e| format!("read: {e}"))?;
        let _ = stream.shutdown(Shutdown::Both);
        let is_right = reply.starts_with("HTTP/1.1 200") && reply.trim_end().contains(answer);
        if is_right { Ok(()) } else { Err(format!("answer: {reply:?}")) }
    };
    let client = || {
        let (mut count, mut longest) = (0u32, Duration::ZERO);
        while Instant::now() < until {
            let began = Instant::now();
            if let Err(why) = one() {
                panic!("{name}: request {count}: {why}");
            }
            longest = longest.max(began.elapsed());
            count += 1;
        }
        (count, longest)
    };
    let all: Vec<(u32, Duration)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|one| one.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    let count: u32 = all.iter().map(|one| one.0).sum();
    let longest = all.iter().map(|one| one.1).max().unwrap_or_default();
    println!("{name}: {count} requests, no error; longest answer {:.1} ms", longest.as_secs_f64() * 1e3);
    assert!(count > 0);
}

/// Starts a server that prints its port.
fn web(words: &[&str]) -> Result<(Load, u16), String> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let mut load = Load::start(&words, false, &[], &[])?;
    let mut line = String::new();
    BufReader::new(load.child.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
    let port = line.trim().parse().map_err(|e| format!("{words:?} prints {line:?}: {e}"))?;
    Ok((load, port))
}

/// Tests a server that prints its port and answers with `answer`.
fn web_under_load(name: &str, words: &[&str], least: u64, answer: &str) {
    let (load, port) = match web(words) {
        Ok(started) => started,
        Err(why) => skip!("{why}"),
    };
    under(name, &load, "thp", least, || ask(name, port, answer));
}

#[test]
fn node() {
    need_root!();
    need!("node");
    const SERVER: &str = "const server = require('http').createServer((ask, reply) => { \
        const m = new Map(); for (let i = 0; i < 500; i++) m.set('k' + i, i); \
        let s = 0; for (const v of m.values()) s += v; reply.end('sum ' + s); }); \
        server.listen(0, '127.0.0.1', () => console.log(server.address().port))";
    web_under_load("node", &["node", "-e", SERVER], 16 << 20, "sum 124750");
}

#[test]
fn java() {
    need_root!();
    need!("java", "javac");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let source = "import com.sun.net.httpserver.*; import java.net.*; import java.util.*;\n\
        class Serve { public static void main(String[] a) throws Exception {\n\
        HttpServer s = HttpServer.create(new InetSocketAddress(\"127.0.0.1\", 0), 0);\n\
        s.createContext(\"/\", ask -> { Map<Integer,Integer> m = new HashMap<>(); long n = 0;\n\
          for (int i = 0; i < 500; i++) m.put(i, i); for (int v : m.values()) n += v;\n\
          byte[] b = (\"sum \" + n).getBytes(); ask.sendResponseHeaders(200, b.length);\n\
          ask.getResponseBody().write(b); ask.close(); });\n\
        s.setExecutor(java.util.concurrent.Executors.newFixedThreadPool(4)); s.start();\n\
        System.out.println(s.getAddress().getPort()); } }\n";
    std::fs::write(dir.path().join("Serve.java"), source).expect("write");
    must(Command::new("javac").current_dir(&dir).arg("Serve.java"));
    let path = dir.path().to_str().expect("UTF-8");
    web_under_load("java", &["java", "-Xmx256m", "-cp", path, "Serve"], 8 << 20, "sum 124750");
}

#[test]
fn go() {
    need_root!();
    need!("go");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let source = "package main\nimport (\"fmt\"; \"net\"; \"net/http\")\nfunc main() {\n\
        l, err := net.Listen(\"tcp\", \"127.0.0.1:0\"); if err != nil { panic(err) }\n\
        fmt.Println(l.Addr().(*net.TCPAddr).Port)\n\
        panic(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {\n\
        m := map[int]int{}; for i := 0; i < 500; i++ { m[i] = i }\n\
        s := 0; for _, v := range m { s += v }; fmt.Fprint(w, \"sum \", s) }))) }\n";
    std::fs::write(dir.path().join("main.go"), source).expect("write");
    let mut build = Command::new("go");
    build.args(["build", "-o", "serve", "main.go"]).current_dir(&dir).env("GOFLAGS", "");
    must(build.env("GOCACHE", dir.path().join("cache")).env("GOTOOLCHAIN", "local"));
    let program = dir.path().join("serve").display().to_string();
    web_under_load("Go", &[&program], 2 << 20, "sum 124750");
}

/// php's own server with three workers that it forks.
#[test]
fn php_with_workers() {
    need_root!();
    need!("php");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let page = "<?php $m = []; for ($i = 0; $i < 500; $i++) $m[\"k$i\"] = $i; echo 'sum ', array_sum($m);";
    std::fs::write(dir.path().join("index.php"), page).expect("write");
    // php prints no port that it has chosen itself.
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let server =
        format!("PHP_CLI_SERVER_WORKERS=3 exec php -d opcache.enable=0 -S 127.0.0.1:{free} -t \"$0\" 2>&1");
    let words = ["sh", "-c", &server, dir.path().to_str().expect("UTF-8")].map(OsString::from);
    let mut load = match Load::start(&words, false, &[], &[]) {
        Ok(load) => load,
        Err(why) => skip!("{why}"),
    };
    load.wait_for("php is ready", || TcpStream::connect(("127.0.0.1", free)).is_ok());
    // It writes a line for each request.
    let out = load.child.stdout.take().expect("stdout");
    std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).for_each(drop));
    under("php", &load, "thp", 8 << 20, || ask("php", free, "sum 124750"));
}

/// Three processes of PHP-FPM behind two workers of nginx: both servers are lifted while clients ask.
#[test]
fn php_fpm_behind_nginx() {
    need_root!();
    need!("nginx", "php");
    let Some(fpm) = ["php-fpm", "php-fpm8.2", "php-fpm8.3", "php-fpm8.4"].into_iter().find_map(find) else {
        skip!("needs php-fpm: ci/setup.sh test");
    };
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let at = dir.path().to_str().expect("UTF-8");
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("write");
    write(
        "index.php",
        "<?php $m = []; for ($i = 0; $i < 500; $i++) $m[\"k$i\"] = $i; echo 'sum ', array_sum($m);",
    );
    write(
        "fpm.conf",
        &format!(
            "[global]\nerror_log = {at}/fpm.log\ndaemonize = no\n[www]\nuser = root\ngroup = root\n\
             listen = {at}/socket\npm = static\npm.max_children = 3\n"
        ),
    );
    write(
        "nginx.conf",
        &format!(
            "daemon off;\nuser root;\nworker_processes 2;\npid {at}/nginx.pid;\nerror_log {at}/nginx.log;\n\
             events {{}}\nhttp {{ access_log off; server {{ listen 127.0.0.1:{port}; location / {{\n\
             fastcgi_pass unix:{at}/socket; fastcgi_param SCRIPT_FILENAME {at}/index.php;\n\
             fastcgi_param REQUEST_METHOD GET; }} }} }}\n"
        ),
    );
    let start = |words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Load::start(&words, false, &[], &[])
    };
    let (fpm_conf, nginx_conf) = (format!("{at}/fpm.conf"), format!("{at}/nginx.conf"));
    let program = fpm.to_str().expect("UTF-8");
    let both = start(&[program, "-R", "-n", "-y", &fpm_conf])
        .and_then(|fpm| Ok((fpm, start(&["nginx", "-p", at, "-c", &nginx_conf])?)));
    let (mut fpm, mut nginx) = match both {
        Ok(both) => both,
        Err(why) => skip!("{why}"),
    };
    fpm.wait_for("php-fpm is ready", || dir.path().join("socket").exists());
    nginx.wait_for("nginx is ready", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    // nginx itself has no whole huge page of code.
    under("nginx", &nginx, "thp", 0, || {
        under("php-fpm", &fpm, "thp", 8 << 20, || ask("php-fpm behind nginx", port, "sum 124750"));
    });

    let group = fpm.group.path_of(fpm.child.id()).expect("its group");
    let script = format!(
        "while (true) if (file_get_contents('http://127.0.0.1:{port}/index.php') !== 'sum 124750') exit(1);"
    );
    let clients = Command::new("php").args(["-n", "-r", &script]).stdin(Stdio::null()).spawn().expect("php");
    // Its first process and three workers.
    let batch = Batch { words: &["--cgroup", &group], at_least: 4 };
    compared("php-fpm", &fpm, &batch, clients, Path::new(program));
}

#[test]
fn redis() {
    need_root!();
    need!("redis-server", "redis-cli", "redis-benchmark");
    let template = tempfile::TempDir::new().expect("a temporary directory");
    let server = Redis(find("redis-server").expect("redis-server"));
    let (load, home) = match started(&server, template.path(), false) {
        Ok(started) => started,
        Err(why) => skip!("{why}"),
    };
    let socket = home.path().join("data/socket");
    // Its own code has no whole huge page.
    let said = under("redis", &load, "thp", 0, || {
        let mut bench = Command::new("redis-benchmark");
        bench.arg("-s").arg(&socket).args(["-t", "set,get,lpush", "-n", "60000", "-c", "8", "-r", "100000"]);
        must(&mut bench)
    });
    assert!(!said.to_lowercase().contains("error") && said.contains("60000 requests completed"), "{said}");
}

#[test]
fn mariadb() {
    need_root!();
    need!("mariadbd", "sysbench");
    let server = MariaDb::find();
    let begun =
        server.template().and_then(|template| Ok((started(&server, template.path(), false)?, template)));
    let ((load, home), _template) = match begun {
        Ok(begun) => begun,
        Err(why) => skip!("{why}"),
    };
    let time = format!("--time={}", LOAD.as_secs());
    // It switches transparent huge pages off for itself.
    let _pool = match Pool::shared() {
        Ok(pool) => pool,
        Err(why) => skip!("{why}"),
    };
    let said = under("MariaDB", &load, "hugetlb", 4 << 20, || {
        let mut bench = MariaDb::bench(&home.path().join("data"));
        must(bench.args(["oltp_read_write", "--threads=4", &time, "run"]))
    });
    let number = |name: &str| {
        let line = said.lines().find(|line| line.trim_start().starts_with(name)).expect(name);
        line.split_whitespace().find_map(|word| word.parse::<f64>().ok()).expect("a number")
    };
    println!("MariaDB: longest answer {} ms", number("max:"));
    assert!(number("transactions:") > 0.0, "{said}");
    // Transactions that collide are repeated, which sysbench counts as ignored errors.
    assert_eq!(number("reconnects:"), 0.0, "{said}");
}

#[test]
fn postgres() {
    need_root!();
    need!("setpriv");
    let Some(server) = Postgres::find() else { skip!("needs postgres") };
    let template = server.template();
    let (load, home) = match started(&server, &template.path().join("data"), false) {
        Ok(started) => started,
        Err(why) => skip!("{why}"),
    };
    let dir = home.path().join("data");
    must(server.tool("pgbench", &dir).args(["-i", "-q", "-s", "2", "postgres"]));
    let time = LOAD.as_secs().to_string();
    let said = under("PostgreSQL", &load, "thp", 2 << 20, || {
        must(server.tool("pgbench", &dir).args(["-n", "-c", "4", "-T", &time, "-S", "postgres"]))
    });
    let failed = said.lines().find(|line| line.starts_with("number of failed transactions"));
    // Versions before 15 end instead.
    assert!(failed.is_none_or(|line| line.contains(": 0 ")), "{said}");
    assert!(said.contains("number of transactions actually processed"), "{said}");

    let mut bench = server.tool("pgbench", &dir);
    bench.args(["-n", "-c", "4", "-T", "600", "-S", "postgres"]).stdout(Stdio::null()).stderr(Stdio::null());
    let pid = load.child.id().to_string();
    let clients = bench.spawn().expect("pgbench");
    // Its first process, four backends, and those that write.
    let batch = Batch { words: &["--pid", &pid, "--children"], at_least: 8 };
    until("pgbench's connections", || children(load.child.id()).len() as u64 + 1 >= batch.at_least);
    compared("PostgreSQL", &load, &batch, clients, &server.bin.join("postgres"));
}

/// A page that computes in all processes that the browser has for it.
#[test]
fn chromium() {
    need_root!();
    let Some(program) = browser() else { skip!("needs chromium") };
    let home = tempfile::TempDir::new().expect("a temporary directory");
    let page = home.path().join("page.html");
    let time = LOAD.as_millis();
    // The browser prints the page when the script has ended.
    let script = format!(
        "<title>sums</title><p id=sum>none</p><script>let rounds = 0, wrong = 0; \
         for (const until = Date.now() + {time}; Date.now() < until; rounds++) {{ \
         const m = new Map(); for (let i = 0; i < 20000; i++) m.set('k' + i, i); \
         let s = 0; for (const v of m.values()) s += v; if (s !== 199990000) wrong++; }} \
         document.getElementById('sum').textContent = `${{rounds > 3}}, ${{wrong}} wrong`;</script>"
    );
    std::fs::write(&page, script).expect("write");
    let mut words = vec![program.into_os_string()];
    words.extend(nix::unistd::geteuid().is_root().then(|| "--no-sandbox".into()));
    let fixed = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--dump-dom"];
    words.extend(fixed.map(OsString::from));
    words.push(format!("--user-data-dir={}", home.path().join("profile").display()).into());
    words.push(format!("file://{}", page.display()).into());
    let mut load = match Load::start(&words, false, &[], &[]) {
        Ok(load) => load,
        Err(why) => skip!("{why}"),
    };
    let mut out = load.child.stdout.take().expect("stdout");
    let text = under("chromium", &load, "thp", 64 << 20, || {
        let mut text = String::new();
        out.read_to_string(&mut text).expect("its output");
        text
    });
    assert!(text.contains("true, 0 wrong"), "{text}");
    load.end(text);
}
