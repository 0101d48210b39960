// SPDX-License-Identifier: Apache-2.0
//! The messages of generic netlink (netlink(7), Documentation/userspace-api/netlink/intro.rst in Linux) that ask the
//! kernel for the figures of a process. All numbers are in the byte order of the machine.

use nix::errno::Errno;

/// Bytes of `struct nlmsghdr` and of `struct genlmsghdr` behind it.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// Bytes in front of the payload of an attribute.
const ATTRIBUTE: usize = 4;

/// The attribute number without its two flags.
const NUMBER: u16 = 0x3fff;

/// A request: a command of a family, with one attribute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub family: u16,
    pub command: u8,
    pub attribute: u16,
    pub payload: &'a [u8],
}

impl Request<'_> {
    /// Returns its bytes. The answer has the same sequence number.
    pub(super) fn bytes(&self, sequence: u32) -> Vec<u8> {
        let length = ATTRIBUTE + self.payload.len();
        let mut attribute = (length as u16).to_ne_bytes().to_vec();
        attribute.extend(self.attribute.to_ne_bytes());
        attribute.extend(self.payload);
        attribute.resize(length.next_multiple_of(4), 0);
        let mut bytes = ((HEADER + GENERIC + attribute.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(self.family.to_ne_bytes());
        bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // The port of the sender, which the kernel knows.
        bytes.extend(0_u32.to_ne_bytes());
        // The version of the family's commands, and two bytes of padding.
        bytes.extend([self.command, 1, 0, 0]);
        bytes.extend(attribute);
        bytes
    }
}

/// An answer of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer<'a> {
    /// The attributes.
    Attributes(&'a [u8]),
    /// The request failed.
    Failed(Errno),
    /// The answer to another request, or no message.
    Other,
}

/// Reads the first message in `bytes`.
pub(super) fn answer(bytes: &[u8], sequence: u32) -> Answer<'_> {
    let (Some(length), Some(kind), Some(number)) = (word(bytes, 0), half(bytes, 4), word(bytes, 8)) else {
        return Answer::Other;
    };
    let body = bytes.get(HEADER..length as usize);
    match body {
        _ if number != sequence => Answer::Other,
        Some(body) if i32::from(kind) == libc::NLMSG_ERROR => match word(body, 0) {
            Some(code) if code != 0 => Answer::Failed(Errno::from_raw(code.cast_signed().wrapping_neg())),
            _ => Answer::Other,
        },
        Some(body) => body.get(GENERIC..).map_or(Answer::Other, Answer::Attributes),
        None => Answer::Other,
    }
}

/// Returns the payload of the first attribute with this number.
pub(super) fn attribute(mut bytes: &[u8], number: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(half(bytes, 0)?);
        let payload = bytes.get(ATTRIBUTE..length)?;
        if half(bytes, 2)? & NUMBER == number {
            return Some(payload);
        }
        bytes = bytes.get(length.next_multiple_of(4)..)?;
    }
}

/// Returns the number of 16 bits at `at`.
pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REQUEST: Request = Request { family: 27, command: 1, attribute: 2, payload: b"abcde" };

    #[test]
    fn issue_31_9_a_request_is_as_the_kernel_reads_it() {
        let bytes = REQUEST.bytes(9);
        // Length, family and flags, sequence, port; command and version; the attribute, padded to four bytes.
        let want: [&[u8]; 7] = [
            &32_u32.to_ne_bytes(),
            &[27_u16.to_ne_bytes(), 1_u16.to_ne_bytes()].concat(),
            &9_u32.to_ne_bytes(),
            &[0; 4],
            &[1, 1, 0, 0],
            &[9_u16.to_ne_bytes(), 2_u16.to_ne_bytes()].concat(),
            b"abcde\0\0\0",
        ];
        assert_eq!(bytes, want.concat());
        assert_eq!(answer(&bytes, 8), Answer::Other);
        let Answer::Attributes(attributes) = answer(&bytes, 9) else { panic!("attributes") };
        assert_eq!((attribute(attributes, 2), attribute(attributes, 3)), (Some(&b"abcde"[..]), None));
    }

    #[test]
    fn issue_31_9_an_error_is_its_errno() {
        let error = |code: i32| {
            let mut bytes = 20_u32.to_ne_bytes().to_vec();
            bytes.extend((libc::NLMSG_ERROR as u16).to_ne_bytes());
            bytes.extend([0; 2]);
            bytes.extend(5_u32.to_ne_bytes());
            bytes.extend([0; 4]);
            bytes.extend(code.to_ne_bytes());
            bytes
        };
        assert_eq!(answer(&error(-libc::ESRCH), 5), Answer::Failed(Errno::ESRCH));
        // Nothing failed, or the number is cut.
        assert_eq!(answer(&error(0), 5), Answer::Other);
        assert_eq!(answer(&error(-1)[..18], 5), Answer::Other);
        let _ = answer(&error(i32::MIN), 5);
    }

    #[test]
    fn issue_31_9_attributes_inside_of_attributes() {
        let one = |number: u16, payload: &[u8]| {
            let bytes = Request { attribute: number, payload, ..REQUEST }.bytes(1);
            bytes[HEADER + GENERIC..].to_vec()
        };
        // The flag of an attribute with attributes in it is no part of its number.
        let outer = one(5 | 0x8000, &[one(2, &7_u32.to_ne_bytes()), one(3, &[1; 12])].concat());
        let inner = attribute(&outer, 5).expect("the outer one");
        assert_eq!(
            (attribute(inner, 3), attribute(inner, 2).and_then(|p| half(p, 0))),
            (Some(&[1; 12][..]), Some(7))
        );
        // A length that is too small to hold its own header does not loop.
        assert_eq!(attribute(&[2, 0, 9, 0, 1, 1, 1, 1], 1), None);
        assert_eq!(attribute(&[0, 0, 9, 0, 1, 1, 1, 1], 1), None);
    }

    proptest! {
        #[test]
        fn issue_31_9_no_message_hurts(bytes in prop::collection::vec(any::<u8>(), 0..80), number in 0u16..4) {
            if let Answer::Attributes(attributes) = answer(&bytes, 0) {
                let _ = attribute(attributes, number);
            }
            let _ = attribute(&bytes, number);
        }
    }
}
