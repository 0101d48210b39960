// SPDX-License-Identifier: Apache-2.0
//! Tests of the drop-in: hugelift starts the same words as systemd would, and nothing else changes.

use super::drop_in::MARK;
use super::name::{drop_in_names, service};
use super::syntax::assignments;
use super::words::{Variables, quoted, split_first};
use super::{Refusal, Unit, wrap};
use proptest::prelude::*;

const HUGELIFT: &str = "/usr/bin/hugelift";

/// Returns the values of ExecStart= in the drop-in of a unit with this section.
fn wrapped_with(section: &str, options: &[&str]) -> Result<Vec<String>, Refusal> {
    let unit = Unit::read([format!("[Service]\n{section}").as_str()])?;
    let options: Vec<String> = options.iter().map(ToString::to_string).collect();
    let text = wrap("x.service", &unit, HUGELIFT, &options)?.text;
    let mut values = text.lines().filter_map(|line| line.strip_prefix("ExecStart="));
    assert_eq!(values.next(), Some(""), "{text}");
    Ok(values.map(String::from).collect())
}

fn wrapped(section: &str) -> Result<Vec<String>, Refusal> {
    wrapped_with(section, &[])
}

/// Reads a word as systemd does.
fn unquoted(raw: &str) -> String {
    let (mut word, mut quote) = (String::new(), None);
    let mut characters = raw.chars();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', _) => match characters.next() {
                Some('x') => {
                    let digits: String = characters.by_ref().take(2).collect();
                    word.push(char::from(u8::from_str_radix(&digits, 16).expect("digits")));
                }
                Some(other) => word.push(other),
                None => panic!("{raw} ends in a backslash"),
            },
            (_, Some(open)) if open == character => quote = None,
            ('"' | '\'', None) => quote = Some(character),
            _ => word.push(character),
        }
    }
    word
}

/// Returns the words of a value as systemd reads them.
fn words(value: &str) -> Vec<String> {
    let (mut words, mut rest) = (Vec::new(), value);
    while !rest.is_empty() {
        let (word, behind) = split_first(rest).expect("words");
        words.push(unquoted(word));
        rest = behind;
    }
    words
}

#[test]
fn issue_33_commands_keep_their_prefixes_and_their_words() {
    for (value, expected) in [
        ("/usr/sbin/mariadbd $OPTS", "/usr/bin/hugelift run -- /usr/sbin/mariadbd $OPTS"),
        ("-/bin/x", "-/usr/bin/hugelift run -- /bin/x"),
        ("!!/bin/x -d ${A}", "!!/usr/bin/hugelift run -- /bin/x -d ${A}"),
        ("+-/bin/x", "+-/usr/bin/hugelift run -- /bin/x"),
        (":/bin/x $A", ":/usr/bin/hugelift run -- /bin/x $A"),
        ("/opt/a$b/x $A", "/usr/bin/hugelift run -- /opt/a$$b/x $A"),
        (":/opt/a$b/x", ":/usr/bin/hugelift run -- /opt/a$b/x"),
        ("\"-/opt/a b/x\" 'c d'", "-/usr/bin/hugelift run -- \"/opt/a b/x\" 'c d'"),
        ("-\"/opt/a b/x\"", "-/usr/bin/hugelift run -- \"/opt/a b/x\""),
        ("/bin/x --id=%i \"100%%\"", "/usr/bin/hugelift run -- /bin/x --id=%i \"100%%\""),
        ("/bin/x \\; a", "/usr/bin/hugelift run -- /bin/x \\; a"),
        ("/bin/x \";\" a", "/usr/bin/hugelift run -- /bin/x \";\" a"),
        ("/bin/x \\\n  # no part of it\n  -a \\\n  -b", "/usr/bin/hugelift run -- /bin/x -a    -b"),
        ("nginx -g 'daemon on;'", "/usr/bin/hugelift run -- nginx -g 'daemon on;'"),
    ] {
        assert_eq!(wrapped(&format!("ExecStart={value}")).unwrap(), [expected], "{value}");
    }
}

#[test]
fn issue_33_commands_between_semicolons_and_in_several_lines() {
    let section = "Type=oneshot\nExecStart=/bin/a b ; -/bin/c;\nExecStart=/bin/d";
    let expected = ["/bin/a b", "/bin/c;", "/bin/d"].map(|rest| format!("/usr/bin/hugelift run -- {rest}"));
    let got = wrapped(section).unwrap();
    assert_eq!(got.iter().map(|line| line.trim_start_matches('-')).collect::<Vec<_>>(), expected);
    assert!(got[1].starts_with('-'));
    assert_eq!(wrapped("ExecStart=/bin/a ; ; /bin/b ;").unwrap().len(), 2);
}

