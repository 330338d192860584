//! Records what a test has seen, line by line.

use std::fmt::Debug;

use pramfs_tests::syscalls::Sys;

use crate::support::mount::Reference;

/// A transcript of one file system.
#[derive(Debug)]
pub struct Transcript {
    who: Option<Reference>,
    lines: Vec<(String, String)>,
}

impl Transcript {
    /// The transcript of our mount.
    pub fn ours() -> Transcript {
        Transcript {
            who: None,
            lines: Vec::new(),
        }
    }

    /// The transcript of a file system of the kernel.
    pub fn of(what: Reference) -> Transcript {
        Transcript {
            who: Some(what),
            lines: Vec::new(),
        }
    }

    /// Notes an operation and its result.
    pub fn note<T: Debug>(&mut self, what: impl Into<String>, result: T) {
        self.lines.push((what.into(), format!("{result:?}")));
    }

    /// Notes a call of which only success or errno matters; errno by name.
    pub fn call<T>(&mut self, what: impl Into<String>, result: Sys<T>) -> Option<T> {
        let (text, value) = match result {
            Ok(value) => ("done".to_owned(), Some(value)),
            Err(errno) => (
                format!("{:?}", rustix::io::Errno::from_raw_os_error(errno)),
                None,
            ),
        };
        self.lines.push((what.into(), text));
        value
    }

    /// Like [`call`](Self::call), for a known difference from this reference: asserts
    /// both answers. The reason stands beside them.
    pub fn differs<T>(
        &mut self,
        what: &str,
        result: Sys<T>,
        from: Reference,
        (ours, theirs): (Sys<()>, Sys<()>),
        why: &str,
    ) {
        let seen = result.map(drop);
        match self.who {
            None => assert_eq!(seen, ours, "{what}: {why}"),
            Some(who) if who == from => assert_eq!(seen, theirs, "{what} on {who:?}: {why}"),
            Some(_) => {}
        }
    }

    /// Whether it is that of our mount.
    pub fn is_ours(&self) -> bool {
        self.who.is_none()
    }

    /// Whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Compares with the transcript of another file system.
    ///
    /// # Panics
    /// If a line differs.
    pub fn compare(&self, theirs: &Transcript, test: &str) {
        let mut wrong = Vec::new();
        for (a, b) in self.lines.iter().zip(&theirs.lines) {
            if a != b {
                wrong.push(format!(
                    "{}: ours {}\n    {}: theirs {}",
                    a.0, a.1, b.0, b.1
                ));
            }
        }
        assert!(wrong.is_empty(), "{test}:\n{}", wrong.join("\n"));
        assert_eq!(self.lines.len(), theirs.lines.len(), "{test}: lines");
    }
}
