//! Names in requests.

use crate::error::RequestError;
use crate::opcode::Opcode;
use crate::reader::Reader;
use crate::rules::{Rules, XATTR_NAME_MAX};

/// Takes a name in a directory: one component, ended by a NUL. A lookup may also ask for
/// `.` and `..`, which the kernel does for exports.
pub(crate) fn component<'a>(
    from: &mut Reader<'a>,
    op: Opcode,
    rules: &Rules,
) -> Result<&'a [u8], RequestError> {
    let name = from.until_nul("name")?;
    let dots = matches!(name, b"." | b"..");
    if name.is_empty() || name.contains(&b'/') || (dots && op != Opcode::Lookup) {
        return Err(RequestError::Name(op));
    }
    bounded(name, op, rules.name_max)
}

/// Takes the name of an extended attribute, which may have slashes.
pub(crate) fn attribute<'a>(from: &mut Reader<'a>, op: Opcode) -> Result<&'a [u8], RequestError> {
    let name = from.until_nul("name")?;
    if name.is_empty() {
        return Err(RequestError::Name(op));
    }
    bounded(name, op, XATTR_NAME_MAX)
}

/// Takes the target of a symbolic link.
pub(crate) fn target<'a>(
    from: &mut Reader<'a>,
    op: Opcode,
    rules: &Rules,
) -> Result<&'a [u8], RequestError> {
    let target = from.until_nul("target")?;
    if target.is_empty() {
        return Err(RequestError::Name(op));
    }
    bounded(target, op, rules.target_max)
}

fn bounded(name: &[u8], op: Opcode, max: usize) -> Result<&[u8], RequestError> {
    if name.len() > max {
        return Err(RequestError::NameTooLong(op, name.len()));
    }
    Ok(name)
}
