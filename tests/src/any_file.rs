//! A program that does not know whether its file is in its process or by a lease.

use std::io;

use pramfs_medium::pmem::direct::DirectFile;
use pramfs_medium::types::Access;

/// Appends records to an empty file and counts them in its first word.
///
/// # Errors
/// Those of the file; what it shows that it should not.
pub fn count_records(file: &dyn DirectFile, records: u64) -> io::Result<()> {
    let expect = |right: bool, what: &str| match right {
        true => Ok(()),
        false => Err(io::Error::other(what.to_owned())),
    };
    expect(file.append(&0u64.to_le_bytes())? == 0, "the file is empty")?;
    for i in 0..records {
        let at = file.append(&[i as u8; 100])?;
        expect(at == 8 + 100 * i, "the place of a record")?;
        let view = file.view(0..8, Access::Write)?;
        expect(view.fetch_add_u64(0, 1)? == i, "the count before")?;
        view.persist(0..8)?;
    }
    expect(file.size()? == 8 + 100 * records, "the size")?;
    let all = file.view(0..file.size()?, Access::Read)?;
    expect(all.load_u64(0)? == records, "the count")?;
    let past = all.load_u64(file.size()?.next_multiple_of(8));
    expect(past.is_err(), "a load past the end")?;
    let mut record = [0; 100];
    all.read(8, &mut record)?;
    expect(record == [0; 100], "the first record")?;
    expect(file.write_at(b"xyz", 8)? == 3, "three bytes")?;
    expect(
        file.read_at(&mut record, 8)? == 100 && record[..4] == *b"xyz\0",
        "them",
    )?;
    let refused = all.store_u64(0, 7);
    expect(refused.is_err(), "a store to a view for reading")?;
    let view = file.view(0..16, Access::Write)?;
    let changed = view.compare_exchange_u64(0, records, 1)?;
    expect(changed == Ok(records), "the right count")?;
    let changed = view.compare_exchange_u64(0, records, 2)?;
    expect(changed == Err(1), "the wrong count")?;
    view.write(8, b"abc")?;
    expect(view.size() == 16, "the length of the view")
}
