//! What the servers said, and the rates between two looks at them.
//!
//! Invariant: a rate is between two looks at the same server. Another server of the same mount
//! begins anew, and the view says so. A mount point does not tell one mount from another: one
//! may hide another, and both servers live.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pramfs_control::{Latency, MountStatus, OperationStatus};

/// What the servers said at a moment.
#[derive(Debug, Clone)]
pub(super) struct Moment {
    pub at: Instant,
    pub states: Vec<MountStatus>,
    /// Why the others said nothing.
    pub failures: Vec<String>,
}

impl Moment {
    fn of_server(&self, server: Server) -> Option<&MountStatus> {
        let mut states = self.states.iter();
        states.find(|status| Server::of(status) == server)
    }

    fn has(&self, server: Server) -> bool {
        self.of_server(server).is_some()
    }
}

/// What stays the same when another server goes on with a mount.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Mount {
    region: String,
    mount_point: String,
}

impl Mount {
    fn of(status: &MountStatus) -> Mount {
        Mount {
            region: status.region.clone(),
            mount_point: status.mount_point.clone(),
        }
    }
}

/// A server, whose counts go on from one look to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Server {
    device: (u32, u32),
    pid: u32,
    started_sec: i64,
}

impl Server {
    fn of(status: &MountStatus) -> Server {
        Server {
            device: status.device,
            pid: status.pid,
            started_sec: status.started_sec,
        }
    }
}

/// By what operations are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Order {
    /// Requests in a second.
    #[default]
    Rate,
    /// Time that they took in all.
    Time,
    /// The 99th percentile of the times.
    P99,
    /// Fences.
    Fences,
    /// Bytes to the medium.
    Bytes,
    /// Errors.
    Errors,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Rate => "requests",
            Order::Time => "time",
            Order::P99 => "P99",
            Order::Fences => "fences",
            Order::Bytes => "bytes",
            Order::Errors => "errors",
        }
    }

    fn next(self) -> Order {
        match self {
            Order::Rate => Order::Time,
            Order::Time => Order::P99,
            Order::P99 => Order::Fences,
            Order::Fences => Order::Bytes,
            Order::Bytes => Order::Errors,
            Order::Errors => Order::Rate,
        }
    }

    fn value(self, row: &OperationRow) -> f64 {
        match self {
            Order::Rate => row.rate,
            Order::Time => row.busy,
            Order::P99 => {
                let time = row.latency.percentile(99.0);
                time.map_or(0.0, |time| time.as_secs_f64())
            }
            Order::Fences => row.fences,
            Order::Bytes => row.bytes,
            Order::Errors => row.errors,
        }
    }
}

/// The two latest looks.
#[derive(Debug, Clone, Default)]
struct Looks {
    before: Option<Rc<Moment>>,
    now: Option<Rc<Moment>>,
}

/// Something that has happened while the view was open.
#[derive(Debug, Clone)]
struct News {
    at: Instant,
    text: String,
}

/// What the view shows.
#[derive(Debug, Default)]
pub(super) struct Model {
    looks: Looks,
    /// What is shown in a pause.
    paused: Option<Looks>,
    /// The mount that is selected, and its place in the list.
    selected: Option<(Mount, Server)>,
    place: usize,
    /// The latest server of each mount that has been seen.
    servers: BTreeMap<Mount, Server>,
    news: Option<News>,
    pub order: Order,
    pub help: bool,
}

/// An operation, in a second.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OperationRow {
    pub name: String,
    pub rate: f64,
    pub errors: f64,
    pub fences: f64,
    pub bytes: f64,
    /// Share of the time of one thread, in percent.
    pub busy: f64,
    /// Between the two looks.
    pub latency: Latency,
}

/// A mount.
#[derive(Debug, Clone)]
pub(super) struct MountRow<'m> {
    pub status: &'m MountStatus,
    /// All operations together.
    pub all: OperationRow,
    pub operations: Vec<OperationRow>,
}

impl Model {
    pub(super) fn add(&mut self, moment: Moment) {
        for status in &moment.states {
            let server = Server::of(status);
            let old = self.servers.insert(Mount::of(status), server);
            // Read-only mounts of one region may be on one mount point: two servers that both live.
            let is_known = self.looks.now.as_ref().is_some_and(|now| now.has(server));
            if let Some(old) = old.filter(|old| !is_known && !moment.has(*old)) {
                self.news = Some(News {
                    at: moment.at,
                    text: format!(
                        "{}: process {} serves in the place of process {}",
                        status.mount_point, server.pid, old.pid
                    ),
                });
            }
        }
        self.looks.before = self.looks.now.take();
        self.looks.now = Some(Rc::new(moment));
        if self.paused.is_none() {
            self.keep_selection();
        }
    }

