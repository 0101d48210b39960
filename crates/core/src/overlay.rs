// SPDX-License-Identifier: Apache-2.0
//! The layers of an overlay (overlayfs), as `/proc/self/mountinfo` shows them, and where a file of it can lie in them.
//!
//! A container's files lie in the layers of its image. The program that mounted the overlay has given the paths of the layers:
//! containerd and Docker shorten them to paths below the folder that has all layers.
//!
//! Only lower layers count. The container writes to the upper one, so a path in it leads tomorrow where the container wants.

use crate::mounts::{Device, mount};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The folders that have all layers: of Podman and CRI-O, of Docker, of containerd, and of programs that build on it (k3s).
const STORES: [&str; 4] = [
    "/var/lib/containers/storage/overlay",
    "/var/lib/docker/overlay2",
    "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots",
    "/var/lib/rancher/k3s/agent/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots",
];
/// More layers than images have: Docker allows 127.
const MOST_LAYERS: usize = 128;

/// A mounted overlay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Overlay {
    /// Its device.
    pub device: Device,
    /// The layer that is written to.
    upper: Option<PathBuf>,
    /// The other layers, the uppermost first.
    lower: Vec<PathBuf>,
}

/// Parses `/proc/self/mountinfo` (proc_pid_mountinfo(5)). A line that cannot be understood is left out. What a process of
/// another user mounts must not be parsed: it says that any folder is a layer.
pub fn parse(mountinfo: &[u8]) -> Vec<Overlay> {
    mountinfo.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// Returns the folders that can hold the files of the overlay `device`. A file in an earlier folder hides files of the same
/// name in later ones.
pub fn layers(overlays: &[Overlay], device: Device) -> Vec<PathBuf> {
    overlays.iter().find(|one| one.device == device).map(Overlay::layers).unwrap_or_default()
}

impl Overlay {
    fn layers(&self) -> Vec<PathBuf> {
        self.lower.iter().flat_map(|layer| self.whole(layer)).collect()
    }

    /// Returns the paths that a layer can have: itself, or below the folders that have all layers.
    fn whole(&self, layer: &Path) -> Vec<PathBuf> {
        if layer.has_root() {
            return vec![layer.into()];
        }
        // The upper layer is `ID/diff` or `NUMBER/fs` there.
        let upper = self.upper.as_ref().filter(|upper| upper.has_root());
        let own = upper.and_then(|upper| upper.parent()?.parent()).map(Path::to_path_buf);
        let stores: Vec<PathBuf> = match own {
            Some(own) => vec![own],
            None => STORES.map(PathBuf::from).into(),
        };
        stores.into_iter().map(|store| store.join(layer)).collect()
    }
}

/// Parses `77 50 0:41 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a:/b,upperdir=/c,workdir=/d`.
fn line(line: &[u8]) -> Option<Overlay> {
    let (device, mut words) = mount(line)?;
    if words.next()? != b"overlay" {
        return None;
    }
    let (upper, lower) = split_options(words.nth(1)?);
    Some(Overlay { device, upper, lower })
}

/// Returns the layers in the options: the upper one, and the lower ones in their order.
fn split_options(options: &[u8]) -> (Option<PathBuf>, Vec<PathBuf>) {
    let (mut upper, mut lower) = (None, Vec::new());
    for option in options.split(|byte| *byte == b',') {
        let Some(at) = option.iter().position(|byte| *byte == b'=') else { continue };
        let (key, value) = (&option[..at], unescaped(&option[at + 1..]));
        match key {
            b"upperdir" => upper = Some(path(&without_backslashes(&value))),
            b"lowerdir" => lower.extend(split(&value)),
            b"lowerdir+" | b"datadir+" => lower.push(path(&value)),
            _ => {}
        }
    }
    lower.truncate(MOST_LAYERS);
    (upper, lower)
}

/// Splits a list of layers at each `:` without a backslash before it.
fn split(list: &[u8]) -> Vec<PathBuf> {
    let (mut all, mut one, mut is_escaped) = (Vec::new(), Vec::new(), false);
    for byte in list.iter().copied().chain([b':']) {
        match (byte, is_escaped) {
            (b'\\', false) => is_escaped = true,
            (b':', false) => all.push(std::mem::take(&mut one)),
            _ => {
                one.push(byte);
                is_escaped = false;
            }
        }
    }
    // An empty one stands before layers of data.
    all.into_iter().filter(|one| !one.is_empty()).map(|one| path(&one)).collect()
}

fn without_backslashes(text: &[u8]) -> Vec<u8> {
    let (mut all, mut is_escaped) = (Vec::new(), false);
    for byte in text {
        is_escaped = *byte == b'\\' && !is_escaped;
        if !is_escaped {
            all.push(*byte);
        }
    }
    all
}

/// Replaces `\040` and the like by the bytes that they stand for (`mangle_path` and `seq_escape` of the kernel).
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut all = Vec::with_capacity(text.len());
    let mut left = text;
    while let Some((first, rest)) = left.split_first() {
        let octal = rest.get(..3).filter(|_| *first == b'\\').and_then(octal);
        all.push(octal.unwrap_or(*first));
        left = if octal.is_some() { &rest[3..] } else { rest };
    }
    all
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    u8::from_str_radix(digits, 8).ok()
}

