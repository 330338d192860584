//! [`OpenOptions`]: how a file is opened by its path.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::file::{File, Rights};
use super::file_system::FileSystem;
use super::resolve::{MAX_LINKS, Resolved};
use crate::credentials::Credentials;
use crate::fs::{Engine, Fs};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::types::FileType;

/// A mounted file system of either interface, in which files can be opened.
pub trait OpenIn: sealed::Sealed {
    #[doc(hidden)]
    fn engine(&self) -> &Arc<Engine>;
    #[doc(hidden)]
    fn creator(&self) -> Credentials<'static>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::FileSystem {}
    impl Sealed for super::Fs {}
}

impl OpenIn for FileSystem {
    fn engine(&self) -> &Arc<Engine> {
        FileSystem::engine(self)
    }

    fn creator(&self) -> Credentials<'static> {
        FileSystem::creator(self)
    }
}

/// New files belong to root.
impl OpenIn for Fs {
    fn engine(&self) -> &Arc<Engine> {
        Fs::engine(self)
    }

    fn creator(&self) -> Credentials<'static> {
        Credentials::ROOT
    }
}

/// How a file is opened, as in `std::fs::OpenOptions`; [`open`](Self::open) takes the file
/// system first.
///
/// ```
/// use pramfs::OpenOptions;
/// # use pramfs::{FileSystem, MountOptions};
/// # let region = pramfs::pmem::Region::new("example", pramfs::pmem::HeapBackend::boxed(4 << 20));
/// # pramfs::format::format(&region, &pramfs::format::FormatOptions::default())?;
/// # let fs = FileSystem::mount(region, MountOptions::default())?;
/// let log = OpenOptions::new().append(true).create(true).open(&fs, "/log")?;
/// assert_eq!(log.append(b"first")?, 0);
/// assert_eq!(log.append(b"second")?, 5);
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Makes options with nothing set. A new file gets the mode 0666 minus the umask
    /// of the [`FileSystem`].
    #[must_use]
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
        }
    }

    /// For reading.
    pub fn read(&mut self, yes: bool) -> &mut OpenOptions {
        self.read = yes;
        self
    }

    /// For writing.
    pub fn write(&mut self, yes: bool) -> &mut OpenOptions {
        self.write = yes;
        self
    }

    /// For appending: each `Write::write` adds to the end of the file, wherever that
    /// is by then. `write_at` needs [`write`](Self::write) as well.
    pub fn append(&mut self, yes: bool) -> &mut OpenOptions {
        self.append = yes;
        self
    }

    /// Sets the size to 0. Needs [`write`](Self::write).
    pub fn truncate(&mut self, yes: bool) -> &mut OpenOptions {
        self.truncate = yes;
        self
    }

    /// Creates the file if it does not exist. Needs [`write`](Self::write) or
    /// [`append`](Self::append).
    pub fn create(&mut self, yes: bool) -> &mut OpenOptions {
        self.create = yes;
        self
    }

    /// Creates the file, and fails if the name exists. Needs [`write`](Self::write) or
    /// [`append`](Self::append).
    pub fn create_new(&mut self, yes: bool) -> &mut OpenOptions {
        self.create_new = yes;
        self
    }

    /// Permission bits of a file that is made, before the umask.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = mode;
        self
    }

    fn check(&self) -> Result<()> {
        let stores = self.write || self.append;
        if !self.read && !stores {
            return Err(Error::Invalid(
                "neither read nor write access was requested",
            ));
        }
        if (self.create || self.create_new) && !stores {
            return Err(Error::Invalid("creating a file needs write or append"));
        }
        if self.truncate && (!self.write || self.append) && !self.create_new {
            return Err(Error::Invalid(
                "truncating a file needs write without append",
            ));
        }
        Ok(())
    }

    /// Opens a file. Follows a symbolic link in the last name, except with
    /// [`create_new`](Self::create_new).
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`], [`Error::IsDirectory`],
    /// [`Error::TooManySymlinks`]; [`Error::NotSupported`] for a device, pipe or
    /// socket; [`Error::Invalid`] for options that contradict each other; the errors of
    /// creating a file.
    pub fn open(&self, fs: &impl OpenIn, path: impl AsRef<Path>) -> Result<File> {
        self.check()?;
        let (engine, path) = (fs.engine(), path.as_ref().as_os_str().as_bytes());
        let found = if self.create_new {
            make_file(engine, &fs.creator(), path, self.mode)?
        } else {
            match engine.walk_path(path, true) {
                Err(Error::NotFound) if self.create && !path.is_empty() => {
                    find_or_make(engine, &fs.creator(), path, self.mode)?
                }
                found => found?,
            }
        };
        match found.attr().kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Error::IsDirectory),
            _ => return Err(Error::NotSupported("opening a device, pipe or socket")),
        }
        let file = File::open(engine, found.into_ref(engine), self.rights())?;
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Creates a file without a name in a directory, whose rules for new files it follows,
    /// and opens it. It exists until its last handle is dropped; a crash leaves nothing of
    /// it. [`FileSystem::hard_link_file`] gives it a name, which appears with its contents:
    ///
    /// ```
    /// use pramfs::OpenOptions;
    /// # use pramfs::{FileSystem, MountOptions};
    /// # let region = pramfs::pmem::Region::new("example", pramfs::pmem::HeapBackend::boxed(4 << 20));
    /// # pramfs::format::format(&region, &pramfs::format::FormatOptions::default())?;
    /// # let fs = FileSystem::mount(region, MountOptions::default())?;
    /// let report = OpenOptions::new().write(true).open_unnamed(&fs, "/")?;
    /// report.write_all_at(b"complete", 0)?;
    /// fs.hard_link_file(&report, "/report")?;
    /// assert_eq!(fs.read("/report")?, b"complete");
    /// # Ok::<(), pramfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`]; [`Error::Invalid`] without write or
    /// append access, and with [`truncate`](Self::truncate), [`create`](Self::create) or
    /// [`create_new`](Self::create_new); the errors of creating a file.
    pub fn open_unnamed(&self, fs: &impl OpenIn, directory: impl AsRef<Path>) -> Result<File> {
        if !self.write && !self.append {
            return Err(Error::Invalid(
                "a file without a name needs write or append",
            ));
        }
        if self.truncate || self.create || self.create_new {
            return Err(Error::Invalid(
                "a file without a name is new: truncate, create and create_new do not apply",
            ));
        }
        let (engine, path) = (fs.engine(), directory.as_ref().as_os_str().as_bytes());
        let parent = engine.walk_path(path, true)?.into_ref(engine);
        let made =
            engine.create_unnamed_for_guard(&fs.creator(), parent.ino(), self.mode, true, &[])?;
        let made = Resolved::adopt(engine, made);
        File::open(engine, made.into_ref(engine), self.rights())
    }

    fn rights(&self) -> Rights {
        Rights {
            read: self.read,
            write: self.write,
            append: self.append,
        }
    }
}

