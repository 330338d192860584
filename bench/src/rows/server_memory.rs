//! Rows: memory and descriptors of a server whose clients hold leases.
//!
//! A client is a connection to the control socket, and a lease on it, for as long as the server
//! admits more connections. All further leases are distributed over these connections, until
//! the server has no slot left. Nothing is timed: the rows count, and their limits are those of
//! the tests of the server.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use pramfs_control::{Connection, ControlError, DIRECTORY, Directory, TicketReply};
use pramfs_medium::pmem::lease_ticket;
use pramfs_medium::types::LeaseMode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::preload::row;
use crate::fixture::{MIB, Mounted, filled_file};
use crate::harness::{Context, Group, Report, Row};

const ROWS: &[Row] = &[
    row("server-memory-0", "server's memory, no clients", IDLE, 1.0),
    row(
        "server-memory-100",
        "server's memory, 100 clients with leases",
        MORE,
        1.0,
    ),
    row(
        "server-memory-1000",
        "server's memory, 1,000 clients with leases",
        MORE,
        1.0,
    ),
    row(
        "server-memory-10000",
        "server's memory, 10,000 clients with leases",
        MORE,
        1.0,
    ),
    row(
        "server-files-0",
        "server's descriptors, no clients",
        "32",
        1.0,
    ),
    row(
        "server-files-100",
        "server's descriptors, 100 clients with leases",
        FILES,
        1.0,
    ),
    row(
        "server-files-1000",
        "server's descriptors, 1,000 clients with leases",
        FILES,
        1.0,
    ),
    row(
        "server-files-10000",
        "server's descriptors, 10,000 clients with leases",
        FILES,
        1.0,
    ),
];

const IDLE: &str = "64 MiB";
const MORE: &str = "without clients, and 16 MiB";
const FILES: &str = "without clients, and 256 connections";

/// The group.
pub const GROUP: Group = Group {
    rows: ROWS,
    measure,
};

/// Numbers of clients.
const CLIENTS: [usize; 4] = [0, 100, 1000, 10_000];
/// KiB that clients may cost.
const MOST_MORE: f64 = 16.0 * 1024.0;
/// KiB of a server without clients.
const MOST_IDLE: f64 = 64.0 * 1024.0;
/// Connections that a server admits.
const CONNECTIONS: f64 = 256.0;
const IDLE_FILES: f64 = 32.0;

/// What a server uses.
#[derive(Debug, Clone, Copy)]
struct Used {
    /// KiB in memory, without the pages of the region.
    kib: f64,
    /// KiB in memory with them.
    with_region: f64,
    descriptors: f64,
}

impl Used {
    fn by(server: u32) -> Result<Used> {
        let path = format!("/proc/{server}/status");
        let status = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let fields: BTreeMap<&str, &str> = status
            .lines()
            .filter_map(|line| line.split_once(':'))
            .collect();
        let kib = |name: &str| -> Result<f64> {
            let value = fields.get(name).and_then(|v| v.trim().strip_suffix(" kB"));
            let value = value.with_context(|| format!("{path}: no {name}"))?;
            Ok(value.parse()?)
        };
        // One that the server has just opened for an answer counts for a moment.
        let mut descriptors = usize::MAX;
        for _ in 0..10 {
            let open = std::fs::read_dir(format!("/proc/{server}/fd"))?.count();
            descriptors = descriptors.min(open);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Used {
            // The pages of files are those of the program, and of a region that is no tmpfs.
            kib: kib("VmRSS")? - kib("RssShmem")?,
            with_region: kib("VmRSS")?,
            descriptors: descriptors as f64,
        })
    }
}

/// Clients of a server, all in this process.
#[derive(Default)]
struct Clients {
    connections: Vec<Connection>,
    /// Each is a lease.
    leases: Vec<OwnedFd>,
    refused_connections: usize,
    refused_leases: usize,
}

impl Clients {
    fn start(file: &Path, count: usize) -> Result<Clients> {
        let directory = Directory::open(DIRECTORY)?.context("no control socket")?;
        let file = File::open(file)?;
        let mut clients = Clients::default();
        for client in 0..count {
            if clients.refused_connections == 0 {
                let ticket = ticket(&file)?;
                let new = Connection::open(&directory, &ticket.socket)?.context("no server")?;
                match new.lease(ticket.ticket) {
                    Ok((_, held)) => {
                        clients.leases.push(held);
                        clients.connections.push(new);
                        continue;
                    }
                    // It has no room for another connection, and tells by closing it.
                    Err(ControlError::Gone) => clients.refused_connections = count - client,
                    Err(e) => return Err(e.into()),
                }
            }
            let turn = client % clients.connections.len().max(1);
            let connection = clients.connections.get(turn).context("no connection")?;
            match connection.lease(ticket(&file)?.ticket) {
                Ok((_, held)) => clients.leases.push(held),
                Err(ControlError::Refused { .. }) => clients.refused_leases += 1,
                Err(e) => return Err(e.into()),
            }
        }
        Ok(clients)
    }
}

fn ticket(file: &File) -> Result<TicketReply> {
    let bytes = lease_ticket(file.as_fd(), LeaseMode::Read)?;
    Ok(TicketReply::decode(&bytes)?)
}

/// Waits until the server has closed what ended clients had.
fn settle(server: u32, idle: Used) -> Result<()> {
    for _ in 0..500 {
        if Used::by(server)?.descriptors <= idle.descriptors {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the server keeps descriptors of clients that have ended")
}

fn measure(cx: &Context, out: &mut Report) -> Result<()> {
    // Each lease is a descriptor of this process.
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.map_or(10_000, |most| most.min(10_000));
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.current.map(|now| now.max(enough)),
            ..limit
        },
    )?;
    let mount = Mounted::for_clients(cx, 64 * MIB)?;
    let path = mount.daemon.join("file");
    drop(filled_file(&path, MIB)?);
    let mut idle = None;
    for (turn, count) in CLIENTS.into_iter().enumerate() {
        cx.check_stop()?;
        let server = mount.daemon.pid();
        let clients = Clients::start(&path, count)?;
        let used = Used::by(server)?;
        let first = *idle.get_or_insert(used);
        let notes = [
            format!(
                "{} connections and {} leases held; {} and {} refused",
                clients.connections.len(),
                clients.leases.len(),
                clients.refused_connections,
                clients.refused_leases
            ),
            format!(
                "{} KiB with the pages of the region; {} descriptors",
                used.with_region, used.descriptors
            ),
        ];
        let (memory, files) = match count {
            0 => (MOST_IDLE, IDLE_FILES),
            _ => (first.kib + MOST_MORE, first.descriptors + CONNECTIONS),
        };
        out.record_count(&ROWS[turn], (used.kib, memory), "KiB", &notes);
        let row = &ROWS[CLIENTS.len() + turn];
        out.record_count(row, (used.descriptors, files), "descriptors", &notes[..1]);
        drop(clients);
        settle(server, first)?;
    }
    Ok(())
}
