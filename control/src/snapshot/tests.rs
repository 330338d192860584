use std::sync::Mutex;

use super::*;

/// Blocks that hold their number, of 512 bytes.
#[derive(Default)]
struct Numbers {
    released: Mutex<Vec<u64>>,
}

fn plan() -> SnapshotPlan {
    SnapshotPlan {
        block_size: 512,
        fixed: vec![0..2, 9..10],
        per_group: 4096,
        bitmaps: vec![Some(3), None],
    }
}

impl SnapshotSource for Numbers {
    fn plan(&self) -> SnapshotPlan {
        plan()
    }

    fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Failed> {
        if first == 77 {
            return Err((libc_eio(), "the page has failed".into()));
        }
        for (number, block) in (first..).zip(into.chunks_mut(512)) {
            block.fill(number as u8);
        }
        Ok(())
    }

    fn release_fixed(&self) {
        self.released.lock().unwrap().push(0);
    }

    fn release_below(&self, block: u64) {
        self.released.lock().unwrap().push(block);
    }

    fn files(&self) -> Result<Vec<SnapshotFile>, Failed> {
        let path = Some("/a\n\"b\"".to_owned());
        Ok(vec![SnapshotFile { inode: 12, path }])
    }
}

fn libc_eio() -> i32 {
    rustix::io::Errno::IO.raw_os_error()
}

/// Serves in a thread while `client` runs. Returns what the server's side returned.
fn with_server(
    source: Result<&(dyn SnapshotSource + Sync), Failed>,
    client: impl FnOnce(UnixStream),
) -> io::Result<()> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        let serve = move || serve_snapshot(theirs, source.map(|s| s as &dyn SnapshotSource));
        let server = scope.spawn(serve);
        client(ours);
        server.join().unwrap()
    })
}

#[test]
fn reader_gets_plan_blocks_and_files() {
    let source = Numbers::default();
    let served = with_server(Ok(&source), |socket| {
        let reader = SnapshotReader::new(socket).unwrap();
        assert_eq!(reader.plan(), &plan());
        // More than one request.
        let mut blocks = vec![0; 512 * 3000];
        reader.read(5, &mut blocks).unwrap();
        let expected = (5u64..3005).flat_map(|number| [number as u8; 512]);
        assert!(blocks.iter().copied().eq(expected));
        reader.release_fixed().unwrap();
        reader.release_below(3005).unwrap();
        assert_eq!(reader.files().unwrap(), source.files().unwrap());
    });
    served.unwrap();
    assert_eq!(*source.released.lock().unwrap(), [0, 3005]);
}

#[test]
fn failed_read_says_why_and_next_works() {
    let source = Numbers::default();
    let served = with_server(Ok(&source), |socket| {
        let reader = SnapshotReader::new(socket).unwrap();
        let mut block = [0; 512];
        let failed = reader.read(77, &mut block).unwrap_err();
        assert_eq!(failed.to_string(), "the page has failed");
        reader.read(78, &mut block).unwrap();
        assert_eq!(block, [78; 512]);
    });
    served.unwrap();
}

#[test]
fn refused_snapshot_says_why() {
    let served = with_server(Err((16, "another runs".into())), |socket| {
        let failed = SnapshotReader::new(socket).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(failed.to_string(), "another runs");
    });
    served.unwrap();
}

#[test]
fn senseless_request_ends_the_snapshot() {
    for request in [[9, 0, 0], [READ, 0, u64::MAX], [READ, 0, 1 << 40]] {
        let source = Numbers::default();
        let served = with_server(Ok(&source), |socket| {
            let reader = SnapshotReader::new(socket).unwrap();
            reader.send(request).unwrap();
            let ended = receive(&reader.socket, &mut Vec::new()).unwrap_err();
            assert_eq!(ended.to_string(), "the server has ended");
        });
        let kind = served.unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::InvalidData, "{request:?}");
    }
}

#[test]
fn senseless_plan_is_refused() {
    let good = encode(&plan());
    assert_eq!(decode(&good), Some(plan()));
    for len in 0..good.len() {
        assert_eq!(decode(&good[..len]), None, "{len} bytes");
    }
    for (word, value) in [
        (0, 511),
        (0, 1 << 30),
        (1, 0),
        (1, 65),
        (2, u64::MAX),
        (3, 7),
    ] {
        let mut bad = good.clone();
        bad[word * 8..][..8].copy_from_slice(&u64::to_le_bytes(value));
        assert_eq!(decode(&bad), None, "word {word} is {value}");
    }
}
