//! Finds the servers of live mounts, for the subcommands that ask them.
//!
//! Invariant: no name below a mount point of root is looked up before its server has answered on its
//! socket. A server that has stopped would not answer, and not even a signal ends such a wait. Mounts of
//! other users have no socket. The text of a path is compared with the mount table only if the look-up
//! does not answer: a name below a mount point may lead to a region, or out of the mount.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use pramfs_control::{Connection, ControlError, DIRECTORY, Directory, Identity, MountStatus};
use pramfs_medium::pmem::mount_table::{self, Mount};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;

use crate::Failure;
use crate::failure::{printable, quoted, shown};

/// What `docs/status.md` promises for an answer about a server that is silent.
const PROMISED: Duration = Duration::from_secs(1);

/// Time limit of each step with a server that is asked for its state.
pub(super) const SOON: Duration = Duration::from_millis(400);

/// Time limit of the question to all servers which of them serves a mount.
const WHICH: Duration = Duration::from_millis(100);

/// The same for a region whose file system is meant: nobody is promised an answer within a time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time limit of a system call that could ask a server.
const STAT: Duration = Duration::from_millis(200);

/// The waits that can run out, one after the other, in one question: to ask whether the servers of the
/// mounts above the path answer, to look up the path, to look up the source of its mount, to ask all
/// servers at the same time, and to ask the one that was found. After a step with that server has run out
/// there is no other one.
const WAITS: [Duration; 5] = [WHICH, STAT, STAT, WHICH, SOON];
const _: () = assert!(sum(&WAITS) <= PROMISED.as_millis());

const fn sum(waits: &[Duration]) -> u128 {
    match waits {
        [] => 0,
        [first, others @ ..] => first.as_millis() + sum(others),
    }
}

/// A pramfs mount, by the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MountLine {
    pub device: (u32, u32),
    pub target: PathBuf,
    pub source: PathBuf,
    /// The user who mounted it.
    pub user: u32,
}

/// Reads the pramfs mounts of the mount table.
fn mounts() -> Result<Vec<MountLine>, Failure> {
    Ok(mount_table::read()
        .map_err(|e| Failure::os("cannot read", "the mount table /proc/self/mountinfo", e))?
        .into_iter()
        .filter_map(mount_line)
        .collect())
}

fn mount_line(mount: Mount) -> Option<MountLine> {
    let user = mount.user_id()?;
    (mount.fs_type == "fuse.pramfs").then(|| MountLine {
        device: mount.device,
        target: mount.target,
        source: mount.source.into(),
        user,
    })
}

/// What a name stands for.
enum Place {
    /// A mount point, or a directory of a mount.
    Mount((u32, u32)),
    /// A region, perhaps, and the mount that it is a file of, if one is asked for.
    Region(Identity, Option<(u32, u32)>),
}

/// What a caller asks for by the name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The file system in that file.
    Itself,
    /// Also the mount that the file is on.
    Around,
}

/// Runs a system call that could wait for a server, in bounded time. The thread of a call that
/// never returns ends with this program.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, is_done) = mpsc::channel();
    let started = std::thread::Builder::new().spawn(move || {
        // The receiver may have given up.
        let _late = done.send(work());
    });
    started.ok()?;
    is_done.recv_timeout(STAT).ok()
}

fn place(path: &Path, mounts: &[MountLine], wanted: Wanted) -> Result<Place, Failure> {
    let absolute = std::path::absolute(path).map_err(|e| Failure::os("cannot find", path, e))?;
    let asked = absolute.clone();
    let stat = match all_answer_above(path, &absolute, mounts, wanted)? {
        false => None,
        true => in_time(move || {
            let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
            rustix::fs::statx(CWD, &asked, flags, StatxFlags::TYPE | StatxFlags::INO)
        }),
    };
    // Its server has died, or lets only its own user look, or has stopped.
    let is_unknown = matches!(
        stat,
        Some(Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::ACCESS)) | None
    );
    if is_unknown && let Some(device) = by_text(&absolute, mounts, wanted) {
        return Ok(Place::Mount(device));
    }
    let stat = match stat {
        Some(Ok(stat)) => stat,
        Some(Err(e)) => return Err(Failure::os("cannot find", path, e)),
        None => {
            return Err(Failure::new(
                "no-answer",
                format!(
                    "{}: the file system that it is on does not answer; name the mount point itself, as in /proc/self/mounts",
                    shown(path)
                ),
            ));
        }
    };
    let device = (stat.stx_dev_major, stat.stx_dev_minor);
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile | FileType::BlockDevice | FileType::CharacterDevice => {
            let is_on_mount = mounts.iter().any(|mount| mount.device == device);
            let around = (wanted == Wanted::Around && is_on_mount).then_some(device);
            let region = absolute.clone();
            let identity = in_time(move || Identity::of_path(&region));
            let identity = identity.unwrap_or(Err(ControlError::Timeout(STAT)));
            identity
                .map(|identity| Place::Region(identity, around))
                .map_err(|e| about(path, &e))
        }
        _ => Ok(Place::Mount(device)),
    }
}

