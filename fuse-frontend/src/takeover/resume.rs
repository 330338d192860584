//! The start of a server that takes a connection over.
//!
//! Order:
//! 1. the state is read, which may be refused: then the server before stays, if it lives;
//! 2. the server before has ended;
//! 3. the region is opened and recovered, as after any crash;
//! 4. privileges are dropped, as by the first server (see [`privileges`]);
//! 5. when the threads start, the kernel is asked for the unanswered requests.
//!
//! Nothing is mounted, and nothing negotiated. What a remount has changed meanwhile is read from
//! the mount table.

use std::path::Path;
use std::sync::Arc;

use pramfs::AtimePolicy;

use pramfs::pmem::Region;
use pramfs_medium::pmem::RegionAccess;
use rustix::mount::MountFlags;

use super::link::Link;
use super::memory::Memory;
use super::messages::Held;
use super::state::{Found, State};
use crate::adapter::{Adapter, Counts, Notifier};
use crate::direct::{Opens, Policy};
use crate::exit::Failure;
use crate::guests::{Beside, Sockets};
use crate::kernel::OwnMount;
use crate::mountinfo::{self, Mount};
use crate::oom;
use crate::opening::{open_again, open_engine};
use crate::options::MountSettings;
use crate::privileges::{self, Extra, Privileges};
use crate::remount;
use crate::session::{Mounted, answer_for, listen};
use crate::shutdown::Signals;
use crate::status::Reporter;
use crate::summary;
use crate::takeover::first::identity;
use crate::transport::Session;

/// Takes over what the supervisor holds.
///
/// # Errors
/// The state is not understood; or the region cannot be opened.
pub fn resume(held: Held, settings: &MountSettings, link: Link) -> Result<Mounted, Failure> {
    let mut signals = Signals::catch()
        .map_err(|error| Failure::system(format!("cannot handle signals: {error}")))?;
    oom::keep_alive();
    pramfs::pmem::install_fault_guard().map_err(|error| Failure::system(error.to_string()))?;
    let state = State::from_bytes(&held.state).map_err(|why| {
        Failure::system(format!(
            "the state of the connection cannot be taken over: {why}"
        ))
    })?;
    let [ledger, counts_of_inodes] = held.memory;
    let memory = Memory::adopt(ledger, counts_of_inodes).map_err(|error| {
        Failure::system(format!(
            "the memory of the server before cannot be taken over: {error}"
        ))
    })?;
    crate::memory::allow_locking();
    link.wait_for_turn()?;
    // Those for a process that stands by were not for the mount. The supervisor repeats its own.
    signals.forget();

    let memory = Arc::new(memory);
    let failed = |error| Failure::system(format!("cannot copy the connection: {error}"));
    let connection = held
        .channels
        .first()
        .ok_or_else(|| Failure::system("there is no connection to take over"))?;
    let own_mount = OwnMount::adopt(&state, connection).map_err(failed)?;
    let mut settings = settings_in_force(settings, &own_mount);
    let (region, protected) = open_again(&state.region, held.region.as_ref(), &settings)?;
    settings.read_only |= protected;
    check(&region, &state, &own_mount)?;
    distrust(&region, &state.region, &mut settings);
    let mut notices = Vec::new();
    let policy = Policy::new(settings.direct, settings.direct_write_is_root);
    let (listener, _) = listen(&region, policy, &settings, &mut notices);
    let privileges = Privileges::shed(&settings, false);
    let path = &state.region;
    let fs = open_engine(
        region,
        path,
        &settings,
        protected,
        Some(&memory),
        !settings.virtiofs.is_empty(),
        |_| None,
    )?;
    let notifier = Notifier::new(connection.try_clone().map_err(failed)?);
    let opens = Opens::of(&fs, notifier.clone(), false);
    let counts = Arc::new(Counts::new(settings.metrics, settings.slow));
    let reporter = Reporter::new(&fs, &counts, &own_mount, &settings);
    let answer = |listener| {
        let offers = (&counts, &reporter, None);
        answer_for(
            &fs, listener, connection, &own_mount, &settings, offers, true,
        )
    };
    let control = match listener.and_then(|listener| listener.map_or(Ok(None), answer)) {
        Ok(control) => control,
        Err(error) => {
            notices.push(format!(
                "WARNING: {} cannot be mounted a second time: {error}",
                state.region.display()
            ));
            None
        }
    };
    let opens = Some(opens).filter(|opens| opens.are_written());
    let adapter = Adapter::new(Arc::clone(&fs), settings.cache, notifier)
        .with_counts(Arc::clone(&counts))
        .with_files_opened_by(settings.opens)
        .with_opens(opens)
        .with_takeover(Arc::clone(&memory));
    adapter.note_offer(state.offered);
    drop(held.region);
    let adapter = Arc::new(adapter);
    let session = Session::resume(
        Arc::clone(&adapter),
        held.channels,
        state.agreed,
        settings.busy_poll,
    );
    reporter.note_transport(&session);
    notices.extend(privileges.confine(own_mount.by_helper, Extra::default()));
    for notice in &notices {
        tracing::warn!("{notice}");
    }
    Ok(Mounted {
        session,
        warnings: summary::warnings(&fs.region().info(), fs.recovery()),
        summary: summary::of(&fs, &own_mount.path, &settings),
        fs,
        signals,
        own_mount,
        counts,
        reporter,
        control,
        link: Some(link),
        memory: Some(memory),
        guests: (Sockets::bind(&[])?, adapter, Beside::of(&settings)),
        notices,
    })
}

