// SPDX-License-Identifier: Apache-2.0
//! The exit statuses and examples of all commands.

use super::text::Ending;

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
            ("hugelift run mariadbd --datadir=/var/lib/mysql", "start a program on huge pages"),
            ("hugelift attach $(pidof mariadbd)", "lift the one that runs already"),
            ("hugelift doctor", "find what prevents huge pages on this machine"),
            ("hugelift top", "find the programs that may gain"),
        ],
    },
    Ending {
        command: "run",
        status: &[
            ("0 to 255", "the exit status of the program: the process becomes the program"),
            ("125", "hugelift failed, or the command line is wrong; with --strict also: not all was lifted"),
            NOT_EXECUTABLE,
            NOT_FOUND,
        ],
        examples: &[
            ("hugelift run -v mariadbd --datadir=/var/lib/mysql", "start a server, and say what was lifted"),
            ("hugelift run --dry-run node server.js", "print the plan, and start nothing"),
            (
                "hugelift run --parts all --backing thp -- redis-server --port 7000",
                "lift writable memory too, by copies in transparent huge pages",
            ),
        ],
    },
    Ending {
        command: "attach",
        status: &[
            ("0", "each process was treated; with --watch: a signal or the last process has ended it"),
            (
                "125",
                "a process could not be changed, there is no process to watch, or hugelift failed; stderr says why",
            ),
        ],
        examples: &[
            ("hugelift attach $(pidof mariadbd)", "lift a server that runs"),
            (
                "hugelift attach --name 'php-fpm*' --watch",
                "lift all that have this name, also those that start later",
            ),
        ],
    },
    Ending {
        command: "restore",
        status: &[
            ("0", "each process was treated"),
            ("125", "a process could not be changed, or hugelift failed; stderr says why"),
        ],
        examples: &[
            ("hugelift restore 4711", "undo what 'hugelift attach 4711' has done to code"),
            ("hugelift restore --unused --name redis-server", "give back the zeros on its huge pages"),
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
            ("hugelift compare -- clang -O2 -c big.c -o /dev/null", "compare a command"),
            (
                "hugelift compare --server 'redis-server --port 7000' --ready 7000 \\\n    \
                       --load 'redis-benchmark -p 7000 -t get -q' \\\n    \
                       --metric '([0-9.]+) requests per second' --higher-is-better",
                "compare a server under a load",
            ),
            (
                "hugelift compare --pid 4711 --html result.html",
                "compare a process that runs with itself, and draw every pair",
            ),
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
            ("hugelift stat -- clang -O2 -c big.c -o /dev/null", "count for one command"),
            ("hugelift stat --pid 4711 --time 10", "count for a process that runs, for 10 seconds"),
        ],
    },
    Ending {
        command: "inspect",
        status: &[("0", "the report is printed"), FAILED, NOT_FOUND],
        examples: &[
            ("hugelift inspect $(pidof mariadbd)", "show a process as it is now"),
            (
                "hugelift inspect --html map.html mariadbd",
                "show what a program would have on huge pages, also as a picture",
            ),
            ("hugelift inspect --heat 10 $(pidof mariadbd)", "sample for 10 seconds which code it uses"),
            (
                "sudo hugelift inspect --cost 10 $(pidof mariadbd)",
                "watch for 10 seconds whether huge pages stall it",
            ),
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
            ("hugelift advise $(pidof mariadbd)", "ask whether huge code may pay for a server"),
            ("hugelift advise --for 5s --json 4711", "the same as JSON, after 5 seconds"),
            (
                "hugelift advise -- clang -O2 -c big.c -o /dev/null",
                "start a command and ask about it; the advice goes to stderr",
            ),
        ],
    },
    Ending {
        command: "top",
        status: &[("0", "the user has quit, or the table is printed"), FAILED],
        examples: &[
            ("hugelift top", "watch; the last line is the command for the selected process"),
            ("hugelift top --once --interval 1 -n 5", "print the five busiest once"),
        ],
    },
    Ending {
        command: "doctor",
        status: &[("0", "nothing is found, or notes only"), ("1", "there is a problem or a warning"), FAILED],
        examples: &[
            ("hugelift doctor", "examine this machine"),
            ("sudo hugelift doctor --fix", "ask, then run the commands that are safe"),
        ],
    },
    Ending {
        command: "pool",
        status: &[
            ("0", "success"),
            ("1", "'set' got fewer pages than requested, or 'need' found too few"),
            FAILED,
        ],
        examples: &[("hugelift pool", "show the pools"), ("sudo hugelift pool set 2M=512M", "set a pool")],
    },
    Ending {
        command: "pool show",
        status: &[("0", "the pools are shown"), FAILED],
        examples: &[("hugelift pool show --json", "show the pools as JSON")],
    },
    Ending {
        command: "pool set",
        status: &[
            ("0", "the pools have these sizes"),
            ("1", "the kernel gave fewer pages than requested"),
            FAILED,
            (
                "130",
                "ctrl-C has ended it; the pools are as they were before, unless stderr says which pages are missing",
            ),
        ],
        examples: &[
            ("sudo hugelift pool set +64", "add 64 pages to the default pool"),
            (
                "sudo hugelift pool set 2M=512M --persist",
                "give the pool of 2 MB pages 512 MB, now and at every boot",
            ),
        ],
    },
    Ending {
        command: "pool need",
        status: &[("0", "the pools hold enough pages"), ("1", "they hold too few"), FAILED, NOT_FOUND],
        examples: &[("hugelift pool need mariadbd", "count the pages for one server")],
    },
    Ending {
        command: "prime",
        status: &[
            ("0", "all that can be huge is huge"),
            ("1", "something that can be huge is not huge"),
            (
                "125",
                "a file cannot be read, as its line says; or hugelift failed or the command line is wrong, as stderr says",
            ),
        ],
        examples: &[
            ("hugelift prime --check mariadbd", "show what is huge, and change nothing"),
            ("sudo hugelift prime --with-libs mariadbd", "make it and its libraries huge"),
            (
                "sudo hugelift prime --recursive --budget 8G /var/lib/geoip",
                "make the large files in a folder huge, and read at most so much of them",
            ),
            ("sudo hugelift prime --restore mariadbd", "put back what --replace has replaced"),
        ],
    },
    Ending {
        command: "align",
        status: &[("0", "the copy is made"), ("1", "it would gain nothing, and is not made"), FAILED],
        examples: &[
            ("hugelift align ./server -o server.aligned", "copy a program"),
            ("hugelift align ./server --dry-run", "say what a copy would gain"),
        ],
    },
    Ending {
        command: "service",
        status: &[("0", "SIGTERM has ended it; what it has done stays"), FAILED],
        examples: &[
            ("hugelift service", "take the programs of this machine, in the foreground"),
            ("hugelift service --config ./service.toml", "try another policy; no other daemon may run"),
        ],
    },
    Ending {
        command: "service check",
        status: &[("0", "the policy is in order"), ("125", "it is not, or hugelift failed; stderr says why")],
        examples: &[
            ("hugelift service check", "show which rule takes which process"),
            ("hugelift service check --pid 4711", "say why the rules before do not take it"),
        ],
    },
    Ending {
        command: "service apply",
        status: &[
            ("0", "the offers are listed, or those that were named are carried out"),
            ("125", "no daemon answers, there is no such offer, or its command fails; stderr says why"),
        ],
        examples: &[
            ("hugelift service apply", "list what needs a person's decision"),
            ("hugelift service apply /usr/sbin/mariadbd", "carry out the offer of this name"),
        ],
    },
    Ending {
        command: "service report",
        status: &[("0", "success"), ("125", "there is no ledger, or it cannot be read; stderr says why")],
        examples: &[
            ("hugelift service report", "say what the last seven days have gained"),
            ("hugelift service report --since 30d --json", "the same of a month, for programs"),
        ],
    },
    Ending {
        command: "service status",
        status: &[("0", "all files are huge"), ("1", "some are not"), ("125", "no daemon answers")],
        examples: &[("hugelift service status", "ask the daemon")],
    },
    Ending {
        command: "wrap",
        status: &[("0", "the drop-in is written, or with --dry-run printed"), FAILED],
        examples: &[
            ("hugelift wrap --dry-run mariadb", "print the drop-in, and write nothing"),
            (
                "sudo hugelift wrap redis-server -- --parts all --backing thp",
                "write it, with options of hugelift run",
            ),
            (
                "sudo hugelift wrap --root /mnt/image nginx",
                "write it into an image, where hugelift is installed",
            ),
        ],
    },
    Ending {
        command: "unwrap",
        status: &[
            ("0", "the drop-in is removed"),
            ("125", "the unit has no drop-in of hugelift, or hugelift failed; stderr says why"),
        ],
        examples: &[("sudo hugelift unwrap mariadb", "have it started without hugelift again")],
    },
    Ending {
        command: "store",
        status: &[("0", "success"), ("1", "'verify' found a damaged entry"), FAILED],
        examples: &[
            ("hugelift store list", "show the entries"),
            ("hugelift store gc --budget 512M", "drop the least used until the others fit"),
        ],
    },
    Ending {
        command: "store list",
        status: &[("0", "the entries are shown; there may be no store"), FAILED],
        examples: &[("hugelift store list", "show the entries")],
    },
    Ending {
        command: "store verify",
        status: &[("0", "no entry is damaged"), ("1", "an entry was damaged, and is dropped"), FAILED],
        examples: &[("hugelift store verify", "compare every entry with its checksum")],
    },
    Ending {
        command: "store gc",
        status: &[("0", "success, also where nothing is dropped"), FAILED],
        examples: &[(
            "hugelift store gc --budget 512M",
            "drop what is stale, then the least used until the others fit",
        )],
    },
    Ending {
        command: "store drop",
        status: &[("0", "success, also where nothing matches"), FAILED],
        examples: &[
            ("hugelift store drop 'libjvm*'", "drop the entries of these objects"),
            ("hugelift store drop --all", "drop the store"),
        ],
    },
    Ending {
        command: "ministat",
        status: &[("0", "the result is printed, whatever it shows"), FAILED],
        examples: &[("hugelift ministat before after", "compare the numbers in two files")],
    },
    Ending {
        command: "lab",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[("hugelift lab tlb --quick", "see where TLBs and caches end")],
    },
    Ending {
        command: "lab tlb",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[(
            "hugelift lab tlb --quick --program mariadbd",
            "say what huge pages save at the size of this program",
        )],
    },
    Ending {
        command: "lab munmap",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[("hugelift lab munmap --quick", "measure the main cases")],
    },
    Ending {
        command: "lab reclaim",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[("hugelift lab reclaim --quick", "measure less")],
    },
    Ending {
        command: "lab memcpy",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[("hugelift lab memcpy --quick", "measure less")],
    },
    Ending {
        command: "lab cow",
        status: &[("0", "the experiment is done"), FAILED, INTERRUPTED],
        examples: &[("hugelift lab cow --quick --only writes", "measure forks and writes alone")],
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
            (
                "hugelift lab walks --on skylake-sp,zen-4 -- clang -O2 -c big.c -o /dev/null",
                "simulate a command on two CPUs",
            ),
            ("hugelift lab walks --trace trace.txt", "read a recorded trace"),
        ],
    },
    Ending {
        command: "lab all",
        status: &[
            ("0", "all experiments are done"),
            ("125", "one could not be done; stderr says why"),
            INTERRUPTED,
        ],
        examples: &[(
            "hugelift lab all --quick --html lab.html",
            "perform every experiment, and write one page about all",
        )],
    },
];