/// Whether the servers of all mounts that a path leads through answer. A mount point itself is looked
/// up without them.
fn all_answer_above(
    path: &Path,
    absolute: &Path,
    mounts: &[MountLine],
    wanted: Wanted,
) -> Result<bool, Failure> {
    let is_above = |(n, mount): &(usize, &MountLine)| {
        // Of two at one place, the later one hides the other.
        let is_hidden = mounts[n + 1..]
            .iter()
            .any(|later| later.target == mount.target);
        mount.user == 0
            && !is_hidden
            && absolute != mount.target
            && absolute.starts_with(&mount.target)
    };
    let above: Vec<_> = mounts.iter().enumerate().filter(is_above).collect();
    if above.is_empty() {
        return Ok(true);
    }
    let directory = Directory::open(DIRECTORY).map_err(|e| about(path, &e))?;
    let Some(directory) = directory else {
        // The servers are of another namespace.
        return Ok(true);
    };
    let names = directory.sockets().map_err(|e| about(path, &e))?;
    let time = match wanted {
        Wanted::Around => WHICH,
        Wanted::Itself => PATIENCE,
    };
    let alive = servers(&directory, &names, time)?;
    Ok(above
        .iter()
        .all(|(_, mount)| alive.iter().any(|(_, device)| *device == mount.device)))
}

/// The mount of a path that cannot be looked up, by its text.
fn by_text(absolute: &Path, mounts: &[MountLine], wanted: Wanted) -> Option<(u32, u32)> {
    // Of two at one place, the later one hides the other.
    let mut on = mounts.iter().rev();
    if let Some(mount) = on.find(|mount| mount.target == absolute) {
        return Some(mount.device);
    }
    // A file of it may be a region. And nothing says where `..` leads.
    let leads_up = absolute
        .components()
        .any(|part| part == Component::ParentDir);
    if wanted == Wanted::Itself || leads_up {
        return None;
    }
    let above = mounts.iter();
    above
        .filter(|mount| absolute.starts_with(&mount.target))
        .max_by_key(|mount| mount.target.as_os_str().len())
        .map(|mount| mount.device)
}

/// An error of the control sockets about a mount or region.
pub(super) fn about(path: &Path, error: &ControlError) -> Failure {
    if let ControlError::Os { source, .. } = error
        && source.kind() == std::io::ErrorKind::PermissionDenied
    {
        return Failure::new(
            "permission",
            format!(
                "{}: only root may ask the servers of mounts, by {DIRECTORY} (docs/status.md)",
                shown(path)
            ),
        );
    }
    // It may have text of the server.
    let error = printable(&error.to_string());
    Failure::new("os", format!("{}: {error}", shown(path)))
}

fn not_mounted(path: &Path) -> Failure {
    Failure::new(
        "not-mounted",
        format!(
            "{}: no server of root answers for it; name a mount point or a region, mounted by root",
            shown(path)
        ),
    )
}

/// The name of the socket of a mount, by its source. The source of a mount is only a hint:
/// whoever mounts chooses it. The server says which mount it serves.
fn socket_by_source(mount: &MountLine) -> Option<String> {
    if !mount.source.is_absolute() {
        return None;
    }
    let source = mount.source.clone();
    let identity = in_time(move || Identity::of_path(&source))?.ok()?;
    Some(identity.socket_name())
}

/// Connects to the server of a mount point, of a region that is mounted, or of the mount that
/// another file is on. Also returns the device number of its mount.
///
/// # Errors
/// No server of root answers for it; the system failed.
pub(super) fn live_mount(path: &Path) -> Result<(Connection, u64), Failure> {
    connected(path, Wanted::Around)
}

