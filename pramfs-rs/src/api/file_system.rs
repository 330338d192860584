//! [`FileSystem`]: a mounted file system, addressed by path.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::File;
use super::metadata::{FileTimes, Metadata};
use super::open_options::OpenOptions;
use super::read_dir::ReadDir;
use super::remove::remove_contents;
use super::resolve::Resolved;
use super::unmount_error::UnmountError;
use crate::credentials::Credentials;
use crate::fs::{CloseError, Engine, Fs, MountOptions, RecoveryReport};
use pramfs_medium::error::{Error, Result};
use pramfs_medium::pmem::Region;
use pramfs_medium::types::{FileType, RenameFlags, SetAttr, StatFs, XattrMode};

/// Bytes that [`FileSystem::copy`] requests at a time.
const COPY: u64 = 1 << 30;

/// A mounted file system with the interface of `std::fs`: files are named by path.
///
/// Every path starts at the root of the file system, with or without a leading
/// slash. Symbolic links stay within it. Every change is durable when the call
/// returns, except the times of reads and overwrites, which [`sync`](Self::sync)
/// writes.
///
/// # Threads
/// `FileSystem` is [`Send`] and [`Sync`], and all methods but [`unmount`](Self::unmount) and
/// [`unmount_now`](Self::unmount_now) take `&self`: any number of threads call them at once,
/// on one `FileSystem` that they borrow or share in an [`Arc`]. [`File`],
/// [`MappedFile`](crate::MappedFile) and [`ReadDir`] borrow nothing from it. They can outlive
/// it and move to other threads. While one of them is open, `unmount` is refused and gives the
/// file system back; after `unmount_now` their calls are refused with [`Error::Io`]. After
/// fork(2) a child can use none of them: every call is refused with [`Error::Io`].
///
/// ```
/// use pramfs::format::{FormatOptions, format};
/// use pramfs::pmem::RegionOptions;
/// use pramfs::{FileSystem, MountOptions};
///
/// let region = RegionOptions::new().memfd("example", 4 << 20)?;
/// format(&region, &FormatOptions::default())?;
/// let fs = FileSystem::mount(region, MountOptions::default())?;
/// fs.create_dir_all("/var/log")?;
/// fs.write("/var/log/boot", "started\n")?;
/// assert_eq!(fs.read_to_string("/var/log/boot")?, "started\n");
/// fs.rename("/var/log/boot", "/var/log/boot.1")?;
/// assert!(!fs.exists("/var/log/boot")?);
/// fs.unmount()?;
/// # Ok::<(), pramfs::Error>(())
/// ```
#[derive(Debug)]
pub struct FileSystem {
    inodes: Fs,
    creator: Credentials<'static>,
}

impl From<Fs> for FileSystem {
    /// New files belong to the effective user and group of this process.
    fn from(inodes: Fs) -> FileSystem {
        let creator = Credentials::new(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        )
        .with_umask(0o022);
        FileSystem { inodes, creator }
    }
}

impl FileSystem {
    /// Mounts the file system of a region. If the last mount did not end cleanly, this
    /// replays its journal first; [`recovery`](Self::recovery) reports the result.
    ///
    /// # Errors
    /// [`Error::NotMountable`], [`Error::Corrupt`], [`Error::Pmem`].
    pub fn mount(region: Region, options: MountOptions) -> Result<FileSystem> {
        Fs::open(region, options).map(FileSystem::from)
    }

    /// Unmounts cleanly.
    ///
    /// # Errors
    /// [`UnmountError::InUse`] while files, mappings or directories are open; it returns the
    /// file system. [`UnmountError::Failed`] if the medium failed.
    pub fn unmount(self) -> Result<(), UnmountError> {
        let creator = self.creator;
        self.inodes.close().map_err(|e| match e {
            CloseError::InUse { fs, handles } => UnmountError::InUse {
                fs: Box::new(FileSystem {
                    inodes: *fs,
                    creator,
                }),
                handles,
            },
            CloseError::Failed(e) => UnmountError::Failed(e),
        })
    }

    /// Unmounts cleanly even if files are open: every later call on them fails with
    /// [`Error::Io`]. The region stays mapped until the last of them is dropped.
    ///
    /// # Errors
    /// [`Error::Io`] if the medium failed.
    pub fn unmount_now(self) -> Result<()> {
        self.inodes.close_now()
    }