#[test]
fn issue_33_later_files_take_back_and_add() {
    let base = "[Unit]\nExecStart=/no\n[Service]\nType=forking\nPIDFile=/run/x\nExecStart=/bin/a\n[X-Other]\nExecStart=/no\n";
    let drop_in = "# a comment\n[Service]\nExecStart=\nExecStart = /bin/b \nType=\n";
    let unit = Unit::read([base, drop_in]).unwrap();
    assert_eq!(unit.commands.len(), 1);
    assert_eq!((unit.commands[0].program(), unit.setting("Type")), ("/bin/b", None));
    assert_eq!(unit.setting("PIDFile"), Some("/run/x"));
}

#[test]
fn issue_33_units_that_are_refused() {
    for (section, says) in [
        ("", "no ExecStart="),
        ("ExecStart=/bin/a\nExecStart=", "no ExecStart="),
        ("ExecStart=/usr/bin/hugelift run -- /bin/x", "already"),
        ("ExecStart=-/opt/hugelift run /bin/x", "already"),
        ("ExecStart=@/bin/x name", "prefix @"),
        ("ExecStart=|/bin/x", "prefix |"),
        ("ExecStart=/bin/x \"", "cannot be read"),
        ("ExecStart=-", "cannot be read"),
        ("ExecStart=\\x2d/bin/x", "cannot be read"),
        ("ExecStart=/bin/x\nRootDirectory=/srv", "RootDirectory="),
        ("ExecStart=/bin/x\nNoExecPaths=/", "NoExecPaths="),
    ] {
        let refusal = wrapped(section).unwrap_err().to_string();
        assert!(refusal.contains(says) && !refusal.contains('\n'), "{section}: {refusal}");
    }
    assert!(wrapped("ExecStart=/usr/bin/hugelift attach --watch --unit x").is_ok());
    assert!(wrapped("ExecStart=/bin/x\nNoExecPaths=/\nNoExecPaths=").is_ok());
}

#[test]
fn issue_33_options_are_passed_on_as_they_are() {
    let options = ["--object", "a b", "100%", "$HOME", "\"\\", "", ";", "tab\there", "ä"];
    let line = wrapped_with("ExecStart=/bin/x", &options).unwrap().remove(0);
    let expected: Vec<String> =
        options.iter().map(|word| word.replace('%', "%%").replace('$', "$$")).collect();
    assert_eq!(words(&line)[2..11], expected, "{line}");
    let line = wrapped_with("ExecStart=:/bin/x", &["$HOME"]).unwrap().remove(0);
    assert_eq!(line, ":/usr/bin/hugelift run $HOME -- /bin/x");
}

#[test]
fn issue_33_a_forking_unit_without_a_file_of_its_pid_is_lifted_at_once() {
    let forking = "ExecStart=/bin/x\nType=forking\n";
    let eager = ["/usr/bin/hugelift run --eager -- /bin/x"];
    assert_eq!(wrapped(forking).unwrap(), eager);
    assert_eq!(wrapped_with(forking, &["--eager"]).unwrap(), eager);
    let plain = ["/usr/bin/hugelift run -- /bin/x"];
    assert_eq!(wrapped(&format!("{forking}PIDFile=/run/x.pid")).unwrap(), plain);
}

#[test]
fn issue_33_notes_say_what_may_surprise() {
    let notes = |section: &str| {
        let unit = Unit::read([format!("[Service]\nExecStart={section}").as_str()]).unwrap();
        wrap("x.service", &unit, HUGELIFT, &[]).unwrap().notes
    };
    for (section, says) in [
        ("/bin/sh -c 'exec /bin/x'", "--children lift"),
        ("/usr/bin/env x", "--children lift"),
        ("x", "looked up"),
        ("/bin/x\nSystemCallFilter=@system-service", "hugelift attach --watch --unit x.service"),
        ("/bin/x\nRestrictNamespaces=yes", "--seccomp try"),
        ("/bin/x\nMemoryMax=1G", "--spare SIZE"),
        ("/bin/x\nType=oneshot", "gains nothing"),
    ] {
        let notes = notes(section);
        assert!(notes.len() == 1 && notes[0].contains(says), "{section}: {notes:?}");
    }
    for none in
        ["/bin/x", "/bin/x\nProtectClock=no", "/bin/x\nMemoryMax=infinity", "/bin/x\nProtectSystem=strict"]
    {
        assert!(notes(none).is_empty(), "{none}");
    }
    let all = "[Service]\nExecStart=/bin/sh x\nMemoryMax=1G\nLockPersonality=yes";
    let options = ["--seccomp=try", "--spare", "64M", "--children", "lift"].map(String::from);
    assert!(wrap("x.service", &Unit::read([all]).unwrap(), HUGELIFT, &options).unwrap().notes.is_empty());
}