/// As [`live_mount`], but a file is a region, and never one of the mount that is meant.
#[cfg(feature = "save")]
pub(crate) fn live_mount_itself(path: &Path) -> Result<(Connection, u64), Failure> {
    connected(path, Wanted::Itself)
}

fn connected(path: &Path, wanted: Wanted) -> Result<(Connection, u64), Failure> {
    let found = find(path, wanted, None)?;
    let served = found.served().map_err(|e| about(path, &e))?;
    Ok((found, rustix::fs::makedev(served.device.0, served.device.1)))
}

/// As [`live_mount`], but each step with the server takes [`SOON`] at most.
pub(super) fn live_mount_soon(path: &Path) -> Result<Connection, Failure> {
    find(path, Wanted::Around, Some(SOON))
}

fn open(
    directory: &Directory,
    name: &str,
    time: Option<Duration>,
) -> Result<Option<Connection>, ControlError> {
    match time {
        Some(time) => Connection::open_within(directory, name, time),
        None => Connection::open(directory, name),
    }
}

fn find(path: &Path, wanted: Wanted, time: Option<Duration>) -> Result<Connection, Failure> {
    let mounts = mounts()?;
    let place = place(path, &mounts, wanted)?;
    let directory = Directory::open(DIRECTORY).map_err(|e| about(path, &e))?;
    let Some(directory) = directory else {
        return Err(without_server(path, &place, &mounts));
    };
    let device = match &place {
        Place::Region(identity, around) => {
            let opened = open(&directory, &identity.socket_name(), time);
            match (opened.map_err(|e| about(path, &e))?, around) {
                (Some(server), _) => return Ok(server),
                (None, Some(device)) => *device,
                (None, None) => return Err(without_server(path, &place, &mounts)),
            }
        }
        Place::Mount(device) => *device,
    };
    let mount = mounts.iter().find(|mount| mount.device == device);
    if let Some(name) = mount.and_then(socket_by_source)
        && let Some(server) = open(&directory, &name, time).map_err(|e| about(path, &e))?
    {
        match server.served() {
            Ok(served) if served.device == device => return Ok(server),
            // That of another mount.
            Ok(_) => {}
            Err(error) => return Err(no_answer(path, &server, &error)),
        }
    }
    let names = directory.sockets().map_err(|e| about(path, &e))?;
    match socket_of_server(&directory, &names, device)? {
        Some(name) => open(&directory, name, time)
            .map_err(|e| about(path, &e))?
            .ok_or_else(|| not_mounted(path)),
        None => Err(without_server(path, &place, &mounts)),
    }
}

/// The socket whose server serves a mount.
fn socket_of_server<'a>(
    directory: &Directory,
    names: &'a [String],
    device: (u32, u32),
) -> Result<Option<&'a String>, Failure> {
    let mut servers = servers(directory, names, WHICH)?.into_iter();
    Ok(servers
        .find(|(_, served)| *served == device)
        .map(|(name, _)| name))
}

/// The name of the socket of a server, and the device number of its mount.
type Server<'a> = (&'a String, (u32, u32));

/// The servers that answer in time, by their sockets, and the devices of the mounts that they serve.
/// All are asked at the same time: some may be ending, or have stopped.
fn servers<'a>(
    directory: &Directory,
    names: &'a [String],
    time: Duration,
) -> Result<Vec<Server<'a>>, Failure> {
    let served = |name: &str| {
        let server = Connection::open_within(directory, name, time);
        let server = server.ok().flatten()?;
        Some(server.served().ok()?.device)
    };
    std::thread::scope(|scope| {
        let mut asked = Vec::new();
        for name in names {
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || served(name));
            asked.push((
                name,
                thread
                    .map_err(|e| Failure::os("cannot start", "a thread that asks a server", e))?,
            ));
        }
        let mut found = Vec::new();
        for (name, thread) in asked {
            let device = thread.join().map_err(|_| panicked())?;
            found.extend(device.map(|device| (name, device)));
        }
        Ok(found)
    })
}

fn panicked() -> Failure {
    Failure::new("bug", "a thread that asks a server panicked")
}

