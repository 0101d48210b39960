// SPDX-License-Identifier: Apache-2.0
//! The name of a service, and the names under which systemd looks for its files (systemd.unit(5)).

use crate::service::unit::is_unit_or_template;

/// The type of units that have `ExecStart=` and stay.
const SUFFIX: &str = ".service";

/// Returns the whole name of a service: `mariadb` is `mariadb.service`, as for systemctl(1).
///
/// # Errors
/// It is not the name of a service.
pub fn service(name: &str) -> Result<String, String> {
    let is_typed = [
        ".socket",
        ".target",
        ".timer",
        ".mount",
        ".scope",
        ".slice",
        ".swap",
        ".path",
        ".device",
        ".automount",
    ]
    .iter()
    .any(|suffix| name.ends_with(suffix));
    if is_typed {
        return Err(format!("'{name}' is not a service: only a service has ExecStart="));
    }
    let full = if name.ends_with(SUFFIX) { name.to_string() } else { format!("{name}{SUFFIX}") };
    if is_unit_or_template(&full) { Ok(full) } else { Err(format!("'{name}' is not the name of a unit")) }
}

/// Returns the template of an instance: `foo@.service` of `foo@bar.service`.
pub fn template(name: &str) -> Option<String> {
    let (stem, instance) = name.strip_suffix(SUFFIX)?.split_once('@')?;
    (!instance.is_empty()).then(|| format!("{stem}@{SUFFIX}"))
}

/// Returns the names whose folders `NAME.d` may have drop-ins, the most special first: `a-b.service`, `a-.service` and
/// `service`.
pub fn drop_in_names(name: &str) -> Vec<String> {
    let mut names = Vec::new();
    for name in [Some(name.to_string()), template(name)].into_iter().flatten() {
        let stem = name.strip_suffix(SUFFIX).unwrap_or(&name);
        let at = stem.find('@').unwrap_or(stem.len());
        let dashes = stem[..at].match_indices('-').map(|(at, _)| at).rev();
        let shorter: Vec<String> =
            dashes.filter(|at| at + 1 < stem.len()).map(|at| format!("{}{SUFFIX}", &stem[..=at])).collect();
        names.push(name);
        names.extend(shorter);
    }
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names.push("service".into());
    names
}
