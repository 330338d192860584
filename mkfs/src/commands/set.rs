//! `pramfs set`: how bytes of a file of a mount change. The flag is that of `chattr +j`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use rustix::fs::{IFlags, Mode, OFlags, fstatfs, ioctl_getflags, ioctl_setflags, open};

use super::Subcommand;
use crate::Failure;
use crate::failure::shown;

/// `f_type` of statfs(2) for a FUSE file system.
pub(super) const FUSE: i64 = 0x6573_5546;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Data {
    /// A write of up to 1 MiB is there as a whole after a crash, or not at all
    Atomic,
    /// A crash may leave a part of a write, unless the mount has data=atomic
    Inplace,
}

#[derive(Debug, Args)]
pub(super) struct Set {
    /// How the bytes change
    data: Data,
    /// Files, and directories that hand the setting down to what is made in them, in a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

impl Subcommand for Set {
    const NAME: &'static str = "set";
    const ABOUT: &'static str = "Make writes to files of a mount atomic, or in place again";

    fn run(&self) -> Result<(), Failure> {
        self.paths.iter().try_for_each(|path| set(path, self.data))
    }
}

fn set(path: &Path, data: Data) -> Result<(), Failure> {
    let about = |what| move |e| Failure::os(what, path, e);
    // A pipe is not waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(about("cannot open"))?;
    let kind = fstatfs(&file).map_err(about("cannot look at"))?.f_type;
    if kind != FUSE {
        let text = format!("{} is not in a mount of pramfs", shown(path));
        return Err(Failure::new("not-mounted", text));
    }
    let mut flags = ioctl_getflags(&file).map_err(about("cannot read the flags of"))?;
    flags.set(IFlags::JOURNALING, data == Data::Atomic);
    ioctl_setflags(&file, flags).map_err(about("cannot change the flags of"))
}
