//! A door of a guest: what stands between the requests of a guest, which is not trusted, and
//! the handlers.
//!
//! Purpose: a region is served through several doors, a mount or guests. Each door of a guest has
//! its own [`Adapter`] on the same engine, and this file around it:
//! * it negotiates: INIT begins a session of the guest, DESTROY or [`Door::end`] ends it;
//! * a request names only nodes and open files that this session was given (`nodes.rs`), and gets
//!   ESTALE or EBADF otherwise. The end of a session gives everything back;
//! * nothing in a request refers to a process of this machine: the guest's number of a process
//!   is not passed on;
//! * ids are translated (`ids.rs`), and names of attributes (`xattr_map.rs`, `xattrs.rs`);
//! * with a window, ranges of files are mapped into the guest (`dax.rs`);
//! * what a reply may cache depends on whether there are other doors (`reply.rs`): guests get no
//!   notifications.
//!
//! Permissions are the guest kernel's business, as they are the kernel's on a mount: a guest can do
//! with the region whatever its root can.
//!
//! Not here: where requests come from (`transport/virtio`).

pub(crate) mod dax;
mod ids;
mod nodes;
mod reply;
#[cfg(test)]
mod tests;
mod xattr_map;
mod xattrs;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use pramfs::inode::Repeats;
use pramfs_fuse_protocol::flags::{InitFlags, SetattrValid};
use pramfs_fuse_protocol::numbers::{INVALID_UIDGID, ROOT_ID};
use pramfs_fuse_protocol::wire::{InHeader, ReleaseIn};
use pramfs_fuse_protocol::{
    Errno, InitRequest, Malformed, Negotiated, Opcode, Operation, Outcome, Request, Rules, Wanted,
    other_major, reply as answers,
};

use crate::adapter::{Adapter, Answer, MAX_BACKGROUND, MAX_REQUEST, Reply};
use crate::remount::{BEGIN_TO_WRITE, SET_ATIMES, SET_DIR_ATIMES};
use dax::Dax;
use nodes::{Forgotten, Nodes};
use reply::DoorReply;

pub use crate::adapter::stores::others_may_store;
pub use dax::{LARGEST_WINDOW, Window};
pub use ids::IdMap;
pub use reply::Outlet;
pub use xattr_map::XattrMap;

/// Ranges of files that are mapped begin at pages: the binary logarithm of their size.
const MAP_ALIGNMENT: u16 = 12;

/// Bytes of the longest list of attributes that the kernel takes (XATTR_LIST_MAX).
const MAX_XATTR_LIST: u32 = 65536;

/// Direction of an ioctl, in its number: `_IOC_WRITE`.
const IOCTL_HANDS_OVER: u32 = 1 << 30;

/// What is called otherwise in a guest than in the region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Translations {
    /// Users.
    pub users: IdMap,
    /// Groups.
    pub groups: IdMap,
    /// Names of extended attributes, if they differ.
    pub xattrs: Option<XattrMap>,
}

/// How a door serves.
#[derive(Debug, Clone, Copy, Default)]
pub struct DoorSettings {
    /// The region has other doors.
    pub shared: bool,
    /// Nothing is cached, whether there are other doors or not.
    pub caches_nothing: bool,
    /// The guest changes nothing.
    pub read_only: bool,
    /// Guests may map files.
    pub maps: bool,
    /// Somebody may store to files without a request, a guest or a process that another server has
    /// given a lease: bytes of the medium are copied and not lent.
    pub copies: bool,
}

impl DoorSettings {
    /// Whether the guest may cache names and attributes.
    fn may_cache(self) -> bool {
        !self.shared && !self.caches_nothing
    }
}

/// A door.
pub struct Door {
    adapter: Adapter,
    settings: DoorSettings,
    translations: Translations,
    nodes: Nodes,
    /// What the guest has mapped, if the VMM has a window.
    dax: OnceLock<Dax>,
    /// What the session has agreed upon. Requests hold the lock shared, and the begin and the end
    /// of a session hold it alone.
    session: RwLock<Option<Negotiated>>,
    /// The guest may have begun anew without an end: its device has been stopped.
    was_stopped: AtomicBool,
}

