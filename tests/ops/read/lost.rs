//! read of a range that a repair could not restore: EIO until it is written.

use pramfs::inode::SetAttr;
use pramfs::{SeekWhence, XattrMode};
use pramfs_fsck::{CheckOptions, Done, Lost, check};

use crate::support::lost::{
    CX, LIST, bytes, close_and_check, image_of, is_lost, list, open, repair_all, without_a_line,
};

#[test]
fn read_of_lost_range_fails_until_written() {
    for (block, noise) in [(512, true), (512, false), (4096, true), (4096, false)] {
        let step = block as usize;
        let len = 30 * step + 100;
        let (image, ino) = image_of(block, len);
        let whole = bytes(len);
        let (region, report) = repair_all(&without_a_line(&image, ino, 8, noise));
        let done: Vec<_> = report.findings.iter().filter_map(|f| f.done).collect();
        assert!(done.contains(&Done::MarkedLost), "{report}");
        let lost: u64 = (report.lost.iter())
            .filter(|l| l.path.as_deref() == Some(b"/dir/file"))
            .map(|l| match l.what {
                Lost::Bytes { len, .. } => len,
                _ => 0,
            })
            .sum();
        assert_eq!(lost, 8 * u64::from(block), "{:?}", report.lost);
        // A check reports it, but not as damage.
        for told in [&report, &check(&region, &CheckOptions::default())] {
            let [mark] = &told.marked[..] else {
                panic!("{told}")
            };
            let (at, len) = (8 * u64::from(block), 8 * u64::from(block));
            assert_eq!(mark.what, Lost::Bytes { at, len });
            assert_eq!(mark.path.as_deref(), Some(&b"/dir/file"[..]));
        }

        let fs = open(region);
        let mut out = vec![0; len];
        assert_eq!(fs.read(ino, 0, &mut out).unwrap(), 8 * step);
        assert_eq!(out[..8 * step], whole[..8 * step]);
        for at in [8 * step, 9 * step + 3, 16 * step - 1] {
            assert!(is_lost(fs.read(ino, at as u64, &mut out)));
        }
        let n = fs.read(ino, 16 * u64::from(block), &mut out).unwrap();
        assert_eq!(out[..n], whole[16 * step..]);
        assert!(is_lost(
            fs.with_contiguous(ino, 8 * u64::from(block), 9, &mut |_| ())
                .and_then(|lent| match lent {
                    None => fs.read(ino, 8 * u64::from(block), &mut out),
                    Some(_) => panic!("lent"),
                })
        ));
        let range = format!("{}+{}", 8 * step, 8 * step);
        assert_eq!(list(&fs, ino), Some(range));
        let set = fs
            .setxattr(&CX, ino, LIST, b"", XattrMode::Set)
            .unwrap_err();
        let removed = fs.removexattr(ino, LIST).unwrap_err();
        assert_eq!(
            (set.errno(), removed.errno()),
            (libc::EOPNOTSUPP, libc::EOPNOTSUPP)
        );
        let at = 8 * u64::from(block);
        assert_eq!(fs.seek(ino, at, SeekWhence::Data).unwrap(), at);
        assert_eq!(fs.seek(ino, 0, SeekWhence::Hole).unwrap(), len as u64);
        let extents = fs.file_extents(ino, 0, len as u64).unwrap();
        let marked: Vec<_> = extents.iter().filter(|e| e.lost).collect();
        assert!(
            marked.len() == 1 && marked[0].region_offset.is_none(),
            "{extents:?}"
        );
        assert_eq!((marked[0].file_offset, marked[0].len), (at, at));
        // Not damage that stops writing. chattr shows and keeps its own flags.
        assert_eq!(fs.getattr(ino).unwrap().flags, 0);
        let flags = SetAttr {
            flags: Some(0x80),
            ..SetAttr::default()
        };
        assert_eq!(fs.setattr(&CX, ino, &flags).unwrap().flags, 0x80);
        assert!(list(&fs, ino).is_some());

        // One block, then all but one, then that.
        fs.write(&CX, ino, at + u64::from(block), &whole[9 * step..10 * step])
            .unwrap();
        let n = fs.read(ino, at + u64::from(block), &mut out).unwrap();
        assert_eq!(out[..n], whole[9 * step..10 * step]);
        assert!(is_lost(fs.read(ino, at, &mut out)));
        fs.write(
            &CX,
            ino,
            at + 2 * u64::from(block),
            &whole[10 * step..20 * step],
        )
        .unwrap();
        assert_eq!(list(&fs, ino), Some(format!("{at}+{block}")));
        fs.write(&CX, ino, at, &whole[8 * step..9 * step]).unwrap();
        assert_eq!(fs.read(ino, 0, &mut out).unwrap(), len);
        assert_eq!(out, whole);
        assert_eq!(list(&fs, ino), None);
        assert_eq!(fs.lost_ranges(ino).unwrap(), []);
        assert_eq!(close_and_check(fs).marked, []);
    }
}
