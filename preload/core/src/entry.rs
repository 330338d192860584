//! What is known about a descriptor, in one word, so that a lookup takes no lock.

/// What is known about a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Not a file of a mount, or not noted.
    Unknown,
    /// A file of a mount, without a lease.
    Mount {
        /// The hash of the file.
        inode: u16,
        /// As for one that has a lease.
        hidden: bool,
    },
    /// The same, open for reading: after some calls it gets a lease.
    Candidate {
        /// The hash of the file.
        inode: u16,
        /// Reads so far.
        calls: u16,
    },
    /// The same, open for reading and writing, and empty when it was opened. If it is then
    /// read and overwritten by offset, it gets a lease. Nothing has used the description
    /// otherwise, as far as was seen.
    Growing {
        /// The hash of the file.
        inode: u16,
        /// Reads and overwrites so far.
        calls: u8,
        /// When it was opened: descriptions have not been shared since.
        epoch: u16,
    },
    /// Its descriptor is being replaced.
    Changing {
        /// The hash of the file.
        inode: u16,
    },
    /// A file with a lease.
    Leased {
        /// The number of the lease.
        slot: u16,
        /// Which of the leases that have had this number.
        generation: u32,
        /// The lease is to write.
        write: bool,
        /// The program may read. False for O_WRONLY.
        reads: bool,
        /// O_DIRECT is set, and the program has not asked for it.
        hidden: bool,
    },
}

impl Entry {
    /// Returns the word. That of [`Entry::Unknown`] is 0.
    pub fn encode(self) -> u64 {
        match self {
            Entry::Unknown => 0,
            Entry::Mount { inode, hidden } => 1 | u64::from(hidden) << 5 | u64::from(inode) << 8,
            Entry::Candidate { inode, calls } => 2 | u64::from(inode) << 8 | u64::from(calls) << 32,
            Entry::Growing {
                inode,
                calls,
                epoch,
            } => 4 | u64::from(inode) << 8 | u64::from(calls) << 24 | u64::from(epoch) << 32,
            Entry::Changing { inode } => 5 | u64::from(inode) << 8,
            Entry::Leased {
                slot,
                generation,
                write,
                reads,
                hidden,
            } => {
                3 | u64::from(write) << 4
                    | u64::from(hidden) << 5
                    | u64::from(reads) << 6
                    | u64::from(slot) << 8
                    | u64::from(generation) << 32
            }
        }
    }

    /// A file without a lease, whose descriptor is as the program has opened it.
    pub fn plain(inode: u16) -> Entry {
        Entry::Mount {
            inode,
            hidden: false,
        }
    }

    /// Returns the hash of the file, if the entry itself has it.
    pub fn inode(self) -> Option<u16> {
        match self {
            Entry::Mount { inode, .. }
            | Entry::Candidate { inode, .. }
            | Entry::Growing { inode, .. }
            | Entry::Changing { inode } => Some(inode),
            Entry::Unknown | Entry::Leased { .. } => None,
        }
    }

    /// Whether O_DIRECT is set, of which the program does not know.
    pub fn hides_direct(self) -> bool {
        matches!(
            self,
            Entry::Leased { hidden: true, .. } | Entry::Mount { hidden: true, .. }
        )
    }

    /// Returns what a word says.
    #[inline]
    pub fn decode(word: u64) -> Entry {
        let (low, high) = ((word >> 8) as u16, (word >> 32) as u32);
        match word & 7 {
            1 => Entry::Mount {
                inode: low,
                hidden: word & 1 << 5 != 0,
            },
            2 => Entry::Candidate {
                inode: low,
                calls: high as u16,
            },
            3 => Entry::Leased {
                slot: low,
                generation: high,
                write: word & 1 << 4 != 0,
                hidden: word & 1 << 5 != 0,
                reads: word & 1 << 6 != 0,
            },
            4 => Entry::Growing {
                inode: low,
                calls: (word >> 24) as u8,
                epoch: high as u16,
            },
            5 => Entry::Changing { inode: low },
            _ => Entry::Unknown,
        }
    }
}

/// Returns the hash of a file.
pub fn hash(device: u64, inode: u64) -> u16 {
    let mixed = (device.rotate_left(32) ^ inode).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_entry() -> impl Strategy<Value = Entry> {
        prop_oneof![
            Just(Entry::Unknown),
            any::<(u16, bool)>().prop_map(|(inode, hidden)| Entry::Mount { inode, hidden }),
            any::<(u16, u16)>().prop_map(|(inode, calls)| Entry::Candidate { inode, calls }),
            any::<(u16, u8, u16)>().prop_map(|(inode, calls, epoch)| Entry::Growing {
                inode,
                calls,
                epoch
            }),
            any::<u16>().prop_map(|inode| Entry::Changing { inode }),
            any::<(u16, u32, bool, bool, bool)>().prop_map(
                |(slot, generation, write, reads, hidden)| Entry::Leased {
                    slot,
                    generation,
                    write,
                    reads,
                    hidden
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn word_of_entry_says_the_same(entry in any_entry()) {
            prop_assert_eq!(Entry::decode(entry.encode()), entry);
        }
    }

    #[test]
    fn word_of_zeros_is_unknown() {
        assert_eq!(Entry::decode(0), Entry::Unknown);
    }

    #[test]
    fn hash_differs_by_device_and_by_inode() {
        assert_ne!(hash(1, 2), hash(2, 1));
        assert_ne!(hash(1, 2), hash(1, 3));
    }
}
