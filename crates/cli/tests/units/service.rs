// SPDX-License-Identifier: Apache-2.0
//! hugelift.service, enabled and started as a package installs it: it lifts a service, and what it has lifted stays.

use super::boot::Systemd;
use crate::common::fat;
use crate::skip;
use std::path::Path;

/// Prints a line for each thing that is so.
const SCRIPT: &str = r#"
mkdir -p /etc/hugelift
cp /run/machine/service.toml /etc/hugelift/service.toml
systemctl start served
before=$(pid served)
systemctl enable --now hugelift > enabled 2>&1 || cat enabled
systemctl is-active hugelift
systemctl is-enabled hugelift
[ -L /etc/systemd/system/multi-user.target.wants/hugelift.service ] && echo wanted
for i in $(seq 1200); do
    [ "$(huge "$before")" != huge ] || break
    sleep 0.1
done
huge "$before"
systemctl stop hugelift
systemctl is-active hugelift
systemctl show -p Result hugelift
[ "$(pid served)" = "$before" ] && huge "$before"
systemctl is-active served
systemctl disable hugelift > enabled 2>&1
[ -e /etc/systemd/system/multi-user.target.wants/hugelift.service ] || echo wanted no more
"#;

const TOLD: &str = "active\nenabled\nwanted\nhuge\ninactive\nResult=success\nhuge\nactive\nwanted no more\n";

const POLICY: &str = r#"
[[rule]]
name = "mine"
unit = ["served"]
do = ["code"]

[[rule]]
name = "rest"
do = []
"#;

#[test]
fn issue_33_the_service_is_enabled_and_what_it_lifts_stays() {
    let built = fat("hold").build();
    let dir = tempfile::tempdir().expect("a folder");
    let [served, policy] = ["served", "service.toml"].map(|name| dir.path().join(name));
    std::fs::copy(built, &served).expect("a copy");
    std::fs::write(&policy, POLICY).expect("the policy");
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd");
    let text = std::fs::read_to_string(tree.join("hugelift.service")).expect("the unit");
    let own = text.replace("/usr/bin/hugelift", "/run/machine/hugelift");
    assert_ne!(own, text);
    // Its input is a pipe that stays open, so that the program goes on.
    let unit =
        "[Service]\nExecStart=/bin/sh -c 'exec /run/machine/served burn < <(exec tail -f /dev/null)'\n"
            .replace("/bin/sh", "/bin/bash");
    let units = [("hugelift.service".to_string(), own), ("served.service".to_string(), unit)];
    let system = match Systemd::start(&units, &[&served, &policy]) {
        Ok(system) => system,
        Err(why) => skip!("{why}"),
    };
    let told = system.script(SCRIPT);
    assert_eq!(told, TOLD, "{}", system.log());
}
