//! What the first server of a mount gives its supervisor.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use pramfs::inode::{Fs, RegionView};
use pramfs::pmem::Region;
use pramfs_control::Identity;
use pramfs_fuse_protocol::flags::InitFlags;
use pramfs_medium::pmem::RegionAccess;

use super::link::Link;
use super::memory::Memory;
use super::state::State;
use crate::exit::Failure;
use crate::kernel::OwnMount;
use crate::transport::Session;

/// Prepares what must survive this server, and its locked memory.
pub(crate) fn memory_to_survive() -> Result<Arc<Memory>, Failure> {
    crate::memory::allow_locking();
    let memory = Memory::create();
    let memory = memory.map_err(|error| {
        Failure::system(format!(
            "takeover=on: there is no memory for what must survive the server: {error}"
        ))
    })?;
    Ok(Arc::new(memory))
}

/// Gives the supervisor what outlives this server. No request has been read yet: the kernel fails
/// those of a descriptor that nobody else holds.
pub(crate) fn keep(
    link: &Link,
    session: &Session,
    (memory, locked): &(Arc<Memory>, Option<OwnedFd>),
    offered: InitFlags,
    fs: &Fs,
    region: &Path,
    own_mount: &OwnMount,
) -> Result<(), Failure> {
    let Some((channels, agreed)) = session.to_keep() else {
        return Err(Failure::system("takeover=on: no connection can be kept"));
    };
    let state = State {
        agreed,
        offered,
        region: region.to_owned(),
        mountpoint: own_mount.path.clone(),
        device: own_mount.device,
        by_helper: own_mount.by_helper,
        read_only: fs.is_read_only(),
        uuid: fs.superblock().fixed.uuid,
        identity: identity(fs.region()),
    };
    let memory = memory
        .descriptors()
        .map_err(|error| Failure::system(format!("takeover=on: {error}")))?;
    let locked = locked.as_ref().map(AsFd::as_fd);
    let minor = own_mount.device.map_or(0, |(_, minor)| minor);
    link.keep(channels, memory, locked, (minor, &state.to_bytes()))
}

/// Returns the kernel's numbers of a region; nothing for memory of this process.
pub(crate) fn identity<'r>(region: impl Into<RegionView<'r>>) -> String {
    let handle = region.into().handle().ok().flatten();
    let identity = handle.and_then(|handle| Identity::of(&handle).ok());
    identity.map_or_else(String::new, |identity| identity.to_string())
}

/// Returns the region with its lock, for the supervisor.
pub(crate) fn locked(region: &Region) -> Result<Option<OwnedFd>, Failure> {
    let locked = region.locked_descriptor();
    locked.map_err(|error| Failure::system(format!("takeover=on: {error}")))
}