    /// Sets the owner and the umask of new files. The default is the
    /// effective user and group of this process, and 022.
    #[must_use]
    pub fn with_creator(mut self, creator: Credentials<'static>) -> FileSystem {
        self.creator = creator;
        self
    }

    /// Returns the lower interface: inode numbers instead of paths.
    pub fn inodes(&self) -> &Fs {
        &self.inodes
    }

    pub(super) fn creator(&self) -> Credentials<'static> {
        self.creator
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        self.inodes.engine()
    }

    /// Returns the report of the recovery at mount.
    pub fn recovery(&self) -> &RecoveryReport {
        self.inodes.recovery()
    }

    /// Returns the used and free space and inodes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn statfs(&self) -> Result<StatFs> {
        self.inodes.statfs()
    }

    /// Makes everything durable, including times.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self) -> Result<()> {
        self.inodes.sync()
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As for [`OpenOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file for reading and writing. If it does not exist, creates it; otherwise sets
    /// its size to 0. (`std::fs::File::create` opens for writing only.)
    ///
    /// # Errors
    /// As for [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        options.open(self, path)
    }

    /// As [`create`](Self::create), but fails if the name exists.
    ///
    /// # Errors
    /// [`Error::Exists`], and as for [`OpenOptions::open`].
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        options.open(self, path)
    }

    /// Makes a directory of mode 0777 minus the umask.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NotFound`] for its parent, [`Error::NoSpace`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        if matches!(name, b"." | b"..") {
            return Err(Error::Exists);
        }
        let ino = parent.attr().ino;
        self.inodes.mkdir(&self.creator, ino, name, 0o777).map(drop)
    }

    /// Makes a directory and its missing parents.
    ///
    /// # Errors
    /// As for [`create_dir`](Self::create_dir), except that the directory may exist.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        // From the root down: follow a symbolic link on the path to its current target.
        let mut at = PathBuf::from("/");
        let mut parts = path.components().peekable();
        while let Some(part) = parts.next() {
            at.push(part);
            match self.create_dir(&at) {
                Ok(()) => {}
                Err(Error::Exists) if self.metadata(&at)?.is_dir() => {}
                Err(Error::Exists) if parts.peek().is_some() => return Err(Error::NotDirectory),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Removes the name of a file, symbolic link, device, pipe or socket.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::IsDirectory`], [`Error::NotPermitted`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let (parent, name) = self.parent_but(path, || Error::IsDirectory)?;
        if path.as_os_str().as_bytes().ends_with(b"/") {
            // The name is a directory, or there is nothing to remove.
            return Err(match self.metadata(path) {
                Ok(_) => Error::IsDirectory,
                Err(e) => e,
            });
        }
        self.inodes.unlink(parent.attr().ino, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::NotEmpty`],
    /// [`Error::Busy`] for the root.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_but(path.as_ref(), root_is_busy)?;
        self.inodes.rmdir(parent.attr().ino, name)
    }

    /// Removes a directory and everything below it, or a symbolic link. Does not follow
    /// symbolic links. Not atomic: after an error, a part is already removed.
    ///
    /// # Errors
    /// As for [`remove_file`](Self::remove_file) and [`remove_dir`](Self::remove_dir).
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.parent_but(path.as_ref(), root_is_busy)?;
        let found = Resolved::child(self.engine(), parent.attr().ino, name)?;
        if found.attr().kind != FileType::Directory {
            return match found.attr().kind {
                FileType::Symlink => self.inodes.unlink(parent.attr().ino, name),
                _ => Err(Error::NotDirectory),
            };
        }
        remove_contents(&self.inodes, found.attr().ino)?;
        self.inodes.rmdir(parent.attr().ino, name)
    }

    /// Renames atomically, and replaces an existing file at the new name.
    ///
    /// # Errors
    /// As of rename(2): [`Error::Busy`] for the root.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::default())
    }

    /// Renames with the flags of renameat2(2): without replacing an existing name, or by
    /// exchanging the two names.
    ///
    /// # Errors
    /// Those of renameat2(2).
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let (old, name) = self.parent_but(from, root_is_busy)?;
        let (new, new_name) = self.parent_but(to, || match flags.noreplace {
            true => Error::Exists,
            false => root_is_busy(),
        })?;
        let slash = |path: &Path| path.as_os_str().as_bytes().ends_with(b"/");
        if slash(from) || slash(to) {
            let attr = self.inodes.lookup(old.attr().ino, name)?;
            if attr.kind != FileType::Directory {
                return Err(Error::NotDirectory);
            }
        }
        let (old, new) = (old.attr().ino, new.attr().ino);
        self.inodes
            .rename(&self.creator, old, name, new, new_name, flags)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exists`], [`Error::NotPermitted`] for a directory,
    /// [`Error::TooManyLinks`].
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let found = self.found(original.as_ref(), false)?;
        let (parent, name) = self.new_name(link.as_ref())?;
        self.inodes
            .link(found.attr().ino, parent.attr().ino, name)
            .map(drop)
    }

    /// Gives an open file another name, or its first if it was
    /// [made without one](crate::OpenOptions::open_unnamed). A file that has lost its last
    /// name gets none again.
    ///
    /// # Errors
    /// [`Error::Exists`]; [`Error::NotFound`] for a file that has lost its last name;
    /// [`Error::Invalid`] for a file of another file system; [`Error::TooManyLinks`].
    pub fn hard_link_file(&self, file: &File, link: impl AsRef<Path>) -> Result<()> {
        if !Arc::ptr_eq(&file.engine, self.inodes.engine()) {
            return Err(Error::Invalid("the file belongs to another file system"));
        }
        let (parent, name) = self.new_name(link.as_ref())?;
        let parent = parent.attr().ino;
        self.inodes.link(file.ino(), parent, name).map(drop)
    }

    /// Makes a symbolic link. `original` is stored unchanged and not looked up.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::NoSpace`], [`Error::NameTooLong`].
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (parent, name) = self.new_name(link.as_ref())?;
        let target = original.as_ref().as_os_str().as_bytes();
        self.inodes
            .symlink(&self.creator, parent.attr().ino, name, target)
            .map(drop)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for anything but a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let found = self.found(path.as_ref(), false)?;
        let target = self.inodes.readlink(found.attr().ino)?;
        Ok(PathBuf::from(OsString::from_vec(target)))
    }

    /// Returns the metadata of a file. Follows symbolic links.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`], [`Error::TooManySymlinks`].
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok((*self.found(path.as_ref(), true)?.attr()).into())
    }

    /// As [`metadata`](Self::metadata), but of a symbolic link itself.
    ///
    /// # Errors
    /// As for [`metadata`](Self::metadata).
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        Ok((*self.found(path.as_ref(), false)?.attr()).into())
    }

    /// Returns whether a path exists. Follows symbolic links: a dangling one does not exist.
    ///
    /// # Errors
    /// All except [`Error::NotFound`] and [`Error::NotDirectory`].
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(Error::NotFound | Error::NotDirectory) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// As for [`metadata`](Self::metadata); [`Error::NotPermitted`] for an immutable file.
    pub fn set_permissions(&self, path: impl AsRef<Path>, perm: Permissions) -> Result<()> {
        let set = SetAttr {
            perm: Some(perm.mode() & 0o7777),
            ..SetAttr::default()
        };
        self.set(path.as_ref(), true, &set)
    }

    /// Sets access and modification times.
    ///
    /// # Errors
    /// As for [`set_permissions`](Self::set_permissions); [`Error::TimeOutOfRange`].
    pub fn set_times(&self, path: impl AsRef<Path>, times: FileTimes) -> Result<()> {
        self.set(path.as_ref(), true, &times.to_set()?)
    }

    /// Sets owner and group; `None` leaves one unchanged.
    ///
    /// # Errors
    /// As for [`set_permissions`](Self::set_permissions).
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.set(path.as_ref(), true, &set)
    }

    /// As [`chown`](Self::chown), but of a symbolic link itself.
    ///
    /// # Errors
    /// As for [`chown`](Self::chown).
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.set(path.as_ref(), false, &set)
    }

    fn set(&self, path: &Path, follow: bool, set: &SetAttr) -> Result<()> {
        let found = self.found(path, follow)?;
        self.inodes
            .setattr(&Credentials::ROOT, found.attr().ino, set)
            .map(drop)
    }

    /// Returns an iterator over the entries of a directory.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotDirectory`].
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let found = self.found(path, true)?;
        if found.attr().kind != FileType::Directory {
            return Err(Error::NotDirectory);
        }
        let engine = self.engine();
        Ok(ReadDir::new(
            Arc::clone(engine),
            found.into_ref(engine),
            path,
        ))
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// As for [`OpenOptions::open`] and [`File::read_at`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        let mut all = Vec::new();
        file.read_to_end_at(&mut all, 0)?;
        Ok(all)
    }

    /// Reads a whole file as UTF-8.
    ///
    /// # Errors
    /// As for [`read`](Self::read); [`Error::NotUtf8`] for other bytes.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        String::from_utf8(self.read(path)?).map_err(|_| Error::NotUtf8)
    }

    /// Creates a file with these contents, or replaces the contents of an existing one. Not
    /// atomic: after a crash the file can be empty or incomplete. For an atomic replacement,
    /// write another file and [`rename`](Self::rename) it.
    ///
    /// # Errors
    /// As for [`OpenOptions::open`] and [`File::write_at`].
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_all_at(contents.as_ref(), 0)
    }

    /// Copies contents and permission bits to another file, which is created or replaced.
    /// Returns the number of bytes. The bytes are copied directly on the medium.
    ///
    /// # Errors
    /// As for [`read`](Self::read) and [`write`](Self::write); [`Error::Invalid`] if both
    /// names refer to one file.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let from = self.open(from)?;
        let metadata = from.metadata()?;
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .mode(metadata.mode() & 0o7777);
        let to = options.open(self, to)?;
        if from.ino() == to.ino() {
            return Err(Error::Invalid("a file cannot be copied onto itself"));
        }
        to.set_len(0)?;
        let mut done = 0;
        loop {
            let (source, target) = ((from.ino(), done), (to.ino(), done));
            match self
                .inodes
                .copy_range(&Credentials::ROOT, source, target, COPY)?
            {
                0 => break,
                n => done += n,
            }
        }
        to.set_permissions(metadata.permissions())?;
        Ok(done)
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let found = self.found(path.as_ref(), true)?;
        self.inodes.getxattr(found.attr().ino, name.as_ref())
    }

    /// Sets an extended attribute, atomically.
    ///
    /// # Errors
    /// [`Error::AttributeTooLarge`], [`Error::NoSpace`], [`Error::NotSupported`] for a name
    /// of an unknown namespace; the errors of `mode`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let found = self.found(path.as_ref(), true)?;
        let (ino, name) = (found.attr().ino, name.as_ref());
        self.inodes
            .setxattr(&Credentials::ROOT, ino, name, value.as_ref(), mode)
    }

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// As for [`metadata`](Self::metadata).
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        let found = self.found(path.as_ref(), true)?;
        let list = self.inodes.listxattr(found.attr().ino)?;
        let names = list.split(|b| *b == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`].
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        let found = self.found(path.as_ref(), true)?;
        self.inodes.removexattr(found.attr().ino, name.as_ref())
    }

    fn found(&self, path: &Path, follow: bool) -> Result<Resolved<'_>> {
        let path = path.as_os_str().as_bytes();
        self.engine().walk_path(path, follow)
    }

    /// As [`parent`](Self::parent), for a new name that is not a directory's.
    fn new_name<'p>(&self, path: &'p Path) -> Result<(Resolved<'_>, &'p [u8])> {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(match self.metadata(path) {
                Ok(_) => Error::Exists,
                Err(e) => e,
            });
        }
        self.parent(path)
    }

    fn parent<'p>(&self, path: &'p Path) -> Result<(Resolved<'_>, &'p [u8])> {
        self.engine().walk_to_parent(path.as_os_str().as_bytes())
    }

    /// As [`parent`](Self::parent). The root has none; `root` is the error for it.
    fn parent_but<'p>(
        &self,
        path: &'p Path,
        root: impl FnOnce() -> Error,
    ) -> Result<(Resolved<'_>, &'p [u8])> {
        self.parent(path).map_err(|e| match e {
            Error::Exists => root(),
            e => e,
        })
    }
}

fn root_is_busy() -> Error {
    Error::Busy("the root directory can be neither removed nor renamed".into())
}