    fn shown(&self) -> &Looks {
        self.paused.as_ref().unwrap_or(&self.looks)
    }

    /// The mounts that are shown, by their mount points.
    pub(super) fn states(&self) -> &[MountStatus] {
        let now = self.shown().now.as_ref();
        now.map_or(&[], |moment| &moment.states)
    }

    /// Why servers say nothing.
    pub(super) fn failures(&self) -> &[String] {
        let now = self.shown().now.as_ref();
        now.map_or(&[], |moment| &moment.failures)
    }

    /// The latest event, and how long ago it was.
    pub(super) fn news(&self) -> Option<(&str, Duration)> {
        let (news, now) = (self.news.as_ref()?, self.shown().now.as_ref()?);
        Some((&news.text, now.at.saturating_duration_since(news.at)))
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Holds the view, or lets it go on with the latest looks.
    pub(super) fn pause(&mut self) {
        self.paused = match self.paused {
            Some(_) => None,
            None => Some(self.looks.clone()),
        };
        self.keep_selection();
    }

    /// Finds the selected mount in the list. One that has gone leaves its place to the next, until it
    /// is back.
    fn keep_selection(&mut self) {
        let states = self.states();
        let found = self.selected.as_ref().and_then(|(mount, server)| {
            let same = |status: &MountStatus| Server::of(status) == *server;
            let next = |status: &MountStatus| Mount::of(status) == *mount;
            let found = states.iter().position(same);
            found.or_else(|| states.iter().position(next))
        });
        self.place = found.unwrap_or(self.place.min(states.len().saturating_sub(1)));
    }

    pub(super) fn selected(&self) -> usize {
        self.place
    }

    fn select(&mut self, place: usize) {
        self.place = place;
        let chosen = self.states().get(place);
        self.selected = chosen.map(|status| (Mount::of(status), Server::of(status)));
    }

    /// Selects the next mount; after the last comes the first.
    pub(super) fn select_next(&mut self) {
        self.select((self.place + 1) % self.states().len().max(1));
    }

    /// Selects the mount before; before the first comes the last.
    pub(super) fn select_previous(&mut self) {
        let count = self.states().len().max(1);
        self.select((self.place + count - 1) % count);
    }

    pub(super) fn sort_by_next(&mut self) {
        self.order = self.order.next();
    }

    pub(super) fn rows(&self) -> Vec<MountRow<'_>> {
        let states = self.states().iter();
        states.map(|status| self.row(status)).collect()
    }

    fn row<'m>(&self, status: &'m MountStatus) -> MountRow<'m> {
        let looks = self.shown();
        let looks = looks.before.as_ref().zip(looks.now.as_ref());
        let before = looks.and_then(|(before, now)| {
            let earlier = before.of_server(Server::of(status))?;
            let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
            Some((earlier, seconds))
        });
        // At the first look at a server: averages since its start.
        let nothing = MountStatus::default();
        let uptime = status.uptime_ms as f64 / 1e3;
        let (before, seconds) = before.unwrap_or((&nothing, uptime));
        let seconds = seconds.max(1e-3);
        let of_operation = |now: &OperationStatus| {
            let none = OperationStatus::default();
            let earlier = before.operations.iter().find(|of| of.name == now.name);
            operation_row(now, earlier.unwrap_or(&none), seconds)
        };
        let mut operations: Vec<_> = status.operations.iter().map(of_operation).collect();
        let all = sum(&operations);
        operations.sort_by(|one, other| {
            let (one_value, other_value) = (self.order.value(one), self.order.value(other));
            let by_value = other_value.total_cmp(&one_value);
            by_value.then_with(|| one.name.cmp(&other.name))
        });
        MountRow {
            status,
            all,
            operations,
        }
    }
}

fn operation_row(now: &OperationStatus, before: &OperationStatus, seconds: f64) -> OperationRow {
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let latency = now.latency.since(&before.latency);
    OperationRow {
        name: now.name.clone(),
        rate: rate(now.count, before.count),
        errors: rate(now.errors, before.errors),
        fences: rate(now.fences, before.fences),
        bytes: rate(now.medium_bytes(), before.medium_bytes()),
        busy: latency.sum_ns as f64 / 1e7 / seconds,
        latency,
    }
}

fn sum(rows: &[OperationRow]) -> OperationRow {
    let all = |of: fn(&OperationRow) -> f64| rows.iter().map(of).sum();
    let mut latency = Latency::default();
    for row in rows {
        latency.merge(&row.latency);
    }
    OperationRow {
        name: "all".to_owned(),
        rate: all(|row| row.rate),
        errors: all(|row| row.errors),
        fences: all(|row| row.fences),
        bytes: all(|row| row.bytes),
        busy: all(|row| row.busy),
        latency,
    }
}