/// Why there is nobody to ask.
fn without_server(path: &Path, place: &Place, mounts: &[MountLine]) -> Failure {
    let mount = match place {
        Place::Mount(device) | Place::Region(_, Some(device)) => {
            mounts.iter().find(|mount| mount.device == *device)
        }
        Place::Region(identity, None) => mounts.iter().find(|mount| {
            let source = mount.source.clone();
            in_time(move || Identity::of_path(&source)).is_some_and(|of| of.ok() == Some(*identity))
        }),
    };
    match mount {
        Some(mount) => silent_mount(mount),
        None => not_mounted(path),
    }
}

/// Why nobody answers for a mount that the mount table has.
fn silent_mount(mount: &MountLine) -> Failure {
    let target = mount.target.clone();
    let is_dead = in_time(move || rustix::fs::statfs(&target));
    let on = shown(&mount.target);
    match is_dead {
        Some(Err(Errno::NOTCONN)) => Failure::new(
            "dead",
            format!(
                "{on}: its server has died, and programs get ENOTCONN there; type `umount {}`, then mount {} again, which recovers it; the log has the reason: journalctl -t mount.pramfs",
                quoted(&mount.target),
                shown(&mount.source)
            ),
        ),
        _ if mount.user != 0 => Failure::new(
            "not-root",
            format!(
                "{on}: user {} has mounted it, and only mounts of root have a control socket",
                mount.user
            ),
        ),
        _ => not_mounted(&mount.target),
    }
}

/// Explains why a server that is there does not answer, with its state.
pub(super) fn no_answer(path: &Path, server: &Connection, error: &ControlError) -> Failure {
    let on = shown(path);
    let ControlError::Timeout(limit) = error else {
        return about(path, error);
    };
    let pid = server.pid();
    let what = match state_of(pid) {
        Some('T' | 't') => format!(
            "is stopped; `kill -CONT {pid}` lets it go on (a debugger may hold it)"
        ),
        Some('Z' | 'X') | None => format!(
            "has ended; type `umount {}` and mount the region again, which recovers it",
            quoted(path)
        ),
        Some('D') => "waits in the kernel, perhaps for its medium; see `cat /proc/PID/stack` and the kernel's log"
            .replace("PID", &pid.to_string()),
        Some(_) => format!(
            "runs, but its control thread does not answer: the machine may be overloaded; ask again, and otherwise look at it with `gdb -p {pid}`"
        ),
    };
    Failure::new(
        "no-answer",
        format!(
            "{on}: no answer within {} ms: the server, process {pid}, {what}",
            limit.as_millis()
        ),
    )
}

