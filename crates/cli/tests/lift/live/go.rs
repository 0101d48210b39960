// SPDX-License-Identifier: Apache-2.0
//! A Go program with thousands of goroutines. Their stacks are a few kB of the heap, and the runtime
//! interrupts them by signals at any instruction.

use super::{Running, done, files, pause, segments};
use crate::common::End;
use crate::common::build::must;
use crate::common::huge::{assert_lifted, assert_unchanged};
use crate::need;
use std::process::Command;
use std::time::Duration;

const SOURCE: &str = r#"package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const goroutines = 4000

var errors, steps atomic.Int64
var stop atomic.Bool

// Returns n, after it has used some of the stack, which is checked.
func deep(n int) int {
	var local [6]int
	for i := range local {
		local[i] = n + i
	}
	below := 0
	if n > 0 {
		below = deep(n-1) + 1
	}
	for i := range local {
		if local[i] != n+i {
			errors.Add(1)
		}
	}
	return below
}

func work(id int, want [32]byte) {
	text := []byte("hugelift " + strconv.Itoa(id%16))
	for n := id; !stop.Load(); n++ {
		if sha256.Sum256(text) != want || http.StatusText(404) != "Not Found" || deep(n%7) != n%7 {
			errors.Add(1)
		}
		if s := fmt.Sprintf("%d %x", n, n); s != strconv.Itoa(n)+" "+strconv.FormatInt(int64(n), 16) {
			errors.Add(1)
		}
		steps.Add(1)
		before := time.Now()
		pause := time.Duration(n%50) * time.Millisecond
		time.Sleep(pause)
		if time.Since(before) < pause {
			errors.Add(1)
		}
	}
}

func main() {
	if len(os.Args) > 1 {
		http.ListenAndServe(os.Args[1], nil)
	}
	var all sync.WaitGroup
	for id := 0; id < goroutines; id++ {
		all.Add(1)
		want := sha256.Sum256([]byte("hugelift " + strconv.Itoa(id%16)))
		go func() { defer all.Done(); work(id, want) }()
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Println("ready")
	<-term
	stop.Store(true)
	all.Wait()
	fmt.Printf("{\"errors\":%d,\"steps\":%d}\n", errors.Load(), steps.Load())
	io.ReadAll(os.Stdin)
}
"#;

#[test]
fn goroutines_on_small_stacks() {
    need!("go");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    std::fs::write(dir.path().join("main.go"), SOURCE).expect("write the source");
    std::fs::write(dir.path().join("go.mod"), "module main\n\ngo 1.22\n").expect("write go.mod");
    must(Command::new("go").current_dir(&dir).args(["build", "-o", "main", "."]));
    let program = dir.path().join("main");
    let none: [&str; 0] = [];
    let running = Running::start(&program, &none);
    let pid = running.pid();
    let before = files(pid);
    for round in 0..5 {
        let what = format!("round {round}");
        pause(Duration::from_millis(200));
        done("attach", pid);
        let pieces = segments(pid, &program);
        assert!(assert_lifted(&pieces, "thp", &what) >= 1, "{what}: {pieces:?}");
        assert_unchanged(pid, &pieces);
        pause(Duration::from_millis(200));
        done("restore", pid);
        assert_eq!(files(pid), before, "{what}");
    }
    let report = running.report();
    assert!(report["steps"].as_u64() > Some(10_000), "{report}");
    assert_eq!(running.finish(), Some(End::Code(0)));
}
