//! Extensions at the end of requests that make a node.
//!
//! Each begins with its size and its type, and has a multiple of 8 bytes. A type up to 31
//! stands for security contexts, and is their number.

use zerocopy::FromBytes;

use crate::error::RequestError;
use crate::numbers::{EXT_GROUPS, MAX_NR_SECCTX};
use crate::opcode::Opcode;
use crate::rules::Rules;
use crate::wire::{ExtHeader, Secctx, SuppGroups};

/// Extensions and their structures lie at multiples of this.
pub(crate) const ALIGN: usize = 8;

/// The extensions of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// Supplementary groups of the caller that matter for the new node.
    pub groups: Option<Groups<'a>>,
    /// Security contexts of the new node.
    pub contexts: Option<SecurityContexts<'a>>,
}

/// Numbers of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups<'a>(&'a [u8]);

impl<'a> Groups<'a> {
    /// Returns the numbers.
    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        let each = self.0.chunks_exact(size_of::<u32>());
        each.filter_map(|bytes| u32::read_from_bytes(bytes).ok())
    }
}

/// Security contexts, all of them checked.
#[derive(Clone, Copy, Debug)]
pub struct SecurityContexts<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> SecurityContexts<'a> {
    /// Returns the name and the value of each.
    pub fn iter(self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| context(&mut rest))
    }
}

/// By names and values: what pads them means nothing.
impl PartialEq for SecurityContexts<'_> {
    fn eq(&self, other: &SecurityContexts<'_>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for SecurityContexts<'_> {}

/// Takes `n` bytes from the front.
fn take<'a>(rest: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(n)?;
    *rest = left;
    Some(taken)
}

/// Takes a security context with the bytes that pad it.
fn context<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let before = rest.len();
    let head = Secctx::read_from_bytes(take(rest, Secctx::SIZE)?).ok()?;
    let end = rest.iter().position(|b| *b == 0).filter(|end| *end > 0)?;
    let name = take(rest, end)?;
    take(rest, 1)?;
    let value = take(rest, usize::try_from(head.size).ok()?)?;
    let padding = before.checked_sub(rest.len())?.wrapping_neg() % ALIGN;
    take(rest, padding)?;
    Some((name, value))
}

fn groups(bytes: &[u8]) -> Option<Groups<'_>> {
    let mut rest = bytes;
    let head = SuppGroups::read_from_bytes(take(&mut rest, SuppGroups::SIZE)?).ok()?;
    let len = usize::try_from(head.nr_groups).ok()?.checked_mul(4)?;
    let numbers = take(&mut rest, len)?;
    (rest.len() < ALIGN).then_some(Groups(numbers))
}

fn contexts(count: u32, bytes: &[u8]) -> Option<SecurityContexts<'_>> {
    let mut rest = bytes;
    for _ in 0..count {
        context(&mut rest)?;
    }
    rest.is_empty().then_some(SecurityContexts { count, bytes })
}

impl<'a> Extensions<'a> {
    /// Checks extensions.
    pub(crate) fn parse(
        op: Opcode,
        mut rest: &'a [u8],
        rules: &Rules,
    ) -> Result<Extensions<'a>, RequestError> {
        let malformed = |why| RequestError::Extension(op, why);
        let mut all = Extensions::default();
        while !rest.is_empty() {
            let (head, _) = ExtHeader::read_from_prefix(rest).map_err(|_| malformed("header"))?;
            let size = usize::try_from(head.size).map_err(|_| malformed("size"))?;
            if size < ExtHeader::SIZE || size % ALIGN != 0 {
                return Err(malformed("size"));
            }
            let bytes = take(&mut rest, size).ok_or(malformed("size"))?;
            let bytes = bytes.get(ExtHeader::SIZE..).unwrap_or_default();
            let twice = match head.kind {
                EXT_GROUPS if rules.supplementary_groups => {
                    let found = groups(bytes).ok_or(malformed("groups"))?;
                    all.groups.replace(found).is_some()
                }
                count if count <= MAX_NR_SECCTX && rules.security_contexts => {
                    let found = contexts(count, bytes).ok_or(malformed("security contexts"))?;
                    all.contexts.replace(found).is_some()
                }
                _ => return Err(malformed("unknown or not negotiated")),
            };
            if twice {
                return Err(malformed("twice"));
            }
        }
        Ok(all)
    }
}