fn path(bytes: &[u8]) -> PathBuf {
    OsString::from_vec(bytes.to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(options: &str) -> Vec<String> {
        let line = format!("77 50 0:41 / / rw,relatime shared:1 - overlay overlay rw,{options}\n");
        let layers = layers(&parse(line.as_bytes()), (0, 41));
        layers.into_iter().map(|layer| layer.into_os_string().into_string().expect("text")).collect()
    }

    #[test]
    fn issue_33_7_the_layers_of_real_mounts() {
        let podman =
            "lowerdir=/s/overlay/l/GB,upperdir=/s/overlay/2d/diff,workdir=/s/overlay/2d/work,uuid=on";
        assert_eq!(of(podman), ["/s/overlay/l/GB"]);
        let docker = "lowerdir=l/AA:l/BB,upperdir=/d/overlay2/7/diff,workdir=/d/overlay2/7/work";
        assert_eq!(of(docker), ["/d/overlay2/l/AA", "/d/overlay2/l/BB"]);
        let containerd = "lowerdir=2/fs:1/fs,upperdir=/c/snapshots/3/fs,workdir=/c/snapshots/3/work";
        assert_eq!(of(containerd), ["/c/snapshots/2/fs", "/c/snapshots/1/fs"]);
        assert_eq!(of("lowerdir+=/a,lowerdir+=/b,datadir+=/c"), ["/a", "/b", "/c"]);
        assert_eq!(of("lowerdir=l/AA").len(), STORES.len());
        assert_eq!(of("lowerdir=/a::/data"), ["/a", "/data"]);
        let many: Vec<String> = (0..600).map(|number| format!("lowerdir+=/{number}")).collect();
        assert_eq!(of(&many.join(",")).len(), MOST_LAYERS);
    }

    #[test]
    fn issue_33_7_names_with_signs_that_are_escaped() {
        // The mount option has `/a\:b`, and the kernel writes the backslash as \134.
        assert_eq!(of(r"lowerdir=/a\134:b:/c\040d\054e"), ["/a:b", "/c d,e"]);
        assert_eq!(of(r"lowerdir=1/fs,upperdir=/u\134\134x/2/fs"), [r"/u\x/1/fs"]);
    }

    #[test]
    fn issue_33_7_the_overlay_of_a_device() {
        let text = b"70 1 0:40 / / rw - ext4 /dev/vda rw\n\
            71 70 0:41 /sub /m rw - overlay overlay rw,lowerdir=/a\n\
            72 71 0:42 / /m/inner rw - overlay overlay rw,lowerdir=/b\n\
            nonsense\n74 70 0:x / /y rw - overlay overlay rw,lowerdir=/a\n75 70 0:44 / /z rw - overlay\n";
        let overlays = parse(text);
        assert_eq!(overlays.len(), 2);
        assert_eq!(layers(&overlays, (0, 41)), [PathBuf::from("/a")]);
        assert_eq!(layers(&overlays, (0, 42)), [PathBuf::from("/b")]);
        assert!(layers(&overlays, (0, 40)).is_empty());
    }

    proptest! {
        #[test]
        fn issue_33_7_any_text_has_layers_with_a_root(
            options in "(lowerdir=|upperdir=|,|:|/|[a-z]|\\\\|\\\\13[0-9]|\\.\\.|\\PC){0,20}",
        ) {
            let line = format!("77 50 0:41 / / rw - overlay overlay rw,{options}\n");
            for layer in layers(&parse(line.as_bytes()), (0, 41)) {
                prop_assert!(layer.has_root());
            }
        }
    }
}
