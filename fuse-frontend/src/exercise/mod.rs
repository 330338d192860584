//! What a kernel, a guest or a supervisor that lies may send: the fuzz targets of this crate.
//!
//! Each module turns arbitrary bytes into a case, and says in its comment what the bytes mean and
//! what must hold of every input:
//! * `kernel.rs`: requests of a kernel, out of an entry of a ring or out of the buffer of /dev/fuse;
//! * `messages.rs`: messages between supervisor and server, and the record of a connection;
//! * `virtqueue.rs`: the queue and the requests of a guest;
//! * `window.rs`: maps of a guest, beside changes by another door.
//!
//! The test at the end runs the corpora of `fuzz/corpus/`. `PRAMFS_BLESS=1` renews their seeds.

pub mod kernel;
pub mod messages;
pub mod virtqueue;
pub mod window;

use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_fuse_protocol::wire::InHeader;
use pramfs_fuse_protocol::{InitRequest, Opcode, Operation, Request, Rules};

/// INIT of a guest that offers everything.
pub(crate) fn init() -> Vec<u8> {
    let request = Request {
        header: InHeader {
            unique: 1,
            ..InHeader::default()
        },
        opcode: Opcode::Init,
        operation: Operation::Init(InitRequest {
            major: 7,
            minor: 41,
            max_readahead: 4096,
            flags: InitFlags::all().difference(InitFlags::NO_EXPORT_SUPPORT),
        }),
    };
    request.encode(&Rules::BEFORE_INIT)
}

/// Takes numbers and bytes from the input.
pub(crate) struct Input<'i>(pub(crate) &'i [u8]);

impl<'i> Input<'i> {
    pub(crate) fn bytes(&mut self, n: usize) -> Option<&'i [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// A number of `n` bytes, at most eight.
    pub(crate) fn number(&mut self, n: usize) -> Option<u64> {
        let mut number = [0; 8];
        number.get_mut(..n)?.copy_from_slice(self.bytes(n)?);
        Some(u64::from_le_bytes(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Seeds = Vec<(&'static str, Vec<u8>)>;

    /// Runs the corpus of a target, each file also cut, and `random` concatenations of all.
    fn run_corpus(target: &str, seeds: Seeds, random: u64, exercise: fn(&[u8]) -> usize) {
        let corpus = format!("{}/../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let mut reached = 0;
        for (name, bytes) in seeds {
            let path = format!("{corpus}/seed-{name}");
            if std::env::var_os("PRAMFS_BLESS").is_some() {
                std::fs::create_dir_all(&corpus).unwrap();
                std::fs::write(&path, &bytes).unwrap();
            }
            assert_eq!(std::fs::read(&path).expect(&path), bytes, "{path}");
            println!("{path} reaches {}", exercise(&bytes));
            reached += exercise(&bytes);
        }
        assert!(reached >= 8, "the seeds of {target} reach {reached} only");
        let mut cases: Vec<Vec<u8>> = Vec::new();
        for entry in std::fs::read_dir(corpus).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            cases.extend(
                (0..=bytes.len())
                    .step_by(7)
                    .map(|len| bytes[..len].to_vec()),
            );
            cases.push(bytes);
        }
        // Concatenations with bytes between them that come from a simple generator.
        let mut state = 1u64;
        for round in 0..random {
            let mut case = Vec::new();
            for _ in 0..8 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(round);
                let bytes = state.to_be_bytes();
                case.extend(&cases[usize::from(bytes[0]) % cases.len()]);
                case.extend(&bytes[1..1 + usize::from(bytes[7] % 7)]);
            }
            cases.push(case);
        }
        for case in &cases {
            exercise(case);
        }
    }

    #[test]
    fn queues_of_arbitrary_bytes_cause_no_panic() {
        run_corpus("virtqueue", virtqueue::seeds(), 200, virtqueue::exercise);
    }

    #[test]
    fn arbitrary_maps_of_guest_lose_no_store() {
        run_corpus("window", window::seeds(), 100, window::exercise);
    }

    #[test]
    fn arbitrary_requests_of_kernel_are_answered_within_their_room() {
        run_corpus("kernel", kernel::seeds(), 200, kernel::exercise);
    }

    #[test]
    fn arbitrary_messages_of_supervisor_are_refused_or_understood() {
        run_corpus("takeover", messages::seeds(), 200, messages::exercise);
    }
}
