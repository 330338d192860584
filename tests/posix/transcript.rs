//! What a test has seen, line by line.

use std::fmt::Debug;

use pramfs_tests::syscalls::Sys;

use crate::Reference;

/// See the module.
#[derive(Debug)]
pub struct Transcript {
    who: Option<Reference>,
    lines: Vec<(String, String)>,
}

impl Transcript {
    /// Those of our mount.
    pub fn ours() -> Transcript {
        Transcript {
            who: None,
            lines: Vec::new(),
        }
    }

    /// Those of a file system of the kernel.
    pub fn of(what: Reference) -> Transcript {
        Transcript {
            who: Some(what),
            lines: Vec::new(),
        }
    }

    /// Notes a result: what was done, and what came of it.
    pub fn note<T: Debug>(&mut self, what: impl Into<String>, result: T) {
        self.lines.push((what.into(), format!("{result:?}")));
    }

    /// Notes a call that says nothing but whether it worked, errno by name.
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

    /// As [`call`](Self::call), where we are known to answer otherwise than
    /// this reference: both answers are asserted, and the reason stands beside
    /// them.
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

    /// Whether this is our mount.
    pub fn is_ours(&self) -> bool {
        self.who.is_none()
    }

    /// Whether nothing was noted.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Compares with those of another file system.
    ///
    /// # Panics
    /// Where a line differs.
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
