//! Entries for systemd's journal, in its native protocol: a datagram is an entry, with a line
//! `NAME=value` for each field, or name, length and bytes of a value with line feeds
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::datagrams::{Datagrams, notice};
use super::{LONGEST, severity};

/// The socket of journald.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// Sends each event as an entry.
pub(super) struct Journal {
    lines: Arc<Datagrams>,
    /// Fields of each entry.
    fields: Vec<u8>,
}

impl Journal {
    pub(super) fn new(lines: Arc<Datagrams>, fields: &[(&'static str, &Path)]) -> Journal {
        let mut entry = Entry::default();
        entry.put("SYSLOG_IDENTIFIER", b"mount.pramfs");
        for (name, path) in fields {
            entry.put(name, path.as_os_str().as_encoded_bytes());
        }
        Journal {
            lines,
            fields: entry.0,
        }
    }

    fn entry(&self, level: Level) -> Entry {
        let mut entry = Entry(self.fields.clone());
        entry.put("PRIORITY", severity(level).to_string().as_bytes());
        entry
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = self.entry(*event.metadata().level());
        event.record(&mut entry);
        self.lines.send(&entry.0, |lost| {
            let mut entry = self.entry(Level::WARN);
            entry.put("MESSAGE", notice(lost).as_bytes());
            entry.0
        });
    }
}

/// The fields of an entry.
#[derive(Default)]
struct Entry(Vec<u8>);

impl Entry {
    fn put(&mut self, name: &str, value: &[u8]) {
        let value = &value[..value.len().min(LONGEST)];
        self.0.extend_from_slice(name.as_bytes());
        if value.contains(&b'\n') {
            self.0.push(b'\n');
            self.0
                .extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }

    fn put_field(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return self.put("MESSAGE", value.as_bytes());
        }
        // Letters, digits and underscores: the journal takes no other names.
        let part = |c: char| match c.is_ascii_alphanumeric() {
            true => c.to_ascii_uppercase(),
            false => '_',
        };
        let name: String = field.name().chars().map(part).collect();
        self.put(&format!("PRAMFS_{name}"), value.as_bytes());
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_field(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[test]
    fn entry_has_fields_of_event_and_of_mount() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let reader = UnixDatagram::bind(&path).unwrap();
        let lines = Arc::new(Datagrams::to(&path).unwrap());
        let journal = Journal::new(lines, &[("PRAMFS_REGION", Path::new("/dev/pmem0"))]);
        let log = tracing_subscriber::registry().with(journal);
        tracing::subscriber::with_default(log, || {
            tracing::warn!(inode = 7, operation = "READ", "two\nlines");
            tracing::info!("{}", "x".repeat(2 * LONGEST));
        });
        let mut bytes = vec![0; 2 * LONGEST];
        let len = reader.recv(&mut bytes).unwrap();
        let mut expected =
            b"SYSLOG_IDENTIFIER=mount.pramfs\nPRAMFS_REGION=/dev/pmem0\nPRIORITY=4\nMESSAGE\n"
                .to_vec();
        expected.extend_from_slice(&9u64.to_le_bytes());
        expected.extend_from_slice(b"two\nlines\nPRAMFS_INODE=7\nPRAMFS_OPERATION=READ\n");
        let shown = String::from_utf8_lossy(&bytes[..len]);
        assert_eq!(bytes[..len], expected, "{shown}");
        let len = reader.recv(&mut bytes).unwrap();
        assert!((LONGEST..LONGEST + 200).contains(&len), "{len}: it is cut");
    }
}
