//! The label of a file system in the names of links.

/// Returns a label for a link of `/dev/disk/by-label`, as `udevadm` and mount(8) write it: each
/// byte that is neither plain nor of a printable character beyond ASCII is `\xNN`. A name of dots
/// alone would be a directory, so its first dot is escaped too.
pub fn encoded(label: &[u8]) -> String {
    let escape = |byte: &u8| format!("\\x{byte:02x}");
    if !label.is_empty() && label.iter().all(|&byte| byte == b'.') {
        return escape(&b'.') + &encoded_part(&label[1..], escape);
    }
    encoded_part(label, escape)
}

/// Whether a byte of ASCII stays as it is.
pub fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte)
}

fn encoded_part(label: &[u8], escape: impl Fn(&u8) -> String) -> String {
    let mut text = String::new();
    for chunk in label.utf8_chunks() {
        for c in chunk.valid().chars() {
            let is_kept = match u8::try_from(c) {
                Ok(byte) if c.is_ascii() => is_plain(byte),
                _ => !c.is_control() && !c.is_whitespace(),
            };
            if is_kept {
                text.push(c);
            } else {
                text.extend(c.encode_utf8(&mut [0; 4]).as_bytes().iter().map(&escape));
            }
        }
        text.extend(chunk.invalid().iter().map(&escape));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn label_is_encoded_as_in_its_link() {
        assert_eq!(encoded(b"three words/x"), "three\\x20words\\x2fx");
        assert_eq!(encoded("a#+-.:=@_\u{e9}".as_bytes()), "a#+-.:=@_\u{e9}");
        assert_eq!(encoded(b".."), "\\x2e.");
        assert_eq!(encoded("\u{a0}".as_bytes()), "\\xc2\\xa0");
    }
}