/// Creates a file for a name that did not exist. If the name exists by now, opens it; if
/// it is a dangling symbolic link, creates the file at its target.
fn find_or_make<'e>(
    engine: &'e Engine,
    creator: &Credentials<'_>,
    path: &[u8],
    mode: u32,
) -> Result<Resolved<'e>> {
    let mut path = path.to_vec();
    for _ in 0..MAX_LINKS {
        match make_file(engine, creator, &path, mode) {
            Err(Error::Exists) => {}
            made => return made,
        }
        match engine.walk_path(&path, true) {
            Err(Error::NotFound) => {}
            found => return found,
        }
        let link = match engine.walk_path(&path, false) {
            // Another thread has removed it again.
            Err(Error::NotFound) => continue,
            found => found?,
        };
        let target = match engine.readlink(link.attr().ino) {
            // Another file has the name by now.
            Err(Error::Invalid(_)) => continue,
            target => target?,
        };
        let directory = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
        path.truncate(if target.starts_with(b"/") {
            0
        } else {
            directory
        });
        path.extend(target);
    }
    Err(Error::TooManySymlinks(MAX_LINKS))
}

/// Creates a file for a name that must not exist.
fn make_file<'e>(
    engine: &'e Engine,
    creator: &Credentials<'_>,
    path: &[u8],
    mode: u32,
) -> Result<Resolved<'e>> {
    // Only the path of a directory can end in a slash.
    if path.ends_with(b"/") {
        return Err(Error::IsDirectory);
    }
    let (parent, name) = engine.walk_to_parent(path)?;
    let made = engine.create_for_guard(creator, parent.attr().ino, name, mode)?;
    Ok(Resolved::adopt(engine, made))
}