/// The state of a process, as ps(1) shows it.
fn state_of(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may have any characters.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The answer of one server.
pub(super) type Answer = Result<MountStatus, Failure>;

/// Asks the server of a mount point or region for its state.
pub(super) fn status_of(path: &Path) -> Answer {
    let server = live_mount_soon(path)?;
    server
        .status()
        .map_err(|error| no_answer(path, &server, &error))
}

/// Asks the servers of all live mounts of root, at the same time.
///
/// # Errors
/// The directory of the control sockets or the mount table cannot be read.
pub(super) fn status_of_all() -> Result<Vec<Answer>, Failure> {
    let at = Path::new(DIRECTORY);
    let Some(directory) = Directory::open(DIRECTORY).map_err(|e| about(at, &e))? else {
        return silent(&[]);
    };
    let names = directory.sockets().map_err(|e| about(at, &e))?;
    let by_socket = mounts_by_socket()?;
    let answers: Vec<Option<Answer>> = std::thread::scope(|scope| {
        let ask = |name: &String| {
            let place = by_socket
                .get(name)
                .map_or(Path::new(name), |mount| &mount.target);
            let server = match Connection::open_within(&directory, name, SOON) {
                Ok(Some(server)) => server,
                // Left by a server that was killed: see `silent`.
                Ok(None) => return None,
                Err(error) => return Some(Err(about(place, &error))),
            };
            let answer = server.status();
            Some(answer.map_err(|error| no_answer(place, &server, &error)))
        };
        let asked: Vec<_> = names
            .iter()
            .map(|name| scope.spawn(move || ask(name)))
            .collect();
        let failed = |_| Some(Err(panicked()));
        asked
            .into_iter()
            .map(|one| one.join().unwrap_or_else(failed))
            .collect()
    });
    // A server that is there and silent has its own message.
    let mut told = Vec::new();
    for (name, answer) in names.iter().zip(&answers) {
        match answer {
            Some(Ok(status)) => told.push(status.device),
            Some(Err(_)) => told.extend(by_socket.get(name).map(|mount| mount.device)),
            None => {}
        }
    }
    let mut answers: Vec<Answer> = answers.into_iter().flatten().collect();
    answers.extend(silent(&told)?);
    Ok(answers)
}

/// The mounts of root, by the sockets of their servers as far as their sources tell.
fn mounts_by_socket() -> Result<BTreeMap<String, MountLine>, Failure> {
    let mounts = mounts()?.into_iter().filter(|mount| mount.user == 0);
    Ok(mounts
        .filter_map(|mount| Some((socket_by_source(&mount)?, mount)))
        .collect())
}

/// The mounts of root of which no server answers, but for those of these devices.
fn silent(devices: &[(u32, u32)]) -> Result<Vec<Answer>, Failure> {
    let mut mounts = mounts()?;
    mounts.retain(|mount| mount.user == 0 && !devices.contains(&mount.device));
    once_each(&mut mounts);
    Ok(mounts
        .iter()
        .map(|mount| Err(silent_mount(mount)))
        .collect())
}

/// Leaves the first line of each mount: it may also be at other places, anywhere in the table.
fn once_each(mounts: &mut Vec<MountLine>) {
    let mut seen = HashSet::new();
    mounts.retain(|mount| seen.insert(mount.device));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(minor: u32, target: &str) -> MountLine {
        MountLine {
            device: (0, minor),
            target: target.into(),
            source: "/region".into(),
            user: 0,
        }
    }

    #[test]
    fn mount_at_two_places_counts_once() {
        let mut mounts = vec![line(1, "/a"), line(2, "/b"), line(1, "/c")];
        once_each(&mut mounts);
        assert_eq!(mounts, [line(1, "/a"), line(2, "/b")]);
    }

    #[test]
    fn path_that_cannot_be_looked_up_is_a_mount_point_or_a_file_of_a_mount() {
        let mounts = [line(1, "/a"), line(2, "/a/b"), line(3, "/a")];
        for (path, itself, around) in [
            ("/a", Some(3), Some(3)),
            ("/a/b", Some(2), Some(2)),
            ("/a/b/file", None, Some(2)),
            ("/a/file", None, Some(3)),
            ("/a/../file", None, None),
            ("/ab", None, None),
        ] {
            let found = |wanted| by_text(Path::new(path), &mounts, wanted).map(|(_, minor)| minor);
            assert_eq!(found(Wanted::Itself), itself, "{path}");
            assert_eq!(found(Wanted::Around), around, "{path}");
        }
    }

    #[test]
    fn only_a_mount_of_pramfs_with_a_user_is_one_of_ours() {
        let line = |kind: &str, options: &str| {
            let line = format!("36 25 0:57 / /mnt rw - {kind} /r {options}");
            mount_line(mount_table::parse(line.as_bytes()).remove(0))
        };
        let mount = line("fuse.pramfs", "rw,user_id=0,group_id=0").unwrap();
        assert_eq!((mount.device, mount.user), ((0, 57), 0));
        assert_eq!(mount.target, Path::new("/mnt"));
        assert_eq!(line("fuse.other", "rw,user_id=0"), None);
        assert_eq!(line("fuse.pramfs", "rw"), None);
    }

    #[test]
    fn text_of_a_server_that_refuses_is_escaped() {
        let error = ControlError::Refused {
            reason: pramfs_control::Refusal::System,
            message: "no\u{1b}[2J\nway\u{202e}".to_owned(),
        };
        let said = about(Path::new("/mnt"), &error).message;
        let escaped = r"no\u{1b}[2J\nway\u{202e}";
        assert!(
            said.starts_with("/mnt: ") && said.contains(escaped),
            "{said}"
        );
    }

    #[test]
    fn state_of_this_process_is_known() {
        let pid = std::process::id().cast_signed();
        assert!(state_of(pid).is_some_and(|state| "RSD".contains(state)));
        assert_eq!(state_of(i32::MAX), None);
    }

    #[test]
    fn call_that_does_not_return_is_given_up() {
        assert_eq!(in_time(|| 7), Some(7));
        let (_keep, wait) = mpsc::channel::<()>();
        assert_eq!(in_time(move || wait.recv().is_ok()), None);
    }
}