/// Checks that the region is as the server before has left it.
///
/// # Errors
/// It is another one, or another program has mounted it meanwhile. Nothing in it was changed.
fn check(region: &Region, state: &State, own_mount: &OwnMount) -> Result<(), Failure> {
    let shown = state.region.display();
    let info = pramfs_medium::media::probe_superblock(region)
        .map_err(|error| Failure::mount(format!("{shown}: {error}")))?;
    let found = Found {
        uuid: info.fixed.uuid,
        identity: identity(region),
        // By the server before, if it was killed after the unmount: then nothing is left to serve.
        is_clean: info.is_clean() && own_mount.is_live(),
    };
    match state.objection(&found) {
        None => Ok(()),
        Some(why) => Err(Failure::mount(format!("{shown}: {why}"))),
    }
}

/// Returns the settings that the mount has by now: those of the command line, changed by
/// remounts, and by damage, which makes it read-only.
fn settings_in_force(given: &MountSettings, own_mount: &OwnMount) -> MountSettings {
    let mut settings = given.clone();
    let mounts = mountinfo::read().unwrap_or_default();
    // Detached, or in another mount namespace: as mounted.
    if let Some(mount) = mounts.iter().find(|mount| own_mount.resembles(mount)) {
        adjust(&mut settings, mount);
    }
    settings
}

fn adjust(settings: &mut MountSettings, mount: &Mount) {
    let mut of_superblock = mount.super_options.split(',');
    settings.read_only = of_superblock.any(|word| word == "ro");
    let flags = remount::new_flags(&[&*mount.options], &[]);
    settings.atime = if flags.contains(MountFlags::NOATIME) {
        AtimePolicy::NoAtime
    } else if flags.contains(MountFlags::RELATIME) {
        AtimePolicy::Relatime
    } else {
        AtimePolicy::StrictAtime
    };
    settings.dir_atime = !flags.contains(MountFlags::NODIRATIME);
}

/// Notes that the mount has nosuid and nodev, if other users may write the region. The kernel
/// knows that already; a second mount learns it from here.
fn distrust(region: &Region, path: &Path, settings: &mut MountSettings) {
    if let Err(refused) = privileges::region::distrust(region.ownership(), path, settings) {
        tracing::warn!("{refused}");
        settings.suid = false;
        settings.dev = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_follow_remounts() {
        let mount = |options: &str, super_options: &str| Mount {
            id: 1,
            device: (0, 57),
            root: "/".to_owned(),
            target: "/mnt".into(),
            options: options.to_owned(),
            fs_type: mountinfo::FS_TYPE.to_owned(),
            source: "/region".into(),
            super_options: super_options.to_owned(),
        };
        let mut settings = MountSettings::default();
        adjust(
            &mut settings,
            &mount("ro,noatime,nodiratime", "ro,user_id=0"),
        );
        assert!(settings.read_only && !settings.dir_atime);
        assert_eq!(settings.atime, AtimePolicy::NoAtime);
        adjust(&mut settings, &mount("ro,relatime", "rw,user_id=0"));
        assert!(!settings.read_only && settings.dir_atime);
        assert_eq!(settings.atime, AtimePolicy::Relatime);
        adjust(&mut settings, &mount("rw", "rw"));
        assert_eq!(settings.atime, AtimePolicy::StrictAtime);
    }
}