impl Door {
    /// Makes a door, which has no session yet.
    pub fn new(adapter: Adapter, settings: DoorSettings, translations: Translations) -> Door {
        Door {
            adapter,
            settings,
            translations,
            nodes: Nodes::default(),
            dax: OnceLock::new(),
            session: RwLock::new(None),
            was_stopped: AtomicBool::new(false),
        }
    }

    /// Takes the window of the guest into use. Before the first request; the first one stays.
    pub fn open_window(&self, window: Arc<dyn Window>) {
        if self.settings.maps && self.dax.set(Dax::new(window)).is_err() {
            tracing::warn!("a VMM offers a second window; refused");
        }
    }

    /// Bytes of the largest request.
    pub fn max_request() -> usize {
        MAX_REQUEST as usize + 4096
    }

    fn shared(&self) -> RwLockReadGuard<'_, Option<Negotiated>> {
        self.session.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, Option<Negotiated>> {
        self.session.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request. Its reply, if it has one, is in the outlet when this returns.
    pub fn serve(&self, bytes: &[u8], outlet: &mut impl Outlet) {
        let session = self.shared();
        let rules = session.map_or(Rules::BEFORE_INIT, |agreed| {
            agreed.rules(self.adapter.name_max())
        });
        let request = match Request::parse(bytes, &rules) {
            Ok(request) => request,
            Err(Malformed { unique, error }) => {
                tracing::debug!("a request of a guest is refused: {error}");
                if let Some(unique) = unique {
                    outlet.put(&answers::error(unique, error.errno()));
                }
                return;
            }
        };
        let unique = request.unique();
        match request.operation {
            Operation::Init(init) => {
                drop(session);
                self.begin(unique, &init, outlet);
            }
            Operation::Destroy => {
                drop(session);
                self.end();
                outlet.put(&answers::empty(unique));
            }
            _ if session.is_none() => {
                tracing::debug!("a guest sends {:?} outside of a session", request.opcode);
                if request.opcode.has_reply() {
                    outlet.put(&answers::error(unique, Errno::EIO));
                }
            }
            operation => self.ask(request.header, operation, outlet),
        }
    }

    /// Notes that the device has been stopped: the guest may begin anew, as it does after a reboot,
    /// or go on.
    pub fn note_stop(&self) {
        self.was_stopped.store(true, Ordering::Relaxed);
    }

    /// Ends the session, if there is one: gives back all that the guest has. Waits for the
    /// requests that run.
    pub fn end(&self) {
        let mut session = self.alone();
        if session.take().is_some() {
            self.give_back();
        }
    }

    /// Returns how many nodes and open files the guest has.
    pub fn holds(&self) -> (usize, usize) {
        self.nodes.len()
    }

    fn give_back(&self) {
        if let Some(dax) = self.dax.get() {
            dax.remove_all(self.adapter.fs());
            dax.forget_lost();
        }
        for remains in self.nodes.take_all() {
            let Forgotten { node, lookups } = remains.forgotten;
            for (handle, count) in remains.opens {
                for _ in 0..count {
                    self.close(node, handle);
                }
            }
            self.forget(node, lookups);
        }
    }

    fn begin(&self, unique: u64, init: &InitRequest, outlet: &mut impl Outlet) {
        let mut session = self.alone();
        if session.is_some() {
            if !self.was_stopped.load(Ordering::Relaxed) {
                if let Some(since) = self.tells("a second time") {
                    tracing::warn!("a guest negotiates a second time; refused{since}");
                }
                return outlet.put(&answers::error(unique, Errno::EIO));
            }
            if let Some(since) = self.tells("anew") {
                tracing::info!("the guest has begun anew, without an unmount{since}");
            }
            *session = None;
            self.give_back();
        }
        self.was_stopped.store(false, Ordering::Relaxed);
        let wanted = Wanted {
            flags: self.wanted(),
            required: self.adapter.required(),
            max_write: MAX_REQUEST,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            page_size: rustix::param::page_size() as u32,
            map_alignment: MAP_ALIGNMENT,
            ..Wanted::default()
        };
        match pramfs_fuse_protocol::negotiate(init, &wanted) {
            Ok(Outcome::Agreed(agreed)) => {
                self.adapter.note_offer(init.flags);
                if let Some(since) = self.tells("mounts") {
                    tracing::info!("a guest mounts: FUSE 7.{}{since}", agreed.minor());
                }
                tracing::debug!("in use: {:?}", agreed.flags());
                *session = Some(agreed);
                outlet.put(&agreed.reply(unique));
            }
            Ok(Outcome::OtherMajor) => outlet.put(&other_major(unique)),
            Err(error) => {
                if let Some(since) = self.tells("cannot mount") {
                    tracing::warn!("a guest cannot mount: {error}{since}");
                }
                outlet.put(&answers::error(unique, error.errno()));
            }
        }
    }

    /// Decides whether to log a message that a guest can provoke without an end: once a minute.
    /// Returns what follows it.
    fn tells(&self, what: &str) -> Option<String> {
        self.adapter.tells(what).map(Repeats::since)
    }

    /// Returns what this server asks of a guest's kernel.
    ///
    /// Not EXPORT_SUPPORT: a file handle may name a node that the guest has forgotten. With other
    /// doors, pages are dropped when the attributes show a change.
    fn wanted(&self) -> InitFlags {
        let all = self.adapter.wanted() | self.adapter.wanted_of_whole_requests();
        let mut all = all.difference(InitFlags::EXPORT_SUPPORT);
        if self.dax.get().is_some() {
            all |= InitFlags::MAP_ALIGNMENT | InitFlags::HAS_INODE_DAX;
        }
        if let Some(xattrs) = &self.translations.xattrs {
            if !xattrs.keeps_acls() {
                // What the guest calls an ACL is another attribute here, and no ACL.
                all = all.difference(InitFlags::POSIX_ACL | InitFlags::DONT_MASK);
            }
            if !xattrs.keeps_label() {
                // With them, the guest could make no file.
                all = all.difference(InitFlags::SECURITY_CTX);
            }
        }
        match self.settings.shared {
            false => all,
            true => all.difference(InitFlags::EXPLICIT_INVAL_DATA) | InitFlags::AUTO_INVAL_DATA,
        }
    }

    /// Has a request served whose nodes the guest was given.
    fn ask(&self, mut header: InHeader, asked: Operation<'_>, outlet: &mut impl Outlet) {
        let node = header.nodeid;
        match asked {
            Operation::Forget { nlookup } => return self.forget_given(node, nlookup),
            Operation::BatchForget(list) => {
                for one in list.iter() {
                    self.forget_given(one.nodeid, one.nlookup);
                }
                return;
            }
            Operation::NotifyReply { .. } | Operation::Interrupt { .. } => return,
            _ => {}
        }
        let mut reply = DoorReply::new(self, outlet, header.unique, node);
        let named_otherwise = self
            .check_contexts(&asked)
            .and_then(|()| self.name_in_region(&asked));
        let mapped = match named_otherwise {
            Ok(mapped) => mapped,
            Err(errno) => return reply.refuse(errno),
        };
        let mut asked = match &mapped {
            Some(name) => xattrs::named(asked, name),
            None => asked,
        };
        if let (Operation::Listxattr { size }, Some(_)) = (&mut asked, &self.translations.xattrs) {
            // The guest's list has another length.
            reply.lists_xattrs_into(std::mem::replace(size, MAX_XATTR_LIST));
        }
        if let Err(errno) = self.translate(&mut header, &mut asked) {
            return reply.refuse(errno);
        }
        let Some(pinned) = self.nodes.pin(nodes_of(node, &asked)) else {
            tracing::debug!(
                "a guest names a node that it does not have: {:?}",
                asked.opcode()
            );
            return reply.refuse(Errno::ESTALE);
        };
        // The adapter gives the handle 0 to directories alone.
        let closes = match &asked {
            Operation::Release(arg) => Some((arg.fh, arg.fh != 0)),
            Operation::Releasedir(arg) => Some((arg.fh, arg.fh == 0)),
            _ => None,
        };
        if let Some((handle, fits)) = closes
            && !(fits && self.nodes.closed(node, handle))
        {
            tracing::debug!("a guest closes a file that it does not have open");
            reply.refuse(Errno::EBADF);
            return self.let_go(pinned);
        }
        let refusal = self.refusal(&asked);
        let refusal = refusal.or_else(|| self.drop_mapped_capability(node, &asked).err());
        match (refusal, self.dax.get()) {
            (Some(errno), _) => reply.refuse(errno),
            (None, Some(dax)) => self.ask_with_window(dax, &header, asked, reply),
            (None, None) => self.ask_adapter(None, &header, asked, reply),
        }
        self.let_go(pinned);
    }

    /// Serves what concerns the window, and has the adapter serve the rest.
    fn ask_with_window<O: Outlet>(
        &self,
        dax: &Dax,
        header: &InHeader,
        asked: Operation<'_>,
        reply: DoorReply<'_, O>,
    ) {
        let (fs, node) = (self.adapter.fs(), header.nodeid);
        match &asked {
            Operation::Setupmapping(arg) => {
                return match dax.setup(fs, node, arg) {
                    Ok(()) => reply.send(Answer::Done),
                    Err(errno) => reply.refuse(errno),
                };
            }
            Operation::Removemapping(list) => {
                list.iter().for_each(|one| dax.remove(fs, &one));
                return reply.send(Answer::Done);
            }
            _ => {}
        }
        self.ask_adapter(Some(dax), header, asked, reply);
    }

    /// Has the adapter serve a request, after the stores that concern it were flushed: they are in
    /// the caches of the processor until somebody does that.
    fn ask_adapter<O: Outlet>(
        &self,
        dax: Option<&Dax>,
        header: &InHeader,
        asked: Operation<'_>,
        reply: DoorReply<'_, O>,
    ) {
        match self.flush_for(dax, header.nodeid, &asked) {
            Ok(()) => self.adapter.serve_request(header, asked, reply),
            Err(error) => {
                if let Some(since) = self.tells("not durable") {
                    let node = header.nodeid;
                    tracing::error!("stores to node {node} are not durable: {error}{since}");
                }
                reply.refuse(Errno::EIO);
            }
        }
    }

    fn flush_for(
        &self,
        dax: Option<&Dax>,
        node: u64,
        asked: &Operation<'_>,
    ) -> Result<(), pramfs::Error> {
        let fs = self.adapter.fs();
        let named = match asked {
            Operation::Fsync(_) => Some(node),
            Operation::Syncfs => None,
            Operation::Setattr(arg) if arg.valid.contains(SetattrValid::MTIME) => {
                return dax.map_or(Ok(()), |dax| dax.note_times(fs, node));
            }
            _ => return Ok(()),
        };
        match (dax, named) {
            (Some(dax), Some(node)) => dax.persist(fs, node)?,
            (Some(dax), None) => dax.persist_all(fs)?,
            (None, _) => {}
        }
        // Only guests leave this to the server, and processes of an earlier server.
        if self.settings.copies {
            dax::flush_others(fs, dax, named)?;
        }
        Ok(())
    }

    /// Refuses what only root of this machine may ask for, and changes through a door that is
    /// read-only.
    fn refusal(&self, asked: &Operation<'_>) -> Option<Errno> {
        if let Operation::Removexattr { name } = asked {
            let policies = SET_ATIMES.iter().map(|(name, _)| *name);
            let mut reserved = policies.chain(SET_DIR_ATIMES).chain([BEGIN_TO_WRITE]);
            if reserved.any(|reserved| *name == reserved.as_bytes()) {
                return Some(Errno::EPERM);
            }
        }
        (self.settings.read_only && changes(asked)).then_some(Errno::EROFS)
    }

    fn let_go(&self, pinned: nodes::Pinned) {
        for Forgotten { node, lookups } in self.nodes.unpin(pinned) {
            self.forget(node, lookups);
        }
    }

    fn forget_given(&self, node: u64, lookups: u64) {
        if let Some(Forgotten { node, lookups }) = self.nodes.forget(node, lookups) {
            self.forget(node, lookups);
        }
    }

    /// Gives references back to the engine.
    fn forget(&self, node: u64, lookups: u64) {
        if lookups != 0 {
            let header = InHeader {
                nodeid: node,
                ..InHeader::default()
            };
            let forget = Operation::Forget { nlookup: lookups };
            self.adapter.serve_request(&header, forget, Nobody);
        }
    }

    /// Closes an open file in the engine.
    fn close(&self, node: u64, handle: u64) {
        let header = InHeader {
            nodeid: node,
            ..InHeader::default()
        };
        let arg = ReleaseIn {
            fh: handle,
            ..ReleaseIn::default()
        };
        let close = match handle {
            0 => Operation::Releasedir(arg),
            _ => Operation::Release(arg),
        };
        self.adapter.serve_request(&header, close, Nobody);
    }

    /// Translates the ids of a request, and takes out what means nothing on this machine.
    ///
    /// The guest's kernel has checked the rights of the caller. So only requests that need ids
    /// keep them: those that make a file, and ioctls, which old kernels do not check.
    fn translate(&self, header: &mut InHeader, asked: &mut Operation<'_>) -> Result<(), Errno> {
        header.pid = 0;
        let whiteout =
            matches!(asked, Operation::Rename { flags, .. } if *flags & libc::RENAME_WHITEOUT != 0);
        let needed = whiteout
            || matches!(
                asked,
                Operation::Mknod { .. }
                    | Operation::Mkdir { .. }
                    | Operation::Symlink { .. }
                    | Operation::Create { .. }
                    | Operation::Tmpfile { .. }
                    | Operation::Ioctl { .. }
            );
        let user = |id| self.translations.users.to_region(id).ok_or(Errno::EPERM);
        let group = |id| self.translations.groups.to_region(id).ok_or(Errno::EPERM);
        if !needed || header.uid == INVALID_UIDGID || header.gid == INVALID_UIDGID {
            (header.uid, header.gid) = (INVALID_UIDGID, INVALID_UIDGID);
        } else {
            (header.uid, header.gid) = (user(header.uid)?, group(header.gid)?);
        }
        if let Operation::Setattr(arg) = asked {
            if arg.valid.contains(SetattrValid::UID) {
                arg.uid = user(arg.uid)?;
            }
            if arg.valid.contains(SetattrValid::GID) {
                arg.gid = group(arg.gid)?;
            }
        }
        Ok(())
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.end();
    }
}

/// Hears no answer.
struct Nobody;

impl Reply for Nobody {
    fn send(self, _: Answer<'_>) {}

    fn dismiss(self) {}
}

/// Returns the nodes that a request names.
fn nodes_of(node: u64, asked: &Operation<'_>) -> [u64; 2] {
    match asked {
        // They are about the file system.
        Operation::Statfs | Operation::Syncfs => [ROOT_ID; 2],
        // The guest may have forgotten the node whose mappings it removes.
        Operation::Removemapping(_) => [ROOT_ID; 2],
        Operation::Rename { newdir, .. } => [node, *newdir],
        Operation::Link { oldnodeid, .. } => [node, *oldnodeid],
        Operation::CopyFileRange(arg) | Operation::CopyFileRange64(arg) => [node, arg.nodeid_out],
        _ => [node, ROOT_ID],
    }
}

/// Whether a request changes something.
fn changes(asked: &Operation<'_>) -> bool {
    match asked {
        Operation::Open(arg) => arg.flags.cast_signed() & libc::O_ACCMODE != libc::O_RDONLY,
        // Whether the caller hands something over, which those that only read do not.
        Operation::Ioctl { arg, .. } => arg.cmd & IOCTL_HANDS_OVER != 0,
        _ => matches!(
            asked.opcode(),
            Opcode::Setattr
                | Opcode::Symlink
                | Opcode::Mknod
                | Opcode::Mkdir
                | Opcode::Unlink
                | Opcode::Rmdir
                | Opcode::Rename
                | Opcode::Rename2
                | Opcode::Link
                | Opcode::Write
                | Opcode::Setxattr
                | Opcode::Removexattr
                | Opcode::Create
                | Opcode::Tmpfile
                | Opcode::Fallocate
                | Opcode::CopyFileRange
                | Opcode::CopyFileRange64
        ),
    }
}
