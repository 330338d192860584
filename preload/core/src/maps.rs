//! A line of `/proc/self/maps`.

/// A mapping of the process, as far as a line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    /// The first address.
    pub start: u64,
    /// The address after the last one.
    pub end: u64,
    /// Whether stores reach the file.
    pub is_shared: bool,
    /// The device of the file: major and minor number.
    pub device: (u32, u32),
    /// The number of the inode.
    pub inode: u64,
}

impl Line {
    /// Reads "start-end perms offset device inode path". `None` for anything else.
    pub fn parse(line: &[u8]) -> Option<Line> {
        let mut words = line
            .split(|byte| *byte == b' ')
            .filter(|word| !word.is_empty());
        let mut range = words.next()?.split(|byte| *byte == b'-');
        let hexadecimal = |digits: &[u8]| {
            let digits = std::str::from_utf8(digits).ok()?;
            u64::from_str_radix(digits, 16).ok()
        };
        let (start, end) = (hexadecimal(range.next()?)?, hexadecimal(range.next()?)?);
        let is_shared = words.next()?.get(3) == Some(&b's');
        let mut device = words.nth(1)?.split(|byte| *byte == b':');
        let mut number = || u32::try_from(hexadecimal(device.next()?)?).ok();
        let device = (number()?, number()?);
        let inode = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        Some(Line {
            start,
            end,
            is_shared,
            device,
            inode,
        })
    }

    /// Whether an address lies in the mapping.
    pub fn has(&self, at: u64) -> bool {
        (self.start..self.end).contains(&at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_tells_range_sharing_device_and_inode() {
        let shared = b"7f0000000000-7f0000002000 rw-s 00100000 00:1f 4242    /dev/shm/a b";
        let line = Line::parse(shared).unwrap();
        assert_eq!((line.start, line.end), (0x7f00_0000_0000, 0x7f00_0000_2000));
        assert!(line.is_shared && line.inode == 4242 && line.device == (0, 0x1f));
        assert!(line.has(line.start) && line.has(line.end - 1));
        assert!(!line.has(line.end) && !line.has(line.start - 1));
        let private = b"7f0000000000-7f0000002000 rw-p 00100000 00:1f 4242    /dev/shm/a b";
        assert!(!Line::parse(private).unwrap().is_shared);
        let anonymous = b"7f0000000000-7f0000002000 rw-p 00000000 00:00 0";
        assert_eq!(Line::parse(anonymous).unwrap().inode, 0);
    }

    #[test]
    fn line_that_is_cut_or_strange_is_none() {
        let whole = "7f0000000000-7f0000002000 rw-s 00100000 00:1f 4242";
        for line in ["", "strange", "7f00 rw-s 0 0:0 1", "7f00-7fzz rw-s 0 0:0 1"] {
            assert_eq!(Line::parse(line.as_bytes()), None, "{line}");
        }
        // Without its last word.
        let cut = whole.rsplit_once(' ').unwrap().0;
        assert_eq!(Line::parse(cut.as_bytes()), None);
    }
}