#[test]
fn issue_33_names_of_services_and_of_their_drop_ins() {
    for (name, full) in [("mariadb", "mariadb.service"), ("a@b", "a@b.service"), ("a@.service", "a@.service")]
    {
        assert_eq!(service(name).unwrap(), full);
    }
    for wrong in ["", "a.socket", "../x", "a b", "a\nb.service", "@x", ".service"] {
        let error = service(wrong).unwrap_err();
        assert!(!error.is_empty(), "{wrong}");
    }
    assert_eq!(drop_in_names("x.service"), ["x.service", "service"]);
    let names = ["a-b@c-d.service", "a-.service", "a-b@.service", "service"];
    assert_eq!(drop_in_names("a-b@c-d.service"), names);
    assert_eq!(drop_in_names("a-b-c.service"), ["a-b-c.service", "a-b-.service", "a-.service", "service"]);
}

fn word() -> impl Strategy<Value = String> {
    "[a-z/$%;\"'\\\\ #=\u{e4}\t\u{1}-]{0,8}"
}

proptest! {
    #[test]
    fn issue_33_a_quoted_word_is_read_back(word in word()) {
        let text = quoted(&word, Variables::Expanded);
        prop_assert!(!text.contains('\n'));
        prop_assert_eq!(words(&text), [word.replace('%', "%%").replace('$', "$$")]);
        // As part of a line it is no continued line, no comment and no separator.
        let line = format!("[S]\nK=x {text}");
        let read = assignments(&line);
        prop_assert_eq!(words(&read[0].value).len(), 2);
    }

    #[test]
    fn issue_33_the_words_of_a_command_stay(
        prefixes in "(-|:|\\+|!){0,3}",
        program in "/[a-z $%\"'\\\\]{0,8}",
        arguments in prop::collection::vec(word(), 0..5),
        options in prop::collection::vec(word(), 0..3),
    ) {
        let is_plain = if prefixes.contains(':') { Variables::Plain } else { Variables::Expanded };
        let quote = |word: &String| quoted(word, is_plain);
        let arguments = arguments.iter().map(quote).collect::<Vec<_>>().join(" ");
        // systemd puts no variables into the program.
        let program = quoted(&program, Variables::Plain);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let line = wrapped_with(&format!("ExecStart={prefixes}{program} {arguments}"), &options).unwrap().remove(0);
        let got = words(&line);
        prop_assert_eq!(&got[..2], &[format!("{prefixes}{HUGELIFT}"), "run".into()]);
        let program = unquoted(&program);
        let program = if is_plain == Variables::Plain { program } else { program.replace('$', "$$") };
        let mut expected = vec!["--".to_string(), program];
        expected.extend(words(&arguments));
        prop_assert_eq!(&got[2 + options.len()..], &expected);
    }

    #[test]
    fn issue_33_any_text_is_wrapped_once_or_refused(
        text in "(\\[Service\\]\n|ExecStart=|Type=forking|/bin/x|[-@:+!|;\"'\\\\$% #]|\n|\\PC){0,30}",
    ) {
        let Ok(unit) = Unit::read([text.as_str()]) else { return Ok(()) };
        let Ok(made) = wrap("x.service", &unit, HUGELIFT, &[]) else { return Ok(()) };
        prop_assert!(made.text.starts_with(MARK));
        let both = Unit::read([text.as_str(), &made.text]).expect("a unit");
        prop_assert!(both.is_wrapped() && both.commands.len() == unit.commands.len(), "{}", made.text);
        let refused = matches!(wrap("x.service", &both, HUGELIFT, &[]), Err(Refusal::Wrapped(_)));
        prop_assert!(refused);
    }
}
