// SPDX-License-Identifier: Apache-2.0
//! The exit statuses and examples of all commands.

use super::text::{Ending, Example};

/// What 125 means wherever nothing else is said of it.
const FAILED: (&str, &str) = ("125", "hugelift failed, or the command line is wrong; stderr says why");
const NOT_EXECUTABLE: (&str, &str) = ("126", "the program cannot be executed");
const NOT_FOUND: (&str, &str) = ("127", "there is no such program");
const INTERRUPTED: (&str, &str) = ("130", "ctrl-C has ended it; what was measured before is printed");

/// One for each command.
pub const ALL: &[Ending] = &[
    Ending {
        command: "",
        status: &[
            ("0", "success"),
            ("1", "the condition that the command checks does not hold; the help of each command names it"),
            ("2", "no command was given"),
            FAILED,
        ],
        examples: &[
            Example {
                line: "hugelift run mariadbd --datadir=/var/lib/mysql",
                what: "start a program on huge pages",
            },
            Example { line: "hugelift attach $(pidof mariadbd)", what: "lift the one that runs already" },
            Example { line: "hugelift doctor", what: "find what prevents huge pages on this machine" },
            Example { line: "hugelift top", what: "find the programs that may gain" },
        ],
    },
    Ending {
        command: "run",
        status: &[
            ("0 to 255", "that of the program, which the process becomes"),
            ("125", "hugelift failed, or the command line is wrong; with --strict also: not all was lifted"),
            NOT_EXECUTABLE,
            NOT_FOUND,
        ],
        examples: &[
            Example {
                line: "hugelift run -v mariadbd --datadir=/var/lib/mysql",
                what: "start a server, and say what was lifted",
            },
            Example {
                line: "hugelift run --dry-run node server.js",
                what: "print the plan, and start nothing",
            },
            Example {
                line: "hugelift run --parts all --backing thp -- redis-server --port 7000",
                what: "lift writable memory too, by copies in transparent huge pages",
            },
        ],
    },
    Ending {
        command: "attach",
        status: &[
            ("0", "each process was treated; with --watch: a signal or the last process has ended it"),
            ("125", "one could not be changed, there is none to watch, or hugelift failed; stderr says why"),
        ],
        examples: &[
            Example { line: "hugelift attach $(pidof mariadbd)", what: "lift a server that runs" },
            Example {
                line: "hugelift attach --name 'php-fpm*' --watch",
                what: "lift all that have this name, also those that start later",
            },
        ],
    },
    Ending {
        command: "restore",
        status: &[
            ("0", "each process was treated"),
            ("125", "one could not be changed, or hugelift failed; stderr says why"),
        ],
        examples: &[
            Example {
                line: "hugelift restore 4711",
                what: "undo what 'hugelift attach 4711' has done to code",
            },
            Example {
                line: "hugelift restore --unused --name redis-server",
                what: "give back the zeros on its huge pages",
            },
        ],
    },
    Ending {
        command: "compare",
        status: &[
            ("0", "the comparison is made, whatever it shows, also where the load or the process has ended"),
            (
                "125",
                "a run or hugelift failed, or the command line is wrong; stderr says why. The pairs before that are \
                 printed",
            ),
            NOT_EXECUTABLE,
            NOT_FOUND,
            ("130", "ctrl-C has ended it; the pairs before that are printed"),
        ],
        examples: &[
            Example {
                line: "hugelift compare -- clang -O2 -c big.c -o /dev/null",
                what: "compare a command",
            },
            Example {
                line: "hugelift compare --server 'redis-server --port 7000' --ready 7000 \\\n    \
                       --load 'redis-benchmark -p 7000 -t get -q' \\\n    \
                       --metric '([0-9.]+) requests per second' --higher-is-better",
                what: "compare a server under a load",
            },
            Example {
                line: "hugelift compare --pid 4711 --html result.html",
                what: "compare a process that runs with itself, and draw every pair",
            },
        ],
    },
    Ending {
        command: "stat",
        status: &[
            ("0 to 255", "with a command: as the command; 128 + N if signal N has ended it"),
            ("0", "without one: counts were printed"),
            FAILED,
            NOT_EXECUTABLE,
            NOT_FOUND,
        ],
        examples: &[
            Example {
                line: "hugelift stat -- clang -O2 -c big.c -o /dev/null",
                what: "count for one command",
            },
            Example {
                line: "hugelift stat --pid 4711 --time 10",
                what: "count for a process that runs, for 10 seconds",
            },
        ],
    },
    Ending {
        command: "inspect",
        status: &[("0", "the report is printed"), FAILED, NOT_FOUND],
        examples: &[
            Example { line: "hugelift inspect $(pidof mariadbd)", what: "show a process as it is now" },
            Example {
                line: "hugelift inspect --html map.html mariadbd",
                what: "show what a program would have on huge pages, also as a picture",
            },
            Example {
                line: "hugelift inspect --heat 10 $(pidof mariadbd)",
                what: "sample for 10 seconds which code it uses",
            },
            Example {
                line: "sudo hugelift inspect --cost 10 $(pidof mariadbd)",
                what: "watch for 10 seconds whether huge pages stall it",
            },
        ],
    },
    Ending {
        command: "advise",
        status: &[
            ("0", "of a process or a unit: the advice is printed, whatever it is"),
            ("0 to 255", "with a command: as the command; 128 + N if signal N has ended it"),
            FAILED,
            NOT_EXECUTABLE,
            NOT_FOUND,
        ],
        examples: &[
            Example {
                line: "hugelift advise $(pidof mariadbd)",
                what: "ask whether huge code may pay for a server",
            },
            Example {
                line: "hugelift advise --for 5s --json 4711",
                what: "the same as JSON, after 5 seconds",
            },
            Example {
                line: "hugelift advise -- clang -O2 -c big.c -o /dev/null",
                what: "start a command and ask about it; the advice goes to stderr",
            },
        ],
    },
    Ending {
        command: "top",
        status: &[("0", "the user has quit, or the table is printed"), FAILED],
        examples: &[
            Example {
                line: "hugelift top",
                what: "watch; the last line is the command for the selected process",
            },
            Example { line: "hugelift top --once --interval 1 -n 5", what: "print the five busiest once" },
        ],
    },
    Ending {
        command: "doctor",
        status: &[("0", "nothing is found, or notes only"), ("1", "there is a problem or a warning"), FAILED],
        examples: &[
            Example { line: "hugelift doctor", what: "examine this machine" },
            Example { line: "sudo hugelift doctor --fix", what: "ask, then run the commands that are safe" },
        ],
    },
    Ending {
        command: "pool",
        status: &[
            ("0", "success"),
            ("1", "'set' got fewer pages than requested, or 'need' found too few"),
            FAILED,
        ],
        examples: &[
            Example { line: "hugelift pool", what: "show the pools" },
            Example { line: "sudo hugelift pool set 2M=512M", what: "set a pool" },
        ],
    },
    Ending {
        command: "pool show",
        status: &[("0", "the pools are shown"), FAILED],
        examples: &[Example { line: "hugelift pool show --json", what: "show the pools as JSON" }],
    },
    Ending {
        command: "pool set",
        status: &[
            ("0", "the pools have these sizes"),
            ("1", "the kernel gave fewer pages than requested"),
            FAILED,
        ],
        examples: &[
            Example { line: "sudo hugelift pool set +64", what: "add 64 pages to the default pool" },
            Example {
                line: "sudo hugelift pool set 2M=512M --persist",
                what: "give the pool of 2 MB pages 512 MB, now and at every boot",
            },
        ],
    },
    Ending {
        command: "pool need",
        status: &[("0", "the pools hold enough pages"), ("1", "they hold too few"), FAILED, NOT_FOUND],
        examples: &[Example { line: "hugelift pool need mariadbd", what: "count the pages for one server" }],
    },
    Ending {
        command: "prime",
        status: &[("0", "all that can be huge is huge"), ("1", "some of it is not"), FAILED],
        examples: &[
            Example {
                line: "hugelift prime --check mariadbd",
                what: "show what is huge, and change nothing",
            },
            Example {
                line: "sudo hugelift prime --with-libs mariadbd",
                what: "make it and its libraries huge",
            },
            Example {
                line: "sudo hugelift prime --recursive --budget 8G /var/lib/geoip",
                what: "make the large files in a folder huge, and read at most so much of them",
            },
            Example {
                line: "sudo hugelift prime --restore mariadbd",
                what: "put back what --replace has replaced",
            },
        ],
    },
    Ending {
        command: "align",
        status: &[("0", "the copy is made"), ("1", "it would gain nothing, and is not made"), FAILED],
        examples: &[
            Example { line: "hugelift align ./server -o server.aligned", what: "copy a program" },
            Example { line: "hugelift align ./server --dry-run", what: "say what a copy would gain" },
        ],
    },
    Ending {
        command: "service",
        status: &[("0", "SIGTERM has ended it; what it has done stays"), FAILED],
        examples: &[
            Example {
                line: "hugelift service",
                what: "take the programs of this machine, in the foreground",
            },
            Example {
                line: "hugelift service --config ./service.toml",
                what: "try another policy; no other daemon may run",
            },
        ],
    },
    Ending {
        command: "service check",
        status: &[("0", "the policy is in order"), ("125", "it is not, or hugelift failed; stderr says why")],
        examples: &[
            Example { line: "hugelift service check", what: "show which rule takes which process" },
            Example {
                line: "hugelift service check --pid 4711",
                what: "say why the rules before do not take it",
            },
        ],
    },
    Ending {
        command: "service apply",
        status: &[
            ("0", "the offers are listed, or those that were named are carried out"),
            ("125", "no daemon answers, there is no such offer, or its command fails; stderr says why"),
        ],
        examples: &[
            Example { line: "hugelift service apply", what: "list what needs a person's decision" },
            Example {
                line: "hugelift service apply /usr/sbin/mariadbd",
                what: "carry out the offer of this name",
            },
        ],
    },
    Ending {
        command: "service report",
        status: &[("0", "success"), ("125", "there is no ledger, or it cannot be read; stderr says why")],
        examples: &[
            Example { line: "hugelift service report", what: "say what the last seven days have gained" },
            Example {
                line: "hugelift service report --since 30d --json",
                what: "the same of a month, for programs",
            },
        ],
    },
    Ending {
        command: "service status",
        status: &[("0", "all files are huge"), ("1", "some are not"), ("125", "no daemon answers")],
        examples: &[Example { line: "hugelift service status", what: "ask the daemon" }],
    },
    Ending {
        command: "wrap",
        status: &[("0", "the drop-in is written, or with --dry-run printed"), FAILED],
        examples: &[
            Example { line: "hugelift wrap --dry-run mariadb", what: "print the drop-in, and write nothing" },
            Example {
                line: "sudo hugelift wrap redis-server -- --parts all --backing thp",
                what: "write it, with options of hugelift run",
            },
            Example {
                line: "sudo hugelift wrap --root /mnt/image nginx",
                what: "write it into an image, where hugelift is installed",
            },
        ],
    },
    Ending {
        command: "unwrap",
        status: &[
            ("0", "the drop-in is removed"),
            ("125", "there is none, or hugelift failed; stderr says why"),
        ],
        examples: &[Example {
            line: "sudo hugelift unwrap mariadb",
            what: "have it started without hugelift again",
        }],
    },
    Ending {
        command: "store",
        status: &[("0", "success"), ("1", "'verify' found a damaged entry"), FAILED],
        examples: &[
            Example { line: "hugelift store list", what: "show the entries" },
            Example {
                line: "hugelift store gc --budget 512M",
                what: "drop the least used until the others fit",
            },
        ],
    },
    Ending {
        command: "store list",
        status: &[("0", "the entries are shown; there may be no store"), FAILED],
        examples: &[Example { line: "hugelift store list", what: "show the entries" }],
    },
    Ending {
        command: "store verify",
        status: &[("0", "no entry is damaged"), ("1", "one was, and is dropped"), FAILED],
        examples: &[Example { line: "hugelift store verify", what: "compare every entry with its checksum" }],
    },
    Ending {
        command: "store gc",
        status: &[("0", "success, also where nothing is dropped"), FAILED],
        examples: &[Example {
            line: "hugelift store gc --budget 512M",
            what: "drop what is stale, then the least used until the others fit",
        }],
    },
    Ending {
        command: "store drop",
        status: &[("0", "success, also where nothing matches"), FAILED],
        examples: &[
            Example { line: "hugelift store drop 'libjvm*'", what: "drop the entries of these objects" },
            Example { line: "hugelift store drop --all", what: "drop the store" },
        ],
    },
    Ending {
        command: "ministat",
        status: &[("0", "the result is printed, whatever it shows"), FAILED],
        examples: &[Example {
            line: "hugelift ministat before after",
            what: "compare the numbers in two files",
        }],
    },
    Ending {
        command: "lab",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[Example { line: "hugelift lab tlb --quick", what: "see where TLBs and caches end" }],
    },
    Ending {
        command: "lab tlb",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[Example {
            line: "hugelift lab tlb --quick --program mariadbd",
            what: "say what huge pages save at the size of this program",
        }],
    },
    Ending {
        command: "lab munmap",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[Example { line: "hugelift lab munmap --quick", what: "measure the main cases" }],
    },
    Ending {
        command: "lab reclaim",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[Example { line: "hugelift lab reclaim --quick", what: "measure less" }],
    },
    Ending {
        command: "lab memcpy",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[Example { line: "hugelift lab memcpy --quick", what: "measure less" }],
    },
    Ending {
        command: "lab cow",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[Example {
            line: "hugelift lab cow --quick --only writes",
            what: "measure forks and writes alone",
        }],
    },
    Ending {
        command: "lab walks",
        status: &[
            ("0 to 255", "with a command: as the command; 128 + N if signal N has ended it"),
            ("0", "of a recorded trace: the result is printed"),
            FAILED,
            NOT_EXECUTABLE,
            NOT_FOUND,
        ],
        examples: &[
            Example {
                line: "hugelift lab walks --on skylake-sp,zen-4 -- clang -O2 -c big.c -o /dev/null",
                what: "simulate a command on two CPUs",
            },
            Example { line: "hugelift lab walks --trace trace.txt", what: "read a recorded trace" },
        ],
    },
    Ending {
        command: "lab all",
        status: &[
            ("0", "all experiments are done"),
            ("125", "one could not be done; stderr says why"),
            INTERRUPTED,
        ],
        examples: &[Example {
            line: "hugelift lab all --quick --html lab.html",
            what: "perform every experiment, and write one page about all",
        }],
    },
];
